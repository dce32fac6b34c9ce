"""One trial: plan, launch, wait, warm up, replay, stop, judge, and write the folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.engine import Diagnosis, ExitInfo, Phase
from autotune.engines.memory_log import read_memory
from autotune.engines.plan import Deployment, LaunchPlan
from autotune.engines.redaction import mask
from autotune.errors import (
    AutotuneError,
    EnvironmentFault,
    InputError,
    Interrupted,
    Untrustworthy,
)
from autotune.launch.gpus import memory_used, wait_memory_back
from autotune.launch.launcher import RunningServer, Ticket
from autotune.launch.readiness import NotReady, log_tail, wait_ready
from autotune.launch.server_log import log_head
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import (
    Infeasible,
    Measured,
    Outcome,
    Score,
    Stopped,
    Unmeasurable,
)
from autotune.replay.records import ReplayResult
from autotune.space.candidate import Candidate
from autotune.study.directory import StudyDirectory, write_json, write_text
from autotune.study.measuring import Measurer, MeasureSession
from autotune.study.memory_fit import MemoryFit, memory_block
from autotune.study.phases import PhaseClock, phase_history
from autotune.study.prepare import PreparedStudy
from autotune.study.record import Role, State, TrialRecord
from autotune.study.stream import EventStream
from autotune.study.version_watch import VersionWatch

_FAULTS = {"environment": "environment", "foreign_server": "environment", "budget_ended": None}
"""Reason of an unmeasurable trial -> whose fault it is; any other is our client's."""
LOG_LINES_FOR_DIAGNOSIS = 4000
"""A root cause may stand far above the last line; 4,000 lines is a few hundred kilobytes."""

LOG_LINES_OF_START = 2000
"""Within so many lines an engine has told what its memory went to."""
MEMORY_WAIT_S = 60.0
"""GPU memory of an ended engine comes back late, and is charged to the next one."""

