"""The baseline beside the best: every metric, its change, its limits and whether they were shown.

The goal's own numbers come from the verdict; the others are computed here in the same way, from the
same paired launches, so that no two places of the report can disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from autotune.measure.comparison import Change, ConfirmPair, change_of
from autotune.measure.quantiles import wilson_interval
from autotune.report.numbers import Scale, place_beside
from autotune.report.several_words import finalist_shown
from autotune.report.view import StudyView, TrialView, metric_of
from autotune.spec.vocabulary import METRICS, MetricName
from autotune.study.record import TrialRecord

Interval = tuple[float | None, float | None]
LimitStanding = Literal["holds", "not_shown", "broken", "unknown"]
Group = Literal["goal", "limits", "other latency", "throughput", "server", "GPU", "start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the comparison: the launches it rests on, all of the same settings.

    Several launches are the confirmation pairs; one is a single trial.
    """

    trials: tuple[TrialView, ...]

    def value(self, metric: MetricName) -> float | None:
        """Mean over launches in base units (geometric where all are positive), or None."""
        values = [trial.metric(metric) for trial in self.trials]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        if min(known) > 0:
            return math.exp(math.fsum(math.log(value) for value in known) / len(known))
        return math.fsum(known) / len(known)

    def interval(self, metric: MetricName) -> Interval | None:
        """The lowest and highest end of the 95 % intervals within each launch, or None."""
        if metric.name == "success_rate":
            return self._success()
        pairs = [trial.interval(metric) for trial in self.trials]
        known = [pair for pair in pairs if pair is not None]
        if not known or len(known) < len(pairs):
            return None
        lows = [low for low, _ in known if low is not None]
        highs = [high for _, high in known if high is not None]
        return (
            min(lows) if len(lows) == len(known) else None,
            max(highs) if len(highs) == len(known) else None,
        )

    def unbounded(self, metric: MetricName) -> bool:
        """Whether failures leave the metric without a finite value in any launch."""
        return any(trial.is_unbounded(metric) for trial in self.trials)

    @property
    def requests(self) -> tuple[int, int]:
        """(planned, failed) requests over all launches."""
        measured = [trial.measurement for trial in self.trials if trial.measurement]
        return sum(m.planned for m in measured), sum(m.failed for m in measured)

    def _success(self) -> Interval | None:
        planned, failed = self.requests
        return success_interval(planned, failed) if planned else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """A limit against one side. Values in base units; `limit` None where it could not be resolved.

    `met` is the observed value's word, `standing` that of the interval: `holds` if all of it is
    inside, `broken` if all of it is outside, else `not_shown`.
    """

    text: str
    metric: MetricName | None
    upper: bool
    limit: float | None
    value: float | None
    interval: Interval | None
    unbounded: bool
    met: bool | None
    standing: LimitStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric of the comparison. `new` is None while there is nothing to compare with."""

    metric: MetricName
    group: Group
    today: float | None
    new: float | None
    today_interval: Interval | None
    new_interval: Interval | None
    change: Change | None
    limits: tuple[LimitState, ...] = ()


def success_interval(planned: int, failed: int) -> Interval:
    """95 % bounds of a success share over launches: rule of three without failures, else Wilson.

    Source of the rule of three (1 - 3/n, one-sided): Hanley and Lippman-Hand, 1983.
    """
    if failed == 0:
        return max(0.0, 1.0 - 3.0 / planned), 1.0
    return wilson_interval(planned - failed, planned)


def sides(view: StudyView) -> tuple[Side | None, Side | None]:
    """The baseline's launches and the rival's: confirmation pairs if there are any, else trials."""
    if view.verdict is not None and view.verdict.pairs:
        today = [view.trial(pair.baseline_trial) for pair in view.verdict.pairs]
        new = [view.trial(pair.best_trial) for pair in view.verdict.pairs]
        whole = [(a, b) for a, b in zip(today, new, strict=True) if _measured(a) and _measured(b)]
        if whole:
            return (
                Side(trials=tuple(a for a, _ in whole if a)),
                Side(trials=tuple(b for _, b in whole if b)),
            )
    baseline, rival = view.baseline, view.rival
    return (
        Side(trials=(baseline,)) if _measured(baseline) and baseline else None,
        Side(trials=(rival,)) if _measured(rival) and rival else None,
    )


def _measured(trial: TrialView | None) -> bool:
    return trial is not None and trial.measurement is not None


def goal_change(view: StudyView) -> Change | None:
    """The change of the first objective: the verdict's, or before it the one of two launches."""
    if view.verdict is not None and view.verdict.change is not None:
        return view.verdict.change
    today, new = goal_values(view)
    if today is None or new is None or today <= 0 or new <= 0:
        return None
    return Change(ratio=new / today)


def goal_values(view: StudyView) -> tuple[float | None, float | None]:
    """(baseline, rival) of the first objective in base units, as the verdict has them.

    A verdict that keeps the baseline names the baseline its best; the rival's value is then the
    one of its own launch.
    """
    verdict, baseline, rival = view.verdict, view.baseline, view.rival
    kept = baseline is not None and verdict is not None and verdict.best == baseline.number
    if (
        verdict is not None
        and (verdict.pairs or not kept)
        and verdict.baseline_value is not None
        and verdict.best_value is not None
    ):
        return verdict.baseline_value, verdict.best_value
    return view.goal(baseline) if baseline else None, view.goal(rival) if rival else None


