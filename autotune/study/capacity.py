"""The capacity of one running server: replays at other rates until the highest one that meets the
limits is known. Which rates, decides `search/capacity.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from autotune.canonical import Json
from autotune.clock import Clock
from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import (
    CANNOT_BEAT_BEST,
    EarlyEnd,
    Infeasible,
    Measured,
    Outcome,
    Score,
    Unmeasurable,
)
from autotune.measure.scoring import violation
from autotune.search.capacity import (
    CLOSE,
    RESOLUTION,
    CapacityFound,
    Step,
    find_capacity,
    multiplier_of,
    rung_of,
)
from autotune.spec.expressions import Constraint, Objective
from autotune.study.directory import write_json
from autotune.study.measuring import LEAD_S, MeasureSession
from autotune.study.prepare import PreparedStudy
from autotune.study.task import TrialTask
from autotune.workload.trace import Trace

FILE = "capacity.json"
RECORDED = 1.0
LEAST_SUCCESS = 0.99
"""Without a limit on `success_rate` a rate holds only if so many of its requests succeed."""
USUAL_STEPS = 6
"""Replays of a launch, for estimates made before any: most take fewer, and shorter ones."""
AT_THE_EDGE = "a capacity is where the observed values reach the limits"
NOT_HELD = "no_capacity"
"""Reason of a trial that met the limits at no rate."""

Other = TypeVar("Other")


def searched_objective(objectives: Sequence[Objective]) -> Objective | None:
    """The study's capacity objective, if it has one."""
    return next((o for o in objectives if o.metric.searched), None)


