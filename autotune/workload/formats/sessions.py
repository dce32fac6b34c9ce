"""Turns of conversations: renamed, numbered in time, with the pause before each where known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.workload.trace import Request


class Sessions:
    """The conversations of one file whose rows have clock times, in whatever order they come.

    Their own names are dropped, for they may tell who it was.
    """

    def __init__(self) -> None:
        self._turns: dict[str, list[tuple[Request, float | None]]] = {}

    def place(self, key: str, request: Request, end_s: float | None = None) -> Iterator[Request]:
        """Pass on a request without a session (`key` ""), hold back a turn of one.

        `end_s`: when it was answered, in the seconds of `at_s`; None where not recorded.
        """
        if key:
            self._turns.setdefault(key, []).append((request, end_s))
        else:
            yield request

    def flush(self) -> Iterator[Request]:
        """The turns held back. The gap before a turn is None where the answer's end is unknown;
        a session of one turn is none.
        """
        for index, turns in enumerate(self._turns.values()):
            answered: float | None = None
            if len(turns) == 1:
                yield turns[0][0]
                continue
            turns.sort(key=lambda turn: turn[0].at_s)
            for number, (request, end_s) in enumerate(turns):
                known = number > 0 and answered is not None
                gap_s = round(max(0.0, request.at_s - (answered or 0.0)), 6) if known else None
                yield replace(request, session=f"s{index}", turn=number, gap_s=gap_s)
                answered = end_s
        self._turns.clear()
