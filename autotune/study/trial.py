"""One trial: plan, launch, wait, warm up, replay, stop, judge, and write the folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.engine import Diagnosis, Phase
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
from autotune.measure.outcome import (
    Infeasible,
    Measured,
    Outcome,
    Stopped,
    Unmeasurable,
)
from autotune.study.directory import StudyDirectory, write_json, write_text
from autotune.study.memory_fit import Fits, memory_block
from autotune.study.phases import PhaseClock, phase_history
from autotune.study.prepare import PreparedStudy
from autotune.study.quality import AnswerGuard
from autotune.study.record import TrialRecord
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.trial_record import record_of
from autotune.study.version_watch import VersionWatch
from autotune.study.visit import Ended, Visitor

LOG_LINES_FOR_DIAGNOSIS = 4000
"""A root cause may stand far above the last line; 4,000 lines is a few hundred kilobytes."""

LOG_LINES_OF_START = 2000
"""Within so many lines an engine has told what its memory went to."""
MEMORY_WAIT_S = 60.0
"""GPU memory of an ended engine comes back late, and is charged to the next one."""


class TrialExecutor:
    """Runs trials of one study, one after another, all in one slot."""

    def __init__(
        self,
        study: PreparedStudy,
        directory: StudyDirectory,
        events: EventStream,
        *,
        clock: Clock,
        stop: StopSignal,
        render_script: Callable[[LaunchPlan, int], str],
        fit: Fits | None = None,
        history: dict[str, list[float]] | None = None,
        versions: VersionWatch | None = None,
    ) -> None:
        """`history` (of `phase_history`) and `versions` are shared by those of several slots."""
        self._study = study
        self._directory = directory
        self._events = events
        self._clock = clock
        self._stop = stop
        self._render_script = render_script
        self._fit = fit
        self._visitor = Visitor(study, events, clock=clock, stop=stop)
        self._guard = AnswerGuard(study, directory, events, clock=clock, stop=stop)
        self._history = phase_history(directory) if history is None else history
        self._versions = versions or VersionWatch(study.engine.kind, study.engine_version)
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
        plan = self._study.plan(task.candidate)
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
            result = self._visitor.run(task, server, startup_s, folder, phases)
            if isinstance(result, Measured):
                result = self._guard.check(task, server, result, folder, phases)
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
