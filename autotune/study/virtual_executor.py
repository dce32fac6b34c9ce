"""Trials in virtual time: the loop, its trials and their files are the real ones, only time and the
engine are not. A study with launch costs, failures and noise takes seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from autotune.clock import StopSignal, VirtualClock
from autotune.errors import AutotuneError
from autotune.launch.launcher import RunningServer
from autotune.study.directory import StudyDirectory
from autotune.study.events import Observer
from autotune.study.executor import Finished
from autotune.study.phases import phase_history
from autotune.study.prepare import PreparedStudy
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.trial import TrialExecutor
from autotune.study.virtual_machine import VirtualMachine
from autotune.study.virtual_server import VirtualLauncher, VirtualServer
from autotune.study.virtual_session import Shelf, VirtualMeasurer, VirtualSession
from autotune.study.visit import Visitor


class VirtualVisitor(Visitor):
    """Visits virtual servers."""

    def __init__(
        self,
        study: PreparedStudy,
        events: EventStream,
        shelf: Shelf,
        *,
        clock: VirtualClock,
        stop: StopSignal,
        kind: type[VirtualSession],
    ) -> None:
        super().__init__(study, events, clock=clock, stop=stop)
        self._measurer = VirtualMeasurer(study.measure, shelf, clock=clock, stop=stop, kind=kind)


class VirtualTrials(TrialExecutor):
    """Runs the trials of one slot, on a clock of its own."""

    def __init__(
        self,
        study: PreparedStudy,
        directory: StudyDirectory,
        events: EventStream,
        shelf: Shelf,
        *,
        clock: VirtualClock,
        stop: StopSignal,
        history: dict[str, list[float]],
        kind: type[VirtualSession],
    ) -> None:
        super().__init__(
            study, directory, events, clock=clock, stop=stop,
            render_script=lambda plan, number: "", history=history,
        )  # fmt: skip
        self._visitor = VirtualVisitor(study, events, shelf, clock=clock, stop=stop, kind=kind)
        self._timer = clock

    def _ready(self, server: RunningServer, task: TrialTask, left_s: float | None) -> float:
        assert isinstance(server, VirtualServer)
        del task
        timeout_s = self._study.spec.engine.startup_timeout
        return server.wait_ready(
            timeout_s if left_s is None else min(timeout_s, left_s), self._timer
        )


class VirtualExecutor:
    """An `Executor` whose `slots` run side by side in virtual time.

    A trial is carried out when it is submitted, on the clock of its slot, and handed over when its
    end is the next on `clock`. With equal seeds everything is the same in every run.
    """

    def __init__(
        self,
        study: PreparedStudy,
        directory: StudyDirectory,
        machine: VirtualMachine,
        *,
        clock: VirtualClock,
        stop: StopSignal,
        observers: Sequence[Observer] = (),
        slots: int = 1,
        shelf: Shelf | None = None,
        session: type[VirtualSession] = VirtualSession,
    ) -> None:
        """`shelf`: share it between studies of one workload to prepare its traffic once. `session`:
        how engines are measured.
        """
        virtual = replace(
            study,
            launcher=VirtualLauncher(machine),
            target=replace(study.target, gpus=()),
            measure=replace(study.measure, gpus=()),
        )
        shelf = shelf or Shelf()
        history = phase_history(directory)
        self._clock = clock
        self._clocks = [VirtualClock() for _ in range(slots)]
        for own in self._clocks:
            own.sleep(clock.monotonic())
        self._trials = [
            VirtualTrials(
                virtual, directory, EventStream(own, directory, observers), shelf,
                clock=own, stop=stop, history=history, kind=session,
            )
            for own in self._clocks
        ]  # fmt: skip
        self._ends: list[tuple[float, int, Finished | AutotuneError]] = []

    @property
    def slots(self) -> int:
        return len(self._trials)

    def submit(self, task: TrialTask) -> None:
        clock = self._clocks[task.slot]
        clock.sleep(self._clock.monotonic() - clock.monotonic())
        end: Finished | AutotuneError
        try:
            record, outcome = self._trials[task.slot].run(task)
            end = Finished(task=task, record=record, outcome=outcome)
        except AutotuneError as error:
            end = error
        heapq.heappush(self._ends, (clock.monotonic(), task.number, end))

    def wait(self) -> Finished:
        at_s, _, end = heapq.heappop(self._ends)
        self._clock.sleep(at_s - self._clock.monotonic())
        if isinstance(end, AutotuneError):
            raise end
        return end
