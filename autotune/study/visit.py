"""What is done with a server that is up: warm-up, replay, judgement, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock, StopSignal
from autotune.engines.engine import ExitInfo, Phase
from autotune.launch.launcher import RunningServer
from autotune.launch.readiness import NotReady
from autotune.measure.outcome import Measured, Outcome, Unmeasurable
from autotune.replay.records import ReplayResult
from autotune.study.capacity import CapacitySearch, capacity_task, searched_objective
from autotune.study.measurer import Measurer
from autotune.study.measuring import MeasureSession
from autotune.study.phases import PhaseClock
from autotune.study.prepare import PreparedStudy
from autotune.study.probing import Probing
from autotune.study.repeating import repeated
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.watching import EarlyWatch, early_watch

DEATH_WAIT_S = 3.0
"""So long a server that broke answers off is watched for its end before it is judged as alive."""
_LAST_WORDS = frozenset({"refused", "http_5xx", "cut", "in_band_error"})
"""How requests fail at a server that is dying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A server that ended, or never came up, before there was a measurement."""

    phase: Phase
    exit_info: ExitInfo | None
    failure: NotReady | None = None


class Visitor:
    """Measures the servers of one study. What a trial does with its server is added here."""

    def __init__(
        self, study: PreparedStudy, events: EventStream, *, clock: Clock, stop: StopSignal
    ) -> None:
        self._study = study
        self._events = events
        self._clock = clock
        self._measurer = Measurer(study.measure, clock=clock, stop=stop)
        self._probing = Probing(study)

    def run(
        self,
        task: TrialTask,
        server: RunningServer,
        startup_s: float,
        folder: Path,
        phases: PhaseClock,
    ) -> Outcome | Ended:
        """Everything about one server: its measurement, and probes where the search wants them."""
        outcome = self._visited(task, server, startup_s, folder, phases)
        if isinstance(outcome, Measured) and (kind := self._probing.wanted(task)) is not None:
            trace = self._study.search_trace
            salt = f"{self._study.study_id}-{task.number}-probes"
            with phases.phase("probing"):
                session = self._measurer.session(server, trace, folder, startup_s, salt=salt)
                self._probing.run(session, kind, left_s=phases.left_s)
        return outcome

    def _visited(
        self,
        task: TrialTask,
        server: RunningServer,
        startup_s: float,
        folder: Path,
        phases: PhaseClock,
    ) -> Outcome | Ended:
        """A replay in one cache state, or the replays of a search for the capacity."""
        held_out = self._study.held_out if task.held_out else None
        trace = held_out or self._study.search_trace
        salt = f"{self._study.study_id}-{task.number}"

        def session(multiplier: float, place: Path, number: int) -> MeasureSession:
            return self._measurer.session(
                server, trace, place, startup_s, salt=f"{salt}-{number}" if number else salt,
                held_out=held_out is not None, multiplier=multiplier,
            )  # fmt: skip

        def measured(
            one: MeasureSession, baseline: Mapping[str, float | None] | None, whole: bool
        ) -> Outcome | Ended:
            return self._measured(task, server, one, phases, baseline=baseline, whole=whole)

        objective = searched_objective(self._study.spec.objective)
        if objective is None:
            outcome = measured(session(1.0, folder, 0), task.baseline, False)
            if not isinstance(outcome, Measured) or not task.repeats:
                return outcome
            again = repeated(
                outcome, task.repeats, folder=folder, phases=phases,
                session=lambda place, number: session(1.0, place, number),
                replay=lambda one: self._replayed(task, server, one, phases),
            )  # fmt: skip
            return again or Ended(exit_info=server.poll(), phase="load")
        search = CapacitySearch[Ended](
            objective=objective,
            constraints=self._study.spec.constraints,
            window_s=trace.duration_s,
            folder=folder,
            clock=self._clock,
            session=session,
            visit=measured,
            left_s=lambda: phases.left_s,
            on_step=phases.tell,
        )
        return search.run(capacity_task(task, self._study))

    def _measured(
        self,
        task: TrialTask,
        server: RunningServer,
        session: MeasureSession,
        phases: PhaseClock,
        *,
        baseline: Mapping[str, float | None] | None,
        whole: bool,
    ) -> Outcome | Ended:
        """One replay, and once more if the client spoiled it. `whole`: never ended early."""
        session.watch = self._watch(task, baseline, whole=whole)
        outcome = self._judged(task, server, session, phases, baseline)
        if isinstance(outcome, Unmeasurable) and outcome.measurement is not None:
            again = session.again(outcome.measurement.validity, left_s=phases.left_s)
            if again is not None:
                words = "; ".join(again.repeated_because)
                self._events.emit("note", message=f"trial {task.number} is measured again: {words}")
                outcome = self._judged(task, server, again, phases, baseline)
        return outcome

    def _watch(
        self, task: TrialTask, baseline: Mapping[str, float | None] | None, *, whole: bool
    ) -> EarlyWatch | None:
        """Numbers that are reported come from whole replays, so only trials of the search are ended
        early; and in a search for the capacity the rates that do not hold, which count for nothing.
        """
        spec, mode = self._study.spec, self._study.spec.search.early_stop
        rates = searched_objective(spec.objective) is not None
        if whole or (task.role != "search" and not rates):
            return None
        if mode == "growing_queue" and task.role != "search":
            mode = "exact"
        return early_watch(
            () if rates else spec.objective,
            spec.constraints,
            baseline=baseline,
            to_beat=task.to_beat,
            mode=mode,
        )

    def _judged(
        self,
        task: TrialTask,
        server: RunningServer,
        session: MeasureSession,
        phases: PhaseClock,
        baseline: Mapping[str, float | None] | None,
    ) -> Outcome | Ended:
        with phases.phase("warming"):
            session.warm_up()
        with phases.phase("replaying", expected_s=session.expected_s):
            result = self._replayed(task, server, session, phases)
        if result is None:
            return Ended(exit_info=server.poll(), phase="load")
        with phases.phase("scoring"):
            return session.judge(result, baseline=baseline)

    def _replayed(
        self, task: TrialTask, server: RunningServer, session: MeasureSession, phases: PhaseClock
    ) -> ReplayResult | None:
        """None: the server died."""
        result = session.replay(
            deadline_s=phases.left_s,
            on_progress=lambda progress: self._events.progress(task.number, progress),
        )
        died = result.aborted == "server_died" or self._dies(server, result)
        return None if died else result

    def _dies(self, server: RunningServer, result: ReplayResult) -> bool:
        """Whether the server has ended by itself. One that broke answers off may be about to: an
        API server outlives its engine by seconds, and the replay may be over sooner.
        """
        # Background load is broken off by the client itself, and so is a replay without hope
        broken = any(
            r.measured and r.failure in _LAST_WORDS and not r.broken_off for r in result.records
        )
        until = self._clock.monotonic() + (DEATH_WAIT_S if broken else 0.0)
        while (ended := server.poll()) is None and self._clock.monotonic() < until:
            self._clock.sleep(0.05)
        return ended is not None
