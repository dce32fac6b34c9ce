"""What a trial's own part says besides its metrics: why it was tried, what was foreseen of it."""

from __future__ import annotations

from autotune.report import reading
from autotune.report.numbers import duration, quantity, share
from autotune.report.reading import Problems
from autotune.report.view import StudyView, TrialView
from autotune.report.words import metric_label
from autotune.spec.vocabulary import METRICS

_MOST_PREDICTED = 4


def trial_facts(view: StudyView, trial: TrialView) -> tuple[tuple[str, str], ...]:
    """(name, text) of what is known; () for a plain launch."""
    record = trial.record
    rows: list[tuple[str, str]] = []
    if record.why:
        rows.append(("tried because", record.why))
    by_key = {metric.key: metric for metric in METRICS.values()}
    for key in list(record.predicted)[:_MOST_PREDICTED]:
        metric = by_key.get(key)
        if metric is not None:
            scale = view.units.scale(metric)
            text = quantity(record.predicted[key], scale)
            rows.append((f"predicted {metric_label(metric)}", text))
    rows += _quality(trial) + _early(trial) + _capacity(trial)
    return tuple(rows)


def _quality(trial: TrialView) -> list[tuple[str, str]]:
    found = trial.record.quality
    verdict = found.get("verdict")
    if not isinstance(verdict, str):
        return []
    numbers = reading.numbers(found)
    text = verdict.replace("_", " ")
    if "loss" in numbers:
        text += f": loss {share(numbers['loss'])}"
        if {"loss_low", "loss_high"} <= numbers.keys():
            text += f" ({share(numbers['loss_low'])} to {share(numbers['loss_high'])})"
    if "agreement" in numbers:
        text += f", answers agree for {share(numbers['agreement'])} of their tokens"
    if "passages" in numbers:
        text += f", on {numbers['passages']:.0f} texts"
    return [("answers", text)]


def _early(trial: TrialView) -> list[tuple[str, str]]:
    found = reading.numbers(trial.record.stopped_early)
    saved = found.get("saved_s")
    return [] if saved is None else [("ended early", f"saved {duration(saved)}")]


def _capacity(trial: TrialView) -> list[tuple[str, str]]:
    found = reading.read_object(trial.folder / "capacity.json", trial.folder, Problems())
    steps = (found or {}).get("steps")
    if not isinstance(steps, list):
        return []
    words = [
        f"{numbers['multiplier']:.2f}x {'held' if step.get('met') else 'failed'}"
        for step in steps
        if isinstance(step, dict) and "multiplier" in (numbers := reading.numbers(step))
    ]
    return [("loads tried", ", ".join(words))] if words else []
