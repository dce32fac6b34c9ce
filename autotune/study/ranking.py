"""Which finished trial is the best one: asked here by the command line, the report and the script.

There is one definition, so that no two of them can ever name different winners.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.space.candidate import Candidate
from autotune.spec.expressions import Objective
from autotune.study.record import TrialRecord


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
    records: Sequence[TrialRecord], objectives: Sequence[str | Objective]
) -> TrialRecord | None:
    """The best trial among finished ones, or None when none is measured and within the limits.

    Only measured, feasible trials of the baseline and the search compete: a confirmation launch is
    a repeat, and the luckiest repeat must not win. One whose settings failed in a later launch is
    out. The first objective decides; equal values go to
    the trial with fewer knobs changed from the baseline, then to the lower number.
    """
    baseline = baseline_record(records)
    origin = baseline.candidate if baseline else Candidate({})

    def order(record: TrialRecord) -> tuple[float, int, int]:
        value = objective_value(record, objectives)
        assert value is not None
        cost = -value if is_maximized(objectives[0]) else value
        return cost, len(record.candidate.changed_from(origin)), record.number

    out = failed_again(records)
    competing = [
        record
        for record in records
        if not record.is_repeat
        and record.feasible
        and record.candidate not in out
        and objective_value(record, objectives) is not None
    ]
    return min(competing, key=order, default=None)


def nearest_to_limits(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Measured trials that break a limit, nearest first (by their worst normalised violation)."""
    missed = [
        record
        for record in records
        if not record.is_repeat
        and record.state == "measured"
        and not record.feasible
        and record.constraints
    ]
    return sorted(missed, key=lambda record: (max(record.constraints.values()), record.number))
