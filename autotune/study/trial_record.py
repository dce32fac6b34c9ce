"""The record of an outcome: the only place where outcomes become files."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autotune.canonical import Json
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import (
    Infeasible,
    Measured,
    Outcome,
    Score,
    Stopped,
    Unmeasurable,
)
from autotune.study.record import State, TrialRecord
from autotune.study.task import TrialTask

FAULTS = {"environment": "environment", "foreign_server": "environment", "budget_ended": None}
"""Reason of an unmeasurable trial -> whose fault it is; any other is our client's."""


def record_of(
    task: TrialTask,
    outcome: Outcome,
    started_at: str,
    seconds: Mapping[str, float],
    *,
    simulated: bool,
    memory: Mapping[str, Json] = MappingProxyType({}),
) -> TrialRecord:
    """What is kept of a trial that ended this way."""
    state: State
    score: Score | None = None
    details: dict[str, Json] = {}
    validity: str | None = None
    quality: Mapping[str, Json] = {}
    repeats: tuple[Mapping[str, float], ...] = ()
    match outcome:
        case Measured(measurement=measurement, score=score, repeats=further, quality=quality):
            state, validity = "measured", measurement.validity.verdict
            repeats = tuple(dict(one.values) for one in further)
            details = {"message": "; ".join(measurement.validity.reasons) or None}
        case Infeasible(diagnosis=d, score=score, stopped=stopped, quality=quality):
            # An unknown failure says nothing for certain; it is kept apart from real verdicts.
            state = "infeasible" if d.fault in ("candidate", "study") else "unmeasurable"
            details = {
                "fault": d.fault, "reason": d.reason, "phase": d.phase, "remedy": d.remedy,
                "message": d.message, "evidence": tuple(d.evidence), "facts": dict(d.facts),
                "stopped_early": {} if stopped is None else stopped.to_json(),
            }  # fmt: skip
        case Unmeasurable(reason=reason, message=message, measurement=measurement):
            state = "unmeasurable"
            details = {"fault": FAULTS.get(reason, "tool"), "reason": reason, "message": message}
            validity = _verdict(measurement)
        case Stopped(message=message):
            state, details = "interrupted", {"reason": "interrupted", "message": message}
    return TrialRecord(
        number=task.number,
        role=task.role,
        state=state,
        params=dict(task.candidate.params),
        values=dict(score.values) if score and state == "measured" else {},
        constraints=dict(score.violations) if score else {},
        limits=dict(score.limits) if score else {},
        cautious=dict(score.cautious) if score else {},
        observed=dict(score.observed) if score else {},
        feasible=state == "measured" and score is not None and score.feasible,
        pair=task.pair,
        why=task.why,
        predicted=dict(task.predicted),
        validity=validity,
        repeats=repeats,
        started_at=started_at,
        seconds=dict(seconds),
        simulated=simulated,
        memory=memory,
        quality=dict(quality),
        **details,
    )


def _verdict(measurement: Measurement | None) -> str | None:
    return None if measurement is None else measurement.validity.verdict
