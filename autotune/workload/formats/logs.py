"""What request logs have in common: lines of other output between, entries that failed."""

from __future__ import annotations

import ast

from autotune.workload.formats.format import About
from autotune.workload.formats.rows import Unusable


class Passed:
    """Counts lines that are no request, such as start-up messages and health checks."""

    def __init__(self) -> None:
        self.lines = 0
        self.first = 0

    def __call__(self, line: int) -> None:
        self.lines += 1
        self.first = self.first or line

    def about(self) -> About:
        """What to tell of them."""
        if not self.lines:
            return About()
        note = f"{self.lines} lines are no requests (first: line {self.first}): passed over"
        return About(notes=(note,), meta={"other_lines": self.lines})


WHOLE_SECONDS = (
    "times are whole seconds: arrivals come in bursts that were none (spread them within a second)"
)


def python_value(text: str) -> object:
    """A Python literal as printed by a log. Raises Unusable: `bad_literal`."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise Unusable("bad_literal") from None
