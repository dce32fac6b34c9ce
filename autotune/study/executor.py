"""Who runs trials: the protocol between the loop and what launches servers (or simulates them)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.measure.outcome import Outcome
from autotune.study.record import TrialRecord
from autotune.study.task import TrialTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A trial that ended and whose folder (where there is one) is closed."""

    task: TrialTask
    record: TrialRecord
    outcome: Outcome


class Executor(Protocol):
    """Runs up to `slots` trials at the same time.

    The caller chooses `TrialTask.slot` (0 to `slots` - 1) and gives a slot its next task only after
    the one before has come back from `wait`.
    """

    @property
    def slots(self) -> int:
        """How many trials run at the same time; does not change."""
        ...

    def submit(self, task: TrialTask) -> None:
        """Begin a trial. Returns at once; may begin it as late as the next `wait`."""
        ...

    def wait(self) -> Finished:
        """Block until a submitted trial has ended, and hand it over: each exactly once.

        The executor's clock then stands where that trial ended. Raises what that trial raised
        (Interrupted, InputError, EnvironmentFault) after its folder is closed; the trial counts as
        handed over then. Not to be called while nothing is submitted.
        """
        ...