DEATH_WAIT_S = 3.0
"""So long a server that broke answers off is watched for its end before it is judged as alive."""
_LAST_WORDS = frozenset({"refused", "http_5xx", "cut", "in_band_error"})
"""How requests fail at a server that is dying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What one trial shall do. Plain values, so that another process could do it.

    `held_out`: replay the held-out window instead of the search window. `baseline`: metrics that
    relative limits refer to (None: this trial is its own reference). `deadline_s`: seconds from
    its start until its replay must be over. `start_s`: seconds that its start is expected to take.
    """

    number: int
    role: Role
    candidate: Candidate
    pair: int | None = None
    held_out: bool = False
    baseline: Mapping[str, float | None] | None = None
    deadline_s: float | None = None
    start_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A server that ended, or never came up, before there was a measurement."""

    phase: Phase
    exit_info: ExitInfo | None
    failure: NotReady | None = None


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
        fit: MemoryFit | None = None,
    ) -> None:
        self._study = study
        self._directory = directory
        self._events = events
        self._clock = clock
        self._stop = stop
        self._render_script = render_script
        self._fit = fit
        self._measurer = Measurer(study.measure, clock=clock, stop=stop)
        self._history = phase_history(directory)
        self._versions = VersionWatch(study.engine.kind, study.engine_version)
        gpus = study.target.gpus
        self._memory_before = {} if gpus == () else memory_used(gpus)

    def run(self, task: TrialTask) -> tuple[TrialRecord, Outcome]:
        """Run one trial and write its folder.

        Raises Interrupted when the user stops and InputError when what the launch needs is not
        there any more (the trial is closed as interrupted first), EnvironmentFault when something
        of ours could not be removed (the result is kept).
        """
        self._stop.check()
        started_at = self._clock.utcnow().isoformat(timespec="seconds")
        plan = self._study.engine.plan(task.candidate, self._study.target)
        folder = self._directory.open_trial(task.number)
        phases = PhaseClock(self._events, self._clock, self._history, task.number, task.deadline_s)
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
        error: AutotuneError | None = None
        outcome: Outcome
        try:
            outcome = self._attempt(task, plan, folder, phases)
        except (Interrupted, InputError) as stop:
            error, outcome = stop, Stopped(message=stop.message)
        except LeftBehindError as left:
            error, outcome = left.fault, left.outcome
        except EnvironmentFault as fault:
            outcome = Unmeasurable(reason="environment", message=_words(fault))
        except Untrustworthy as fault:
            outcome = Unmeasurable(reason="client_failed", message=_words(fault))
        phases.seconds["total"] = round(phases.elapsed_s, 3)
        record = record_of(
            task, outcome, started_at, phases.seconds, simulated=self._study.engine.simulated,
            memory=self._memory(task, folder / f"{plan.member}.log"),
        )  # fmt: skip
        if not isinstance(outcome, Stopped) and outcome.measurement is not None:
            write_json(folder / "measurement.json", outcome.measurement.to_json())
        self._directory.close_trial(folder, record)
        self._announce(record, outcome)
        if error is not None:
            raise error
        return record, outcome

    def _memory(self, task: TrialTask, log: Path) -> Mapping[str, Json]:
        """What was estimated for the trial, beside what its start-up log said."""
        found = None if self._fit is None else self._fit.estimate(task.candidate)
        head = log_head(log, LOG_LINES_OF_START)
        return memory_block(found, read_memory(head, self._study.engine.kind))

    def _announce(self, record: TrialRecord, outcome: Outcome) -> None:
        headline: dict[str, Json] = {}
        if isinstance(outcome, Measured):
            headline = {
                key: value
                for key, value in outcome.measurement.metrics.items()
                if value is not None
            }
        self._events.emit("trial_finished", **record.to_json(), metrics=headline)

    def _attempt(
        self, task: TrialTask, plan: LaunchPlan, folder: Path, phases: PhaseClock
    ) -> Outcome:
        write_json(folder / "plan.json", Deployment(members=(plan,)).to_json())
        write_text(folder / "launch.sh", self._render_script(plan, task.number), mode=0o755)
        ticket = Ticket(study_id=self._study.study_id, trial=task.number, directory=folder)
        server: RunningServer | None = None
        result: Outcome | Ended | None = None
        if self._memory_before:
            with phases.phase("waiting"):
                wait_memory_back(
                    self._memory_before, timeout_s=MEMORY_WAIT_S, clock=self._clock, stop=self._stop
                )
        try:
            with phases.phase("launching", expected_s=task.start_s):
                server = self._study.launcher.start(plan, ticket)
                startup_s = self._ready(server, task, phases.left_s)
            result = self._measure(task, server, startup_s, folder, phases)
        except NotReady as failure:
            result = Ended(failure=failure, exit_info=failure.exit_info, phase="startup")
        finally:
            if server is not None:
                self._stopped(server, None if isinstance(result, Ended) else result, phases)
        # A log is complete only when its server is gone
        if isinstance(result, Ended):
            return self._explained(result, server, phases.left_s)
        assert result is not None
        return result

    def _ready(self, server: RunningServer, task: TrialTask, left_s: float | None) -> float:
        timeout_s = self._study.spec.engine.startup_timeout
        if left_s is not None:
            timeout_s = min(timeout_s, left_s)
        seconds = wait_ready(
            server,
            timeout_s=timeout_s,
            clock=self._clock,
            stop=self._stop,
            phase_of=self._study.startup_phase,
            on_phase=lambda phase: self._events.emit(
                "phase", trial=task.number, phase="launching", detail=phase
            ),
        )
        if (note := self._versions.look(server.url)) is not None:
            self._events.emit("note", message=note)
        return seconds

    def _measure(
        self,
        task: TrialTask,
        server: RunningServer,
        startup_s: float,
        folder: Path,
        phases: PhaseClock,
    ) -> Outcome | Ended:
        held_out = self._study.held_out if task.held_out else None
        session = self._measurer.session(
            server,
            held_out or self._study.search_trace,
            folder,
            startup_s,
            salt=f"{self._study.study_id}-{task.number}",
            held_out=held_out is not None,
        )
        outcome = self._judged(task, server, session, phases)
        if isinstance(outcome, Unmeasurable) and outcome.measurement is not None:
            again = session.again(outcome.measurement.validity, left_s=phases.left_s)
            if again is not None:
                words = "; ".join(again.repeated_because)
                self._events.emit("note", message=f"trial {task.number} is measured again: {words}")
                outcome = self._judged(task, server, again, phases)
        return outcome

    def _judged(
        self, task: TrialTask, server: RunningServer, session: MeasureSession, phases: PhaseClock
    ) -> Outcome | Ended:
        with phases.phase("warming"):
            session.warm_up()
        with phases.phase("replaying", expected_s=session.expected_s):
            result = session.replay(
                deadline_s=phases.left_s,
                on_progress=lambda progress: self._events.progress(task.number, progress),
            )
        if result.aborted == "server_died" or self._dies(server, result):
            return Ended(exit_info=server.poll(), phase="load")
        with phases.phase("scoring"):
            return session.judge(result, baseline=task.baseline)

    def _dies(self, server: RunningServer, result: ReplayResult) -> bool:
        """Whether the server has ended by itself. One that broke answers off may be about to: an
        API server outlives its engine by seconds, and the replay may be over sooner.
        """
        # Background load is broken off by the client itself, and is never measured
        broken = any(r.measured and r.failure in _LAST_WORDS for r in result.records)
        until = self._clock.monotonic() + (DEATH_WAIT_S if broken else 0.0)
        while (ended := server.poll()) is None and self._clock.monotonic() < until:
            self._clock.sleep(0.05)
        return ended is not None

    def _explained(
        self, ended: Ended, server: RunningServer | None, left_s: float | None
    ) -> Outcome:
        """Why a server never served, or stopped serving."""
        log, failure = _log(server), ended.failure
        kind = "exited" if failure is None else failure.kind
        if kind == "foreign":
            return Unmeasurable(reason="foreign_server", message=str(failure))
        if kind == "timeout" and left_s == 0.0 and failure is not None:
            return Unmeasurable(
                reason="budget_ended",
                message=f"the study's time ended {failure.seconds:.0f} s into the start-up",
            )
        if kind in ("timeout", "refused"):
            reason = "not_ready_in_time" if kind == "timeout" else "first_generation_refused"
            return Infeasible(
                diagnosis=Diagnosis(
                    fault="candidate",
                    phase="startup",
                    reason=reason,
                    remedy=None,
                    message=str(failure),
                    evidence=tuple(mask(line) for line in log[-3:]),
                )
            )
        # A start that dies in argument parsing is phase "arguments": the engine's table knows.
        phase: Phase | None = None if ended.phase == "startup" else ended.phase
        return Infeasible(diagnosis=self._study.engine.diagnose(log, ended.exit_info, phase))

    def _stopped(self, server: RunningServer, outcome: Outcome | None, phases: PhaseClock) -> None:
        try:
            with phases.phase("stopping"):
                self._end(server, outcome)
        except OSError:
            # The disk is full and no event can be written: what was started ends all the same
            server.stop(forced=self._stop.forced)
            raise

    def _end(self, server: RunningServer, outcome: Outcome | None) -> None:
        """Stop the server. A result that exists already is not lost when something survives."""
        try:
            server.stop(forced=self._stop.forced)
        except EnvironmentFault as fault:
            if outcome is None and self._stop.requested:
                outcome = Stopped()
            elif outcome is None:
                outcome = Unmeasurable(reason="environment", message=_words(fault))
            raise LeftBehindError(fault, outcome) from fault


class LeftBehindError(Exception):
    """Something of ours survived its end, after the trial already had an outcome."""

    def __init__(self, fault: EnvironmentFault, outcome: Outcome) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.outcome = outcome


def _words(fault: AutotuneError) -> str:
    return f"{fault.message}: {fault.seen}" if fault.seen else fault.message


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
    memory: Mapping[str, Json] = MappingProxyType({}),
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
                "message": d.message, "evidence": tuple(d.evidence), "facts": dict(d.facts),
            }  # fmt: skip
        case Unmeasurable(reason=reason, message=message, measurement=measurement):
            state = "unmeasurable"
            details = {"fault": _FAULTS.get(reason, "tool"), "reason": reason, "message": message}
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
        memory=memory,
        **details,
    )


def _verdict(measurement: Measurement | None) -> str | None:
    return None if measurement is None else measurement.validity.verdict
