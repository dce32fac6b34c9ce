"""What is done with a server that is up: warm-up, replay, judgement, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock, StopSignal
from autotune.engines.engine import ExitInfo, Phase
from autotune.launch.launcher import RunningServer
from autotune.launch.readiness import NotReady
from autotune.measure.outcome import Outcome, Unmeasurable
from autotune.replay.records import ReplayResult
from autotune.study.measuring import Measurer, MeasureSession
from autotune.study.phases import PhaseClock
from autotune.study.prepare import PreparedStudy
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask

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

    def run(
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
