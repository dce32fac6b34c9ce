"""Banners and doubts: what must be known before the result is used, sorted by harm.

Five standing questions are always answered: the answers' quality, more load, other machines, other
traffic, the client. Each doubt has a stable code that scripts and JSON use as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.report import reading
from autotune.report.answer_words import answer_words
from autotune.report.comparison import Row, compare, limit_states, sides
from autotune.report.engines_compared import engine_results
from autotune.report.figure import reason_text
from autotune.report.numbers import MILLISECONDS, fixed, percent, quantity, share
from autotune.report.verdict_words import limit_name, limit_text, value_text
from autotune.report.view import StudyView
from autotune.report.words import (
    change_words,
    is_distinguishable,
    metric_label,
    plural,
)

_WORSE_IN_ONE_LAUNCH = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """A state of the whole study that travels with every number of it."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """One thing that could go wrong. `urgent`: look at it before a rollout."""

    code: str
    text: str
    urgent: bool = False


def banners(view: StudyView) -> list[Banner]:
    """Banners in order of weight: SUSPECT, SIMULATED, INTERRUPTED or NOT FINISHED, UNCONFIRMED."""
    found = []
    suspect = _suspect(view)
    if suspect:
        found.append(Banner(label="SUSPECT", text=suspect))
    if view.simulated:
        found.append(
            Banner(
                label="SIMULATED",
                text="No real engine or GPU was measured: these numbers come from a model of one.",
            )
        )
    ended = _ended(view)
    if ended is not None:
        found.append(ended)
    if view.recommended is not None and not (view.verdict and view.verdict.confirmed):
        found.append(
            Banner(
                label="UNCONFIRMED",
                text="The result rests on too few paired launches: it may be luck. "
                "`autotune resume` confirms it.",
            )
        )
    return found


def _suspect(view: StudyView) -> str | None:
    suspects = [trial for trial in view.trials if trial.record.validity == "suspect"]
    today, new = sides(view)
    decisive = {t.number for side in (today, new) if side for t in side.trials}
    touched = [trial for trial in suspects if trial.number in decisive]
    if not touched:
        return None
    reasons = [
        reason
        for trial in touched
        for reason in (trial.measurement.validity.reasons if trial.measurement else ())
    ]
    why = f": {'; '.join(dict.fromkeys(reasons))}" if reasons else ""
    return f"{plural(len(touched), 'launch', 'launches')} behind this result may be off{why}."


def _ended(view: StudyView) -> Banner | None:
    of = f" of {view.planned_trials}" if view.planned_trials else ""
    progress = f"{len(view.searched)}{of} trials so far"
    if view.verdict is None:
        return Banner(
            label="NOT FINISHED",
            text=f"This study is still running or was interrupted: {progress}, no verdict yet.",
        )
    if view.verdict.interrupted:
        return Banner(
            label="INTERRUPTED",
            text=f"The study was stopped before its end: {progress}. `autotune resume` goes on.",
        )
    return None


def doubts(view: StudyView) -> list[Doubt]:
    """All doubts: urgent ones first, in the order answers, engines, limits, transfer, client."""
    found = [
        *_answers(view),
        *_engines(view),
        *_limits(view),
        *_worse(view),
        *_simulated(view),
        *_traffic(view),
        *_load(view),
        *_machine(view),
        *_client(view),
    ]
    return sorted(found, key=lambda doubt: not doubt.urgent)


def _answers(view: StudyView) -> Iterator[Doubt]:
    words = answer_words(view)
    yield Doubt(code=words.code, text=words.text, urgent=words.urgent)


def _engines(view: StudyView) -> Iterator[Doubt]:
    """Engines of the study that the result says nothing of."""
    for result in engine_results(view):
        last = result.unmeasured
        if result.tried and last is None:
            continue
        text = f"{result.title} was not launched, so not compared."
        if last is not None:
            several = f"none of its {result.tried} launches was measured"
            which = several if result.tried > 1 else "its one launch was not measured"
            why = last.record.message or reason_text(last)
            text = f"{result.title} was not compared: {which} (#{last.number}: {why})."
        yield Doubt(code="engine-not-measured", text=text, urgent=True)


def _limits(view: StudyView) -> Iterator[Doubt]:
    _, new = sides(view)
    for state in limit_states(view, new) if new else ():
        if state.standing == "holds":
            continue
        name, limit = limit_name(state), limit_text(view, state)
        if state.standing == "broken":
            text = f"{name} misses its limit of {limit}: {value_text(view, state)}."
        elif state.standing == "unknown":
            text = f"{state.text}: not measured."
        elif state.metric is not None and state.metric.name == "success_rate" and new:
            low = state.interval[0] if state.interval else None
            planned, failed = new.requests
            shown = f"shown to {share(low)}, not {limit}" if low is not None else "not shown"
            text = f"success rate {shown} ({failed} of {planned:,} failed)."
        else:
            text = f"{name}: the limit of {limit} is not shown to hold ({value_text(view, state)})."
        yield Doubt(code="limit-not-shown", text=text, urgent=True)


def _worse(view: StudyView) -> Iterator[Doubt]:
    """Metrics without a limit that got worse."""
    if view.recommended is None:
        return
    worse = [row for row in compare(view) if row.group == "other latency" and _is_worse(row)]
    for row in [r for r in worse if r.metric.statistic in {"p50", "p95", "p99"}][:3]:
        assert row.change is not None
        yield Doubt(
            code="other-metric-worse",
            text=f"{metric_label(row.metric)} is {change_words(row.metric, row.change.ratio)}; "
            "no limit was set on it.",
            urgent=True,
        )


def _is_worse(row: Row) -> bool:
    change = row.change
    if change is None or row.metric.family in {"ttft_service", "chunk_gap"}:
        return False
    loss = change.ratio - 1 if row.metric.goal == "lower" else 1 - change.ratio
    if change.low is None:
        return loss > _WORSE_IN_ONE_LAUNCH
    return loss > 0 and is_distinguishable(change)


def _simulated(view: StudyView) -> Iterator[Doubt]:
    if view.simulated:
        yield Doubt(
            code="simulated",
            text="Every number is simulated; measure on the real engine before a rollout.",
            urgent=True,
        )


def _traffic(view: StudyView) -> Iterator[Doubt]:
    held_out = view.workload.get("held_out") is True
    if held_out:
        text = "The held-out window comes from the same recording."
    else:
        text = "Search and confirmation used the same traffic; other traffic was not tried."
    yield Doubt(code="same-recording" if held_out else "same-traffic", text=text)


def _load(view: StudyView) -> Iterator[Doubt]:
    rate = view.workload.get("rate_mean")
    if isinstance(rate, (int, float)):
        text = f"Not measured above the recorded {fixed(float(rate), 1)} requests/s."
    else:
        text = "Not measured above the recorded load."
    yield Doubt(code="load-as-recorded", text=text)


def _machine(view: StudyView) -> Iterator[Doubt]:
    engine = view.engine_words or "one engine version"
    if view.simulated:
        engine = f"the {engine}"
    yield Doubt(
        code="one-machine",
        text=f"Measured on one machine with {engine}; measure again after an upgrade.",
    )


def _client(view: StudyView) -> Iterator[Doubt]:
    today, new = sides(view)
    trials = [trial for side in (today, new) if side for trial in side.trials]
    clients = [reading.numbers(t.measurement.client) for t in trials if t.measurement]
    lags = [client["dispatch_lag_p99_s"] for client in clients if "dispatch_lag_p99_s" in client]
    loads = [client["cpu_share"] for client in clients if "cpu_share" in client]
    if not lags:
        yield Doubt(code="client-unknown", text="Whether the client kept time was not measured.")
        return
    text = (
        f"The client sent requests at most {quantity(max(lags), MILLISECONDS, digits=2)} late (p99)"
    )
    if loads:
        text += f" and used {percent(max(loads))} of a core"
    yield Doubt(code="client-lag", text=text + ".")
    measured = [trial.measurement for trial in trials if trial.measurement]
    if any(measurement.client.get("shared_cores") is True for measurement in measured):
        yield Doubt(
            code="client-shared-cores",
            text="The client ran on the engine's cores: this machine has too few to keep it apart, "
            "so both sides were slowed a little, and alike.",
        )


def noise_text(view: StudyView) -> str | None:
    """The measured run-to-run variation, in words."""
    noise = view.verdict.noise if view.verdict else None
    return None if noise is None else f"run-to-run variation here: {percent(noise)}"
