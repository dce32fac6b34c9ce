"""Which finished trial is the best one: asked here by the command line, the report and the script.

There is one definition, so that no two of them can ever name different winners.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.measure.noise import is_tie
from autotune.search.pareto import front
from autotune.space.candidate import Candidate
from autotune.spec.expressions import Objective
from autotune.study.noise_floor import tie_of
from autotune.study.record import TrialRecord

ROOM = 0.03
"""The best of a search is a lucky launch as a rule: what is worse by no more than this (a log) is
not ended for it. Such replays end late anyway, and what they were to tell is the most worth having.
"""


def objective_text(objective: str | Objective) -> str:
    """The canonical text of an objective, which is its key in `TrialRecord.values`."""
    return objective if isinstance(objective, str) else objective.text


def is_maximized(objective: str | Objective) -> bool:
    """Whether more is better (`maximize goodput`); otherwise less is."""
    return objective_text(objective).split(maxsplit=1)[:1] == ["maximize"]


def objective_value(record: TrialRecord, objectives: Sequence[str | Objective]) -> float | None:
    """A measured trial's value of the first objective in base units, or None if it has none."""
    if record.state != "measured" or not objectives:
        return None
    value = record.values.get(objective_text(objectives[0]))
    return value if value is not None and math.isfinite(value) else None


def costs(record: TrialRecord, objectives: Sequence[str | Objective]) -> tuple[float, ...] | None:
    """A measured trial's objective values, all of them smaller when better; None if one lacks."""
    found = [objective_value(record, [objective]) for objective in objectives]
    known = [value for value in found if value is not None]
    if not objectives or len(known) < len(found):
        return None
    return tuple(
        -value if is_maximized(objective) else value
        for value, objective in zip(known, objectives, strict=True)
    )


def baseline_record(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The baseline's launch that everything is compared with; None while none has finished.

    Trial 0 as a rule. Where that launch gave no verdict (interrupted, or the machine at fault) it
    was repeated: then the first repeat that gave one.
    """
    return min(
        (record for record in records if record.role == "baseline"),
        key=lambda record: (record.state in ("interrupted", "unmeasurable"), record.number),
        default=None,
    )


def failed_again(records: Sequence[TrialRecord]) -> set[Candidate]:
    """Settings that failed when they were launched again: a server that dies in one launch of a few
    is nobody's recommendation, whatever it measured in the others.
    """
    return {r.candidate for r in records if r.is_repeat and r.state == "infeasible"}


def best_trial(
    records: Sequence[TrialRecord],
    objectives: Sequence[str | Objective],
    *,
    tie: float | None = None,
) -> TrialRecord | None:
    """The best trial among finished ones, or None when none is measured and within the limits.

    Only measured, feasible trials of the baseline and the search compete: a confirmation launch is
    a repeat, and the luckiest repeat must not win. One whose settings failed in a later launch is
    out. The first objective decides, among equal values the others in their order; equal trials go
    to the one with fewer knobs changed from the baseline, then to the lower number. `tie`: up to
    which difference of the logs two values of an only objective are equal; None: what the repeated
    measurements of the baseline differ by.
    """
    ordered = _ordered(records, objectives)
    if len(objectives) != 1 or not ordered:
        return next(iter(ordered), None)
    if tie is None:
        tie = tie_of(records, objective_text(objectives[0]))
    (least,) = _costs(ordered[0], objectives)
    tied = [r for r in ordered if is_tie(abs(_costs(r, objectives)[0]), abs(least), tie)]
    baseline = baseline_record(records)
    origin = baseline.candidate if baseline else Candidate({})
    # min keeps the order, so the better of two with as many changes stands
    return min(tied, key=lambda record: len(record.candidate.changed_from(origin)))


def value_to_beat(
    records: Sequence[TrialRecord], objectives: Sequence[str | Objective], finalists: int
) -> float | None:
    """What a further trial of the search has to reach to change anything: the value of the last of
    `finalists` trials that keep the limits for certain and are better than the baseline, with room
    for a tie, and at least `ROOM`; while there are fewer, the baseline's if it keeps the limits. In
    base units; None where nothing is to be beaten yet, or with several objectives.
    """
    if len(objectives) != 1:
        return None
    baseline = baseline_record(records)
    origin = objective_value(baseline, objectives) if baseline and baseline.feasible else None
    text, sign = objective_text(objectives[0]), -1 if is_maximized(objectives[0]) else 1
    found = [r for r in _ordered(records, objectives) if r.role == "search" and r.certain]
    values = [v for r in found if (v := objective_value(r, objectives)) is not None]
    if origin is not None:
        values = [value for value in values if sign * value < sign * origin]
    if len(values) < finalists:
        return origin
    last = values[finalists - 1]
    room = max(tie_of(records, text), ROOM)
    with_tie = last * math.exp(sign * room) if last > 0 else last
    return with_tie if origin is None else sign * min(sign * with_tie, sign * origin)


def pareto_front(
    records: Sequence[TrialRecord], objectives: Sequence[str | Objective]
) -> list[TrialRecord]:
    """The trials that no other beats in every objective, best in the first one first.

    The same trials compete as for `best_trial`, which is the first here. Of trials with equal
    values in all objectives only the one with the fewest changes stands. With one objective that is
    the best trial alone.
    """
    by_costs: dict[tuple[float, ...], TrialRecord] = {}
    for record in _ordered(records, objectives):
        by_costs.setdefault(_costs(record, objectives), record)
    points = list(by_costs)
    return [by_costs[points[index]] for index in front(points)]


def _ordered(
    records: Sequence[TrialRecord], objectives: Sequence[str | Objective]
) -> list[TrialRecord]:
    """What competes, best first."""
    baseline = baseline_record(records)
    origin = baseline.candidate if baseline else Candidate({})
    out = failed_again(records)
    competing = [
        record
        for record in records
        if not record.is_repeat
        and record.feasible
        and record.candidate not in out
        and costs(record, objectives) is not None
    ]

    def order(record: TrialRecord) -> tuple[tuple[float, ...], int, int]:
        changes = len(record.candidate.changed_from(origin))
        return _costs(record, objectives), changes, record.number

    return sorted(competing, key=order)


def _costs(record: TrialRecord, objectives: Sequence[str | Objective]) -> tuple[float, ...]:
    found = costs(record, objectives)
    assert found is not None
    return found


def nearest_to_limits(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Trials that break a limit by a known amount, nearest first (by their worst normalised
    violation). A search for the capacity that found none has its violations at the lowest rate.
    Those whose replay was ended early, of which only a part was seen, come last.
    """
    missed = [
        record
        for record in records
        if not record.is_repeat
        and record.state in ("measured", "infeasible")
        and not record.feasible
        and record.constraints
    ]
    return sorted(
        missed, key=lambda r: (bool(r.stopped_early), max(r.constraints.values()), r.number)
    )
