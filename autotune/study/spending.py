"""What a study has spent of its budget, and what may still be begun."""

from __future__ import annotations

from autotune.clock import Clock
from autotune.search.budget import (
    Budget,
    Decision,
    Remaining,
    affordable_repeats,
    expected_launch_s,
    may_confirm,
    may_start,
    remaining,
)
from autotune.search.start_cost import Expected, PastLaunch, expected
from autotune.space.candidate import Candidate
from autotune.study.across import compile_key_of
from autotune.study.directory import StudyDirectory
from autotune.study.events import wall_seconds
from autotune.study.ledger import Ledger, launch_seconds
from autotune.study.prepared import PreparedStudy

GRACE_S = 10.0
"""A trial that was begun inside the budget may run over its end by one ordinary launch and this."""


class Spending:
    """Asked before every launch of one run of a study."""

    def __init__(
        self,
        study: PreparedStudy,
        ledger: Ledger,
        directory: StudyDirectory,
        *,
        clock: Clock,
        slots: int,
    ) -> None:
        self._study = study
        self._ledger = ledger
        self._clock = clock
        self._began = clock.monotonic()
        self._keys: dict[Candidate, str] = {}
        earlier = sum(record.seconds.get("total", 0.0) for record in ledger.records)
        self.budget = Budget(
            time_s=study.spec.budget.time,
            trials=study.spec.budget.trials,
            gpu_s=study.spec.budget.gpu_seconds,
            used_s=max(earlier / slots, _logged_s(directory) if earlier else 0.0),
            slots=slots,
            gpus=study.gpus_per_launch,
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds of this run."""
        return self._clock.monotonic() - self._began

    @property
    def counted(self) -> int:
        """Trials that count: baseline and search, ended or running."""
        running = (run.task.role for run in self._ledger.running.values())
        ended = sum(not record.is_repeat for record in self._ledger.finished)
        return ended + sum(role in ("baseline", "search") for role in running)

    @property
    def gpu_used_s(self) -> float:
        """GPU seconds of all launches, the running ones up to their expected end."""
        now = self._clock.monotonic()
        seconds = sum(record.seconds.get("total", 0.0) for record in self._ledger.records)
        seconds += sum(
            max(run.expected_s or 0.0, now - run.began_s) for run in self._ledger.running.values()
        )
        return seconds * self.budget.gpus

    def may_start(self, candidate: Candidate | None = None) -> Decision:
        """Whether this launch, or any at all (None: a warm start), can finish in the budget."""
        warm = self.expected(self._study.baseline)
        this = None if candidate is None else self.expected(candidate)
        return may_start(
            self.budget,
            elapsed_s=self.elapsed_s,
            finished=self.counted,
            durations=self._ledger.durations if warm is None else [warm.total_s],
            repeats=self._study.spec.search.most_repeats,
            finalists=self._study.spec.search.finalists,
            launch_s=None if this is None else this.total_s,
            gpu_used_s=self.gpu_used_s,
            confirm_s=self._confirm_s(),
        )

    def left(self) -> Remaining:
        """What is left for the search."""
        return remaining(
            self.budget,
            elapsed_s=self.elapsed_s,
            finished=self.counted,
            durations=self._ledger.durations,
            repeats=self._study.spec.search.most_repeats,
            finalists=self._study.spec.search.finalists,
            gpu_used_s=self.gpu_used_s,
            confirm_s=self._confirm_s(),
        )

    def may_confirm(self, launches: int) -> Decision:
        """Whether so many confirm launches, one after another in one slot, still fit."""
        return may_confirm(
            self.budget,
            elapsed_s=self.elapsed_s,
            durations=self._ledger.durations,
            launches=launches,
            gpu_used_s=self.gpu_used_s,
        )

    def pairs(self, finalists: int) -> int:
        """Confirm pairs that the budget bears."""
        return affordable_repeats(
            self.budget,
            repeats=self._study.spec.search.most_repeats,
            finalists=finalists,
            launch_s=self._confirm_s(),
        )

    def deadline_s(self) -> float | None:
        """Seconds that a trial which begins now may take; None without a limit."""
        budget = self.budget
        left = []
        if budget.time_s is not None:
            left.append(budget.time_s - budget.used_s - self.elapsed_s)
        if budget.gpu_s is not None:
            left.append((budget.gpu_s - self.gpu_used_s) / budget.gpus)
        if not left:
            return None
        return max(min(left), 0.0) + (self._ledger.launch_s or 0.0) + GRACE_S

    def expected(self, candidate: Candidate) -> Expected | None:
        """What a launch will take, by whether its settings were compiled in this study before."""
        past = [
            PastLaunch(
                key=self._compile_key(record.candidate),
                start_s=record.seconds["launching"],
                total_s=launch_seconds(record),
            )
            for record in self._ledger.finished
            if record.state == "measured" and {"launching", "total"} <= record.seconds.keys()
        ]
        return expected(past, self._compile_key(candidate))

    def _confirm_s(self) -> float | None:
        """What a confirm launch will take: half of them are the baseline's, often the slowest."""
        baseline = self._ledger.baseline
        known = [expected_launch_s(self._ledger.durations)]
        if baseline is not None and baseline.state == "measured" and "total" in baseline.seconds:
            known.append(launch_seconds(baseline))
        return max((seconds for seconds in known if seconds is not None), default=None)

    def _compile_key(self, candidate: Candidate) -> str:
        if candidate not in self._keys:
            self._keys[candidate] = compile_key_of(self._study, candidate)
        return self._keys[candidate]


def _logged_s(directory: StudyDirectory) -> float:
    """Wall seconds of earlier runs by the event log."""
    events = directory.events()
    return wall_seconds((str(e.get("kind")), float(e.get("elapsed_s") or 0.0)) for e in events)
