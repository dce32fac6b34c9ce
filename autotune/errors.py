"""Everything autotune refuses or cannot do, as one tree.

AutotuneError            1   (never raised itself)
├── InputError           2   the study file, the flags, the workload: the user can mend it
├── NoFeasible           3   no candidate meets the limits
├── EnvironmentFault     4   docker, GPU, port, disk, network: the machine is at fault
├── Untrustworthy        5   the measurement cannot be trusted, so there is no verdict
└── Interrupted        130   the user asked to stop; `autotune resume` goes on

Each class owns its exit code (the command line's contract). A message says what is wrong, `seen`
the fact it rests on, `so` what was done or not done, `hint` the next thing to type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a user's file a problem stands.

    `line` and `column` count from 1; `length` is the number of characters to underline; `text` is
    the whole line as written (without its end); `label` stands beside the caret.
    """

    file: str
    line: int
    column: int
    length: int = 1
    text: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong: a sentence without final stop, and its place where there is one."""

    message: str
    place: Place | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class AutotuneError(Exception):
    """Base of all errors that a user is shown. Fields are plain text, rendered by `cli.console`."""

    message: str
    problems: Sequence[Problem] = field(default=())
    seen: str | None = None
    so: str | None = None
    hint: str | None = None
    exit_code = 1

    def __str__(self) -> str:
        return self.message


class InputError(AutotuneError):
    """The user's input cannot be used as it is: usage, study file, workload, missing secret."""

    exit_code = 2


class NoFeasible(AutotuneError):
    """The study ended and no candidate meets the limits."""

    exit_code = 3


class EnvironmentFault(AutotuneError):
    """The machine, not the candidate, is at fault; no verdict on any parameters follows from it."""

    exit_code = 4


class Untrustworthy(AutotuneError):
    """Measurements are invalid, so no verdict is given."""

    exit_code = 5


class Interrupted(AutotuneError):
    """The user asked to stop."""

    exit_code = 130
