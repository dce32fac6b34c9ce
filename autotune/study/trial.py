"""One trial: plan, launch, wait, warm up, replay, stop, judge, and write the folder."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.engine import Diagnosis, ExitInfo, Phase
from autotune.engines.plan import Deployment, LaunchPlan
from autotune.errors import EnvironmentFault, Interrupted
from autotune.launch.launcher import RunningServer, Ticket
from autotune.launch.readiness import NotReady, log_tail, wait_ready
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import (
    Infeasible,
    Measured,
    Outcome,
    Score,
    Stopped,
    Unmeasurable,
)
from autotune.space.candidate import Candidate
from autotune.study.directory import StudyDirectory, write_json, write_text
from autotune.study.measuring import Measurer
from autotune.study.prepare import PreparedStudy
from autotune.study.record import Role, State, TrialRecord
from autotune.study.stream import EventStream

LOG_LINES_FOR_DIAGNOSIS = 4000
"""A root cause may stand far above the last line; 4,000 lines is a few hundred kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What one trial shall do. Plain values, so that another process could do it.

    `held_out`: replay the held-out window instead of the search window. `baseline`: metrics that
    relative limits refer to (None: this trial is its own reference). `deadline_s`: seconds the
    trial may take in all.
    """

    number: int
    role: Role
    candidate: Candidate
    pair: int | None = None
    held_out: bool = False
    baseline: Mapping[str, float | None] | None = None
    deadline_s: float | None = None


@dataclass(slots=True)
class PhaseClock:
    """Times the phases of a trial and announces them with what earlier trials took."""

    events: EventStream
    clock: Clock
    history: dict[str, list[float]]
    trial: int
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str, expected_s: float | None = None) -> Iterator[None]:
        """Run one phase; its duration counts even when it fails."""
        earlier = self.history.setdefault(name, [])
        if expected_s is None and earlier:
            expected_s = statistics.median(earlier)
        self.events.emit("phase", trial=self.trial, phase=name, expected_s=expected_s)
        started = self.clock.monotonic()
        completed = False
        try:
            yield
            completed = True
        finally:
            self.seconds[name] = round(
                self.seconds.get(name, 0.0) + self.clock.monotonic() - started, 3
            )
            if completed:
                earlier.append(self.seconds[name])


class TrialExecutor:
    """Runs trials of one study, one after another."""

    def __init__(
        self,
        study: PreparedStudy,
        directory: StudyDirectory,
        events: EventStream,
        *,
        clock: Clock,
        stop: StopSignal,
        render_script: Callable[[LaunchPlan, int], str],
    ) -> None:
        self._study = study
        self._directory = directory
        self._events = events
        self._clock = clock
        self._stop = stop
        self._render_script = render_script
        self._measurer = Measurer(study.measure, clock=clock, stop=stop)
        self._history: dict[str, list[float]] = {}

    def run(self, task: TrialTask) -> tuple[TrialRecord, Outcome]:
        """Run one trial and write its folder.

        Raises Interrupted when the user stops (the trial is closed as interrupted first) and
        EnvironmentFault when something of ours could not be removed (the result is kept).
        """
        self._stop.check()
        started_at = self._clock.utcnow().isoformat(timespec="seconds")
        began = self._clock.monotonic()
        folder = self._directory.open_trial(task.number)
        phases = PhaseClock(self._events, self._clock, self._history, task.number)
        self._events.emit(
            "trial_started",
            trial=task.number,
            role=task.role,
            params=dict(task.candidate.params),
            changed={
                name: list(pair)
                for name, pair in task.candidate.changed_from(self._study.baseline).items()
            },
        )
        left: EnvironmentFault | None = None
        interrupted: Interrupted | None = None
        outcome: Outcome
        try:
            outcome = self._attempt(task, folder, phases)
        except Interrupted as stop:
            interrupted, outcome = stop, Stopped()
        except LeftBehindError as fault:
            left, outcome = fault.fault, fault.outcome
        except EnvironmentFault as fault:
            outcome = Unmeasurable(reason="environment", message=fault.message)
            left = fault if task.role == "baseline" else None
        phases.seconds["total"] = round(self._clock.monotonic() - began, 3)
        record = record_of(
            task, outcome, started_at, phases.seconds, simulated=self._study.engine.simulated
        )
        if isinstance(outcome, Measured | Unmeasurable) and outcome.measurement is not None:
            write_json(folder / "measurement.json", outcome.measurement.to_json())
        self._directory.close_trial(folder, record)
        self._announce(record, outcome)
        if interrupted is not None:
            raise interrupted
        if left is not None:
            raise left
        return record, outcome

    def _announce(self, record: TrialRecord, outcome: Outcome) -> None:
        headline: dict[str, Json] = {}
        if isinstance(outcome, Measured):
            headline = {
                key: value
                for key, value in outcome.measurement.metrics.items()
                if value is not None
            }
        self._events.emit("trial_finished", **record.to_json(), metrics=headline)

    def _attempt(self, task: TrialTask, folder: Path, phases: PhaseClock) -> Outcome:
        plan = self._study.engine.plan(task.candidate, self._study.target)
        write_json(folder / "plan.json", Deployment(members=(plan,)).to_json())
        write_text(folder / "launch.sh", self._render_script(plan, task.number), mode=0o755)
        ticket = Ticket(study_id=self._study.study_id, trial=task.number, directory=folder)
        server: RunningServer | None = None
        outcome: Outcome | None = None
        try:
            with phases.phase("launching"):
                server = self._study.launcher.start(plan, ticket)
                startup_s = self._ready(server, task)
            outcome = self._measure(task, server, startup_s, folder, phases)
        except NotReady as failure:
            outcome = self._not_ready(failure, server)
        finally:
            if server is not None:
                with phases.phase("stopping"):
                    self._end(server, outcome)
        return outcome

    def _ready(self, server: RunningServer, task: TrialTask) -> float:
        timeout_s = self._study.spec.engine.startup_timeout
        if task.deadline_s is not None:
            timeout_s = min(timeout_s, task.deadline_s)
        return wait_ready(
            server,
            timeout_s=timeout_s,
            clock=self._clock,
            stop=self._stop,
            phase_of=self._study.startup_phase,
            on_phase=lambda phase: self._events.emit(
                "phase", trial=task.number, phase="launching", detail=phase
            ),
        )

    def _measure(
        self,
        task: TrialTask,
        server: RunningServer,
        startup_s: float,
        folder: Path,
        phases: PhaseClock,
    ) -> Outcome:
        held_out = self._study.held_out if task.held_out else None
        session = self._measurer.session(
            server,
            held_out or self._study.search_trace,
            folder,
            startup_s,
            salt=f"{self._study.study_id}-{task.number}",
            held_out=held_out is not None,
        )
        with phases.phase("warming"):
            session.warm_up()
        with phases.phase("replaying", expected_s=session.expected_s):
            result = session.replay(
                deadline_s=task.deadline_s,
                on_progress=lambda progress: self._events.progress(task.number, progress),
            )
        if result.aborted == "server_died":
            return self._died(server)
        with phases.phase("scoring"):
            return session.judge(result, baseline=task.baseline)

    def _not_ready(self, failure: NotReady, server: RunningServer | None) -> Outcome:
        if failure.kind == "foreign":
            return Unmeasurable(reason="foreign_server", message=str(failure))
        log = _log(server)
        if failure.kind == "timeout":
            limit = self._study.spec.engine.startup_timeout
            return Infeasible(
                diagnosis=Diagnosis(
                    fault="candidate",
                    phase="startup",
                    reason="not_ready_in_time",
                    remedy=None,
                    message=f"not ready within {limit:g} s",
                    evidence=tuple(log[-3:]),
                )
            )
        return self._classified(log, failure.exit_info, "startup")

    def _died(self, server: RunningServer) -> Outcome:
        return self._classified(_log(server), server.poll(), "load")

    def _classified(self, log: Sequence[str], exit_info: ExitInfo | None, phase: Phase) -> Outcome:
        # A start that dies in argument parsing is phase "arguments": the engine's table knows.
        diagnosis = self._study.engine.diagnose(
            log, exit_info, None if phase == "startup" else phase
        )
        return Infeasible(diagnosis=diagnosis)

    @staticmethod
    def _end(server: RunningServer, outcome: Outcome | None) -> None:
        """Stop the server. A result that exists already is not lost when something survives."""
        try:
            server.stop()
        except EnvironmentFault as fault:
            if outcome is None:
                raise
            raise LeftBehindError(fault, outcome) from fault


class LeftBehindError(Exception):
    """Something of ours survived its end, after the trial already had an outcome."""

    def __init__(self, fault: EnvironmentFault, outcome: Outcome) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.outcome = outcome


def _log(server: RunningServer | None) -> list[str]:
    if server is None or server.log_path is None:
        return []
    return log_tail(server.log_path, LOG_LINES_FOR_DIAGNOSIS)


def record_of(
    task: TrialTask,
    outcome: Outcome,
    started_at: str,
    seconds: Mapping[str, float],
    *,
    simulated: bool,
) -> TrialRecord:
    """The record of an outcome: the only place where outcomes become files."""
    state: State
    score: Score | None = None
    details: dict[str, Json] = {}
    validity: str | None = None
    match outcome:
        case Measured(measurement=measurement, score=score):
            state, validity = "measured", measurement.validity.verdict
            details = {"message": "; ".join(measurement.validity.reasons) or None}
        case Infeasible(diagnosis=d):
            # An unknown failure says nothing for certain; it is kept apart from real verdicts.
            state = "infeasible" if d.fault in ("candidate", "study") else "unmeasurable"
            details = {
                "fault": d.fault, "reason": d.reason, "phase": d.phase, "remedy": d.remedy,
                "message": d.message, "evidence": tuple(d.evidence),
            }  # fmt: skip
        case Unmeasurable(reason=reason, message=message, measurement=measurement):
            state = "unmeasurable"
            fault = "environment" if reason in ("environment", "foreign_server") else "tool"
            details = {"fault": fault, "reason": reason, "message": message}
            validity = _verdict(measurement)
        case Stopped(message=message):
            state, details = "interrupted", {"reason": "interrupted", "message": message}
    return TrialRecord(
        number=task.number,
        role=task.role,
        state=state,
        params=dict(task.candidate.params),
        values=dict(score.values) if score else {},
        constraints=dict(score.violations) if score else {},
        limits=dict(score.limits) if score else {},
        feasible=score is not None and score.feasible,
        pair=task.pair,
        validity=validity,
        started_at=started_at,
        seconds=dict(seconds),
        simulated=simulated,
        **details,
    )


def _verdict(measurement: Measurement | None) -> str | None:
    return None if measurement is None else measurement.validity.verdict
