"""The tables below the first screen: compare, trials, failures, workload, environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from autotune.report import reading
from autotune.report.comparison import compare, row_place, sides
from autotune.report.course import MOST_CURVES, drawn, timeline
from autotune.report.figure import goal_words, mark_of, reason_text, state_word
from autotune.report.first_screen import STANDING_WORDS
from autotune.report.latency import latency_curves
from autotune.report.numbers import bounds, duration, fixed, percent, quantity
from autotune.report.show import evidence
from autotune.report.small_charts import trial_curves
from autotune.report.svg import Mark
from autotune.report.trial_facts import trial_facts
from autotune.report.verdict_words import limit_text
from autotune.report.view import StudyView, TrialView, metric_of
from autotune.report.words import change_cell, metric_label, setting
from autotune.spec.vocabulary import METRICS, MetricName

_HEADLINE = ("ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "tpot_p99", "e2e_p95",
             "output_throughput", "request_throughput", "goodput", "success_rate", "kv_usage_max",
             "preemptions", "prefix_hit_rate", "gpu_memory_peak", "power_mean",
             "startup_seconds")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRow:
    """One metric, today beside new, as text (table T1)."""

    group: str
    label: str
    definition: str
    anchor: str
    today: str
    new: str
    today_range: str
    new_range: str
    change: str
    limit: str
    state: str
    standing: str
    minor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial, as a line of the table (T2) and as its own part of the page.

    `order` sorts by default: feasible by goal, infeasible by distance to the limits, failures by
    cause. `goal_sort` is the full value for sorting, or empty.
    """

    number: int
    role: str
    word: str
    mark: Mark
    order: tuple[int, float, str, int]
    goal: str
    goal_sort: str
    limits: str
    chips: tuple[tuple[str, str, str], ...]
    seconds: float
    time: str
    note: str
    trial: TrialView
    evidence: tuple[str, ...]
    phases: tuple[tuple[str, str], ...]
    metrics: tuple[tuple[str, str, str], ...]
    validity: tuple[str, ...]
    bound: str
    asked: tuple[tuple[str, str], ...]
    pictures: tuple[Markup, ...]
    course: tuple[Markup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """Trials that ended for the same reason (table T4)."""

    cause: str
    trials: tuple[int, ...]
    common: str
    boundary: str
    line: str
    message: str


def compare_rows(view: StudyView) -> list[CompareRow]:
    """Every metric that was measured, baseline beside the candidate."""
    today, new = sides(view)
    samples = [side.requests[0] // len(side.trials) if side else None for side in (today, new)]
    rows = []
    for row in compare(view):
        scale = view.units.scale(row.metric)
        place = row_place(row, scale)
        limit = row.limits[0] if row.limits else None
        state = STANDING_WORDS.get(limit.standing, "not measured") if limit else ""
        if limit is not None and limit.unbounded:
            state = "broken"
        rows.append(
            CompareRow(
                group=row.group,
                label=metric_label(row.metric),
                definition=row.metric.title,
                anchor=row.metric.family,
                today=quantity(row.today, scale, place=place),
                new=quantity(row.new, scale, place=place),
                today_range=bounds(
                    row.today, scale, row.today_interval, samples=samples[0], place=place
                ),
                new_range=bounds(row.new, scale, row.new_interval, samples=samples[1], place=place),
                change=_change_text(row.metric, row.today, row.new)
                or change_cell(row.metric, row.change),
                limit=", ".join(limit_text(view, state) for state in row.limits),
                state=state,
                standing=limit.standing if limit else "",
                minor=row.group == "other latency" and _is_minor(row.metric),
            )
        )
    return rows


def _is_minor(metric: MetricName) -> bool:
    """Statistics that few readers ask for; they stand in a closed part of the table."""
    return metric.family in {"ttft_service", "chunk_gap"} or metric.statistic in {"p90", "max"}


def _change_text(metric: MetricName, today: float | None, new: float | None) -> str | None:
    """Changes that are no ratio: shares as percentage points, counts from zero, missing sides."""
    if today is None or new is None:
        return "not comparable (one side missing)"
    if metric.unit == "ratio":
        points = 100 * (new - today)
        if abs(points) < 0.005:
            return "no change"
        return f"{fixed(abs(points), 2)} points {'lower' if points < 0 else 'higher'}"
    if today == new:
        return "no change"
    return "not comparable (from zero)" if today == 0 else None


def trial_rows(view: StudyView) -> list[TrialRow]:
    """All trials with all that their part of the page shows, in the table's default order."""
    families = ("ttft", "tpot")
    pictured = drawn(view, MOST_CURVES)
    curves = {
        trial.number: latency_curves(trial.folder, families) if trial.number in pictured else {}
        for trial in view.trials
    }
    today = curves.get(view.baseline.number, {}) if view.baseline else {}
    timed = drawn(view)
    rows = [
        _trial_row(
            view,
            t,
            tuple(trial_curves(view, t, curves[t.number], today)),
            tuple(timeline(t)) if t.number in timed else (),
        )
        for t in view.trials
    ]
    return sorted(rows, key=lambda row: row.order)


def _trial_row(
    view: StudyView, trial: TrialView, pictures: tuple[Markup, ...], course: tuple[Markup, ...]
) -> TrialRow:
    record, goal = trial.record, view.goal(trial)
    seconds = record.seconds.get("total", math.fsum(record.seconds.values()))
    lossy = {knob.name for knob in view.knobs if knob.lossy}
    measurement = trial.measurement
    return TrialRow(
        number=trial.number,
        role=record.role,
        word=state_word(trial),
        mark="other" if record.is_repeat else mark_of(view, trial),
        order=_order(view, trial),
        goal=goal_words(view, trial),
        goal_sort="" if goal is None else repr(goal),
        limits=_limits_words(trial),
        chips=tuple(
            (name, f"{setting(new)}", "lossy" if name in lossy else "")
            for name, (_, new) in trial.changed.items()
        ),
        seconds=seconds,
        time=duration(seconds),
        note=_note(trial),
        trial=trial,
        evidence=tuple(evidence(trial)),
        phases=tuple(
            (phase, duration(value)) for phase, value in record.seconds.items() if phase != "total"
        ),
        metrics=tuple(_metric_rows(view, trial)),
        validity=measurement.validity.reasons if measurement else (),
        bound=_bound(trial),
        asked=trial_facts(view, trial),
        pictures=pictures,
        course=course,
    )


def _order(view: StudyView, trial: TrialView) -> tuple[int, float, str, int]:
    record, goal = trial.record, view.goal(trial)
    if record.role == "confirm":
        return 3, float(record.pair or 0), "", trial.number
    if record.role == "check":
        return 4, 0.0, "", trial.number
    if goal is not None and record.feasible:
        return 0, -goal if view.maximized else goal, "", trial.number
    if record.state == "measured":
        return 1, max(record.constraints.values(), default=0.0), "", trial.number
    return 2, 0.0, reason_text(trial), trial.number


def _limits_words(trial: TrialView) -> str:
    """The worst limit and by how much; empty for a trial without values."""
    record = trial.record
    if record.state != "measured" or not record.constraints:
        return ""
    text, by = max(record.constraints.items(), key=lambda item: item[1])
    if by <= 0:
        return "all met"
    metric = metric_of(text)
    return f"{metric_label(metric) if metric else text} by {percent(by)}"


def _note(trial: TrialView) -> str:
    record = trial.record
    if record.role == "confirm":
        return f"confirmation, pair {(record.pair or 0) + 1}"
    if record.role == "check" and record.state == "measured":
        return "launched to see if the machine still works"
    if record.state != "measured":
        phase = f" ({record.phase})" if record.phase else ""
        return f"{reason_text(trial)}{phase}"
    return "suspect" if record.validity == "suspect" else ""


def _metric_rows(view: StudyView, trial: TrialView) -> list[tuple[str, str, str]]:
    rows = []
    planned = trial.measurement.planned if trial.measurement else None
    for name in _HEADLINE:
        metric = METRICS[name]
        value, interval = trial.metric(metric), trial.interval(metric)
        if trial.is_unbounded(metric):
            rows.append((metric_label(metric), "not met (failures)", ""))
        elif value is not None and trial.measurement is not None:
            scale = view.units.scale(metric)
            rows.append(
                (
                    metric_label(metric),
                    quantity(value, scale, interval),
                    bounds(value, scale, interval, samples=planned),
                )
            )
    return rows


def _bound(trial: TrialView) -> str:
    diagnosis = trial.measurement.diagnosis if trial.measurement else {}
    bound = diagnosis.get("bound") or diagnosis.get("kind")
    if not bound:
        return ""
    reasons = "; ".join(reading.texts(diagnosis.get("evidence")))
    words = str(bound).replace("_", " ")
    return f"Bound by {words}: {reasons}." if reasons else f"Bound by {words}."


def failure_rows(view: StudyView) -> list[FailureRow]:
    """Failed trials by cause, most frequent first."""
    causes: dict[str, list[TrialView]] = {}
    for trial in view.trials:
        if trial.record.state != "measured":
            causes.setdefault(reason_text(trial), []).append(trial)
    rows = [
        FailureRow(
            cause=cause,
            trials=tuple(trial.number for trial in trials),
            common=_common(trials),
            boundary=_boundary(view, trials),
            line=next((line for t in trials for line in reversed(evidence(t))), ""),
            message=next((t.record.message for t in trials if t.record.message), ""),
        )
        for cause, trials in causes.items()
    ]
    return sorted(rows, key=lambda row: (-len(row.trials), row.cause))


def _common(trials: Sequence[TrialView]) -> str:
    first = trials[0].changed
    shared = [
        f"{name} {setting(pair[1])}"
        for name, pair in first.items()
        if all(name in t.changed and t.changed[name][1] == pair[1] for t in trials)
    ]
    if not shared:
        return "nothing in common" if len(trials) > 1 else "same as today"
    return ", ".join(shared)


def _boundary(view: StudyView, failed: Sequence[TrialView]) -> str:
    """Dead ends, and numeric knobs whose failed values all lie beyond all values that ran."""
    own = {trial.number for trial in failed}
    dead = [end.sentence for end in view.dead_ends if own & {end.below, end.above}]
    ran = [trial for trial in view.searched if trial.record.state == "measured"]
    found = []
    for name in sorted({name for trial in failed for name in trial.changed}):
        bad, good = _numbers(failed, name), _numbers(ran, name)
        if len(bad) < len(failed) or not good:
            continue
        if min(bad) > max(good):
            found.append(f"{name}: {max(good):g} ran, {min(bad):g} failed")
        elif max(bad) < min(good):
            found.append(f"{name}: {min(good):g} ran, {max(bad):g} failed")
    return "; ".join([*dead, *found]) or "none found"


def _numbers(trials: Sequence[TrialView], name: str) -> list[float]:
    values = [trial.record.params.get(name) for trial in trials]
    return [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
