"""The executor of real launches: as many threads as there are slots, each with its own share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from autotune.measure.outcome import Outcome
from autotune.study.client import shares
from autotune.study.executor import Finished
from autotune.study.prepared import PreparedStudy
from autotune.study.record import TrialRecord
from autotune.study.task import TrialTask

Run = Callable[[TrialTask], tuple[TrialRecord, Outcome]]
"""Runs one trial and closes its folder, as `TrialExecutor.run` does."""


class SlotExecutor:
    """An `Executor` with one `Run` for each slot. A single slot runs in the caller's thread."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)
        self._waiting: list[TrialTask] = []
        self._running: dict[Future[tuple[TrialRecord, Outcome]], TrialTask] = {}
        self._pool = (
            ThreadPoolExecutor(len(self._runs), thread_name_prefix="slot")
            if len(self._runs) > 1
            else None
        )

    @property
    def slots(self) -> int:
        return len(self._runs)

    def submit(self, task: TrialTask) -> None:
        if self._pool is None:
            self._waiting.append(task)
        else:
            self._running[self._pool.submit(self._runs[task.slot], task)] = task

    def wait(self) -> Finished:
        if self._pool is None:
            task = self._waiting.pop(0)
            record, outcome = self._runs[0](task)
            return Finished(task=task, record=record, outcome=outcome)
        # The main thread waits here, and signal handlers still run
        ended = wait(self._running, return_when=FIRST_COMPLETED).done
        first = min(ended, key=lambda future: self._running[future].number)
        task = self._running.pop(first)
        record, outcome = first.result()
        return Finished(task=task, record=record, outcome=outcome)


def share(study: PreparedStudy, slot: int) -> PreparedStudy:
    """The study as one slot sees it: launched and watched on its own GPUs, its load sent from its
    own cores.
    """
    if len(study.slots) == 1:
        return study
    gpus = study.slots[slot]
    sides = [replace(side, target=replace(side.target, gpus=gpus)) for side in study.sides]
    return replace(
        study,
        target=replace(study.target, gpus=gpus),
        sides=tuple(sides),
        measure=replace(study.measure, gpus=gpus, cores=shares(len(study.slots))[slot]),
    )