def limit_states(view: StudyView, side: Side | None) -> tuple[LimitState, ...]:
    """Every limit of the study against one side, in the order of the study file."""
    record = side.trials[0].record if side else None
    known = record or (view.baseline.record if view.baseline else None)
    return tuple(_limit_state(text, side, known) for text in view.constraints)


def _limit_state(text: str, side: Side | None, record: TrialRecord | None) -> LimitState:
    metric = metric_of(text)
    upper = "<=" in text
    limit = record.limits.get(text) if record else None
    value = side.value(metric) if side and metric else None
    interval = side.interval(metric) if side and metric else None
    unbounded = bool(side and metric and side.unbounded(metric))
    if value is None and not unbounded and record and limit is not None:
        value = _value_of_violation(record.constraints.get(text), limit, upper=upper)
    met = None
    if unbounded:
        met = False
    elif value is not None and limit is not None:
        met = value <= limit if upper else value >= limit
    standing = _standing(limit, interval, upper=upper, met=met, unbounded=unbounded)
    return LimitState(
        text=text,
        metric=metric,
        upper=upper,
        limit=limit,
        value=value,
        interval=interval,
        unbounded=unbounded,
        met=met,
        standing=standing,
    )


def _value_of_violation(violation: float | None, limit: float, *, upper: bool) -> float | None:
    if violation is None:
        return None
    return limit + violation * abs(limit) * (1 if upper else -1)


def _standing(
    limit: float | None,
    interval: Interval | None,
    *,
    upper: bool,
    met: bool | None,
    unbounded: bool,
) -> LimitStanding:
    if met is None or limit is None:
        return "broken" if unbounded else "unknown"
    if unbounded:
        return "broken"
    low, high = interval or (None, None)
    inner, outer = (high, low) if upper else (low, high)
    if inner is not None and met and (inner <= limit if upper else inner >= limit):
        return "holds"
    if outer is not None and not met and (outer > limit if upper else outer < limit):
        return "broken"
    return "not_shown"


def compare(view: StudyView) -> list[Row]:
    """All metrics that either side has, in the order goal, limits, then by group."""
    today, new = sides(view)
    states = limit_states(view, new or today)
    limited = {state.metric.name for state in states if state.metric}
    rows = []
    for metric in METRICS.values():
        row = _row(view, metric, today, new)
        if row is None:
            continue
        own = tuple(state for state in states if state.metric == metric)
        is_goal = any(metric == metric_of(text) for text in view.objectives)
        group = "goal" if is_goal else "limits" if metric.name in limited else _group(metric)
        rows.append(
            Row(
                metric=metric,
                group=group,
                today=row.today,
                new=row.new,
                today_interval=row.today_interval,
                new_interval=row.new_interval,
                change=row.change,
                limits=own,
            )
        )
    order = list(get_args(Group))
    return sorted(rows, key=lambda row: (order.index(row.group), row.metric != view.metric))


def _row(view: StudyView, metric: MetricName, today: Side | None, new: Side | None) -> Row | None:
    a = today.value(metric) if today else None
    b = new.value(metric) if new else None
    change = None
    if metric == view.metric:
        a, b = goal_values(view)
        change = goal_change(view)
    elif today and new and a is not None and b is not None:
        change = _goal_beside(view, metric) or _change(metric, today, new)
    if a is None and b is None:
        return None
    return Row(
        metric=metric,
        group="goal",
        today=a,
        new=b,
        today_interval=today.interval(metric) if today else None,
        new_interval=new.interval(metric) if new else None,
        change=change,
    )


def row_place(row: Row, scale: Scale) -> int | None:
    """The decimal place at which both values of a row are written."""
    change = None if row.change is None else (row.change.low, row.change.high)
    return place_beside(row.today, scale, (row.today_interval, row.new_interval), change)


def _goal_beside(view: StudyView, metric: MetricName) -> Change | None:
    """The change of another objective than the first, as the verdict has it."""
    finalist = finalist_shown(view)
    texts = [text for text in view.objectives[1:] if metric_of(text) == metric]
    return finalist.changes.get(texts[0]) if finalist is not None and texts else None


def _change(metric: MetricName, today: Side, new: Side) -> Change | None:
    """The change of one metric over the same pairs as the goal's."""
    return change_of(
        [
            ConfirmPair(
                pair=index,
                baseline_trial=a.number,
                best_trial=b.number,
                baseline_value=a.metric(metric),
                best_value=b.metric(metric),
            )
            for index, (a, b) in enumerate(zip(today.trials, new.trials, strict=True))
        ]
    )


def _group(metric: MetricName) -> Group:
    if metric.name == "startup_seconds":
        return "start"
    if metric.unit in {"bytes", "watts", "joules"}:
        return "GPU"
    if metric.family in {"ttft", "ttft_service", "tpot", "e2e", "chunk_gap"}:
        return "other latency"
    if metric.unit in {"per_s", "tokens_per_s"} or metric.name == "success_rate":
        return "throughput"
    return "server"