def usual_replay_s(trace: Trace, objectives: Sequence[Objective]) -> float:
    """Seconds of replay per launch, as far as they can be told beforehand: an upper estimate for a
    search for the capacity.
    """
    replays = 1 if searched_objective(objectives) is None else USUAL_STEPS
    return replays * (trace.duration_s + LEAD_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityTask:
    """Where to look. `start`: the first multiplier. `to_beat`: the best capacity so far; None: this
    one is wanted exactly. `baseline`: the metrics that relative limits refer to, None: its own.
    `recorded_rate`: replay at the recorded rate too, for limits that refer to this launch.
    """

    start: float = RECORDED
    stride: float | None = None
    to_beat: float | None = None
    baseline: Mapping[str, float | None] | None = None
    recorded_rate: bool = False


def capacity_task(task: TrialTask, study: PreparedStudy) -> CapacityTask:
    """Where a trial's search begins: at what its settings held before, else at what the best holds
    ("can it hold that?"), else at the recorded rate.
    """
    own = study.relative_limits and task.candidate == study.baseline
    if task.seen is not None:
        return CapacityTask(
            start=task.seen, stride=CLOSE, baseline=task.baseline, recorded_rate=own
        )
    return CapacityTask(
        start=RECORDED if task.to_beat is None else task.to_beat,
        to_beat=task.to_beat,
        baseline=task.baseline,
        recorded_rate=own,
    )


class _HaltedError(Exception):
    """A replay ended in something that is no measurement: so does the launch."""

    def __init__(self, result: object) -> None:
        super().__init__()
        self.result = result


@dataclass(slots=True, kw_only=True)
class CapacitySearch(Generic[Other]):
    """Searches one server that is up.

    `session`: a measurement at a multiplier, in a folder, with a number that makes its cache state
    its own. `visit`: carries it out and judges it by the given baseline; True: to its end, even if
    it cannot meet the limits. What `visit` returns that is no outcome (the server died) is returned
    as it is. `folder` gets the records of the replay that counts, and `capacity.json`. `left_s`:
    seconds until everything must be over, None without a limit. `on_step`: told before a replay
    at which rate it is, in words.
    """

    objective: Objective
    constraints: Sequence[Constraint]
    window_s: float
    folder: Path
    clock: Clock
    session: Callable[[float, Path, int], MeasureSession]
    visit: Callable[[MeasureSession, Mapping[str, float | None] | None, bool], Outcome | Other]
    left_s: Callable[[], float | None]
    on_step: Callable[[str], None] = lambda words: None
    _results: dict[float, tuple[Step, Outcome, Path]] = field(default_factory=dict)
    _reference: Mapping[str, float | None] | None = None
    _around_s: float = 0.0
    _saved_s: float = 0.0

    def run(self, task: CapacityTask) -> Outcome | Other:
        """The measurement at the capacity, with `capacity` among its metrics; or why there is none.

        Infeasible `no_capacity` where no rate meets the limits, `cannot_beat_best` where the rates
        near the best capacity do not; Unmeasurable as the replays were, or where time was too
        short.
        """
        self._reference = task.baseline
        kept: Path | None = None
        try:
            if task.recorded_rate:
                first = self._replayed(RECORDED, whole=True)
                if not isinstance(first, Measured):
                    return first
                if task.baseline is None:
                    self._reference = first.measurement.metrics
            found = find_capacity(
                self._step,
                start=task.start,
                stride=task.stride,
                to_beat=task.to_beat,
                may_step=self._has_time,
            )
            outcome, kept = self._outcome(found, task)
            write_json(self.folder / FILE, self._facts(found, task))
            return outcome
        except _HaltedError as halt:
            result: Outcome | Other = halt.result  # type: ignore[assignment]
            return result
        finally:
            self._tidy(kept)

    def _step(self, multiplier: float) -> Step:
        if multiplier not in self._results:
            self._replayed(multiplier, whole=False)
        return self._results[multiplier][0]

    def _replayed(self, multiplier: float, *, whole: bool) -> Outcome:
        self.on_step(self._words(multiplier))
        folder = self.folder / "steps" / f"{len(self._results) + 1:02d}"
        folder.mkdir(parents=True)
        session = self.session(multiplier, folder, len(self._results) + 1)
        # What the warm-up did for the kernels is done; the cache is warmed for each replay
        if self._results:
            session.settings = replace(session.settings, warmup=0)
        session.settings = replace(session.settings, objectives=())
        began = self.clock.monotonic()
        result = self.visit(session, self._reference, whole)
        if not isinstance(result, Measured | Infeasible | Unmeasurable):
            raise _HaltedError(result)
        seconds = self.clock.monotonic() - began
        self._around_s = max(self._around_s, seconds - self.window_s / multiplier)
        step = self._judged(multiplier, result, seconds)
        self._results[multiplier] = step, result, folder
        return result

    def _words(self, multiplier: float) -> str:
        now = f"at {multiplier:.3g}x the recorded rate"
        if not self._results:
            return now
        last = list(self._results.values())[-1][0]
        ends = {True: "held", False: "missed a limit", None: "told nothing"}
        return f"{now} ({last.multiplier:.3g}x {ends[last.met]})"

    def _judged(self, multiplier: float, result: Outcome, seconds: float) -> Step:
        met: bool | None = None
        worst = None
        if isinstance(result, Measured):
            worst = max(result.score.violations.values(), default=None)
            met = result.score.feasible and self._answers(result.measurement)
        elif isinstance(result, Infeasible):
            self._saved_s += 0.0 if result.stopped is None else result.stopped.saved_s
            met, worst = False, max(result.violations.values(), default=None)
        return Step(multiplier=multiplier, met=met, worst=worst, seconds=seconds)

    def _answers(self, measurement: Measurement) -> bool:
        """Whether so many requests succeed as is wanted without a word about it."""
        if any(c.metric.name == "success_rate" for c in self.constraints):
            return True
        return measurement.ok >= LEAST_SUCCESS * measurement.planned

    def _has_time(self, multiplier: float) -> bool:
        left = self.left_s()
        if left is None or multiplier in self._results:
            return True
        return left >= self.window_s / multiplier + LEAD_S + max(0.0, self._around_s)

    def _outcome(self, found: CapacityFound, task: CapacityTask) -> tuple[Outcome, Path | None]:
        """(the outcome, the folder of the replay that it is about)."""
        if found.capacity is not None:
            _, result, folder = self._results[found.capacity]
            assert isinstance(result, Measured)
            return self._value(found, result), folder
        if not found.steps:
            message = "the time ended before a replay at any rate could be made"
            return Unmeasurable(reason="budget_ended", message=message), None
        last, result, folder = self._results[found.steps[-1].multiplier]
        if isinstance(result, Unmeasurable):
            return result, folder
        return self._none(found, task, last, result), folder

    def _value(self, found: CapacityFound, kept: Measured) -> Measured:
        key = self.objective.metric.key
        assert found.capacity is not None
        measurement = replace(
            kept.measurement,
            metrics={**kept.measurement.metrics, key: found.capacity},
            intervals={**kept.measurement.intervals, key: (found.capacity, found.failed_at)},
            context={**kept.measurement.context, "rate_multiplier": found.capacity},
            recorded_rate=self._at_recorded_rate(),
        )
        score = replace(
            kept.score,
            values={self.objective.text: found.capacity},
            # An interval at the edge of a limit reaches across it in every launch
            cautious={},
            observed=dict.fromkeys(kept.score.limits, AT_THE_EDGE),
        )
        return Measured(measurement=measurement, score=score)

    def _at_recorded_rate(self) -> Mapping[str, float | None] | None:
        if RECORDED not in self._results or not any(c.relative for c in self.constraints):
            return None
        result = self._results[RECORDED][1]
        return result.measurement.metrics if isinstance(result, Measured) else None

    def _none(
        self, found: CapacityFound, task: CapacityTask, last: Step, result: Outcome
    ) -> Outcome:
        assert isinstance(result, Measured | Infeasible)
        lost = self._lost(found, task, last, result)
        if found.ended == "time" and lost is None:
            message = f"the time ended after {last.multiplier:g} times the recorded rate"
            return Unmeasurable(reason="budget_ended", message=message)
        score = result.score
        if score is not None:
            score = None if lost else replace(score, values={})
        against = f"; the best so far holds {task.to_beat:g} times" if lost else ""
        return Infeasible(
            diagnosis=Diagnosis(
                fault="candidate",
                phase="load",
                reason=CANNOT_BEAT_BEST if lost else NOT_HELD,
                remedy=None,
                message=f"{last.multiplier:g} times the recorded rate misses a limit{against}",
                evidence=_broken(result.score),
            ),
            measurement=result.measurement,
            score=score,
            stopped=lost,
        )

    def _lost(
        self, found: CapacityFound, task: CapacityTask, last: Step, result: Measured | Infeasible
    ) -> EarlyEnd | None:
        """That what was to be beaten failed here, or a rate below it; None if neither was so."""
        if task.to_beat is None or found.failed_at is None:
            return None
        if rung_of(found.failed_at) > rung_of(task.to_beat):
            return None
        most = multiplier_of(rung_of(found.failed_at) - 1)
        planned = 0 if result.measurement is None else result.measurement.planned
        return EarlyEnd(
            rule="cannot_beat_best",
            target=self.objective.text,
            key=CANNOT_BEAT_BEST,
            limit=task.to_beat,
            best=most,
            seen=None,
            violation=violation(most, ">=", task.to_beat),
            planned=planned,
            ended=planned,
            over=None,
            needed=None,
            at_s=last.seconds,
            last_due_s=self.window_s / last.multiplier,
            saved_s=self._saved_s,
        )

    def _facts(self, found: CapacityFound, task: CapacityTask) -> dict[str, Json]:
        return {
            "capacity": found.capacity,
            "failed_at": found.failed_at,
            "ended": found.ended,
            "resolution": RESOLUTION,
            "start": task.start,
            "to_beat": task.to_beat,
            "saved_s": round(self._saved_s, 3),
            "steps": [step.to_json() for step, _, _ in self._results.values()],
        }

    def _tidy(self, kept: Path | None) -> None:
        """Keep the records of the replay that counts, else of the last one."""
        folders = [folder for _, _, folder in self._results.values()]
        steps = self.folder / "steps"
        source = kept or (max(steps.iterdir(), default=None) if steps.is_dir() else None)
        if source is not None and source.is_dir():
            for path in source.iterdir():
                if path.is_file():
                    path.replace(self.folder / path.name)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(steps, ignore_errors=True)


def _broken(score: Score | None) -> tuple[str, ...]:
    if score is None:
        return ()
    return tuple(f"{text}: missed by {by:.0%}" for text, by in score.violations.items() if by > 0)
