"""Trials in flight: each gets its number, its slot and its deadline; their ends are taken in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from autotune.clock import Clock
from autotune.errors import AutotuneError
from autotune.space.candidate import Candidate
from autotune.study.executor import Executor, Finished
from autotune.study.ledger import Ledger, Running
from autotune.study.prepared import PreparedStudy
from autotune.study.record import Role, TrialRecord
from autotune.study.spending import Spending
from autotune.study.task import TrialTask
from autotune.study.voice import Voice

_VOID = frozenset({"measurement_invalid", "client_failed"})
"""Reasons of our own client's: they say nothing, and another launch may go well."""


class Launches:
    """Keeps the slots of an executor, and the ledger beside them."""

    def __init__(
        self,
        study: PreparedStudy,
        executor: Executor,
        ledger: Ledger,
        spending: Spending,
        voice: Voice,
        *,
        clock: Clock,
        learn: Callable[[TrialRecord], None],
    ) -> None:
        """`learn` hears of every trial that ended by itself."""
        self._study = study
        self._executor = executor
        self._ledger = ledger
        self._spending = spending
        self._voice = voice
        self._clock = clock
        self._learn = learn
        self._free = list(range(executor.slots))
        self._open = 0
        self._second: set[int] = set()
        self._kept: list[Finished] = []

    @property
    def slots(self) -> int:
        return self._executor.slots

    @property
    def free(self) -> list[int]:
        """Slots without a trial, lowest first."""
        return sorted(self._free)

    @property
    def busy(self) -> bool:
        """Whether any trial was begun whose end was not taken."""
        return bool(self._open or self._kept)

    def begin(
        self,
        role: Role,
        candidate: Candidate,
        *,
        slot: int | None = None,
        pair: int | None = None,
        repeats: int = 0,
        why: str | None = None,
        predicted: Mapping[str, float] | None = None,
    ) -> TrialTask:
        """Begin a trial in this free slot, or in any. `repeats` as in `TrialTask`."""
        start = self._spending.expected(candidate)
        task = TrialTask(
            number=self._ledger.take_number(),
            role=role,
            candidate=candidate,
            pair=pair,
            held_out=role == "confirm",
            baseline=self._ledger.reference(role, candidate),
            deadline_s=self._spending.deadline_s(),
            start_s=None if start is None else start.start_s,
            to_beat=self._ledger.to_beat if self._may_end_early(role, candidate) else None,
            seen=self._ledger.seen(candidate),
            slot=self.free[0] if slot is None else slot,
            repeats=repeats,
            why=why,
            predicted=dict(predicted or {}),
        )
        self._free.remove(task.slot)
        self._open += 1
        expected_s = start.total_s if start is not None else self._ledger.launch_s
        self._ledger.running[task.number] = Running(
            task=task, began_s=self._clock.monotonic(), expected_s=expected_s
        )
        self._executor.submit(task)
        return task

    def _may_end_early(self, role: Role, candidate: Candidate) -> bool:
        """Whether a trial ends where it cannot win. The first of an engine is measured whole, so
        that the engines can be compared.
        """
        kinds = {record.candidate.engine for record in self._ledger.finished}
        return role == "search" and candidate.engine in kinds

    def ended(self) -> Finished:
        """The next trial that ended. A launch is made once more if the machine was at fault, or the
        measurement is void and the budget allows another. Raises what a trial raised.
        """
        if self._kept:
            return self._kept.pop(0)
        while self._again(finished := self._wait()):
            pass
        self._voice.best(self._ledger.best)
        return finished

    def alone(self, role: Role, candidate: Candidate, *, repeats: int = 0) -> Finished:
        """Run one trial to its end, in a slot that is free now. Others go on beside it; their ends
        are kept for `ended`.
        """
        slot = self.begin(role, candidate, repeats=repeats).slot
        before, self._kept = self._kept, []
        others: list[Finished] = []
        while (finished := self.ended()).task.slot != slot:
            others.append(finished)
        self._kept = before + others
        return finished

    def settle(self) -> None:
        """After an error: wait until every running trial is closed, whatever becomes of it."""
        try:
            while self._open:
                with suppress(AutotuneError):
                    self._wait()
        finally:
            if self._open:  # an error of our own must not leave servers behind
                self.settle()
        self._ledger.catch_up()

    def _wait(self) -> Finished:
        try:
            finished = self._executor.wait()
        finally:
            self._open -= 1
        self._free.append(finished.task.slot)
        self._ledger.add(finished)
        self._learn(finished.record)
        return finished

    def _again(self, finished: Finished) -> bool:
        """Launch the same once more if that is called for, and was not done before."""
        task, record = finished.task, finished.record
        if task.number in self._second:
            return False
        if record.fault != "environment":
            if record.reason not in _VOID:
                return False
            searched = task.role == "search"
            spending = self._spending
            fits = spending.may_start(task.candidate) if searched else spending.may_confirm(1)
            if not fits.allowed:
                return False
        self._voice.note(f"trial {record.number}: {record.message}; once more, the same settings")
        second = self.begin(
            task.role, task.candidate, slot=task.slot, pair=task.pair, repeats=task.repeats,
            why=task.why, predicted=task.predicted,
        )  # fmt: skip
        self._second.add(second.number)
        return True
