"""The highest rate that still meets the limits, found by bracketing and bisection. Pure.

Rates are multipliers of the recorded one, on one ladder for all launches: 1.025 to the power of a
whole number. So capacities of different launches are equal or at least a rung apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from autotune.canonical import Json
from autotune.spec.vocabulary import CAPACITY_RESOLUTION

RESOLUTION = CAPACITY_RESOLUTION
"""The ladder's step: what a capacity is known to, and the least difference of two that counts."""
LOWEST, HIGHEST = 0.125, 32.0
"""Beyond these multipliers the window would last eight times as long, or be one burst."""
MAX_STEPS = 12
"""Replays per launch. From 1 up to 4 it takes three to bracket and five to bisect."""
WIDE, NARROW, CLOSE = 2.0, 1.33, 1.1
"""First stride where nothing is known, around what the best launch held, and around what the same
settings held."""
BARELY, BELOW = 0.15, 1.05
"""Where a candidate breaks the limits by so little at what the best holds, the first rate below is
so near: how far behind it is would else be known to a third only."""
LOST = 1.35
"""A candidate that cannot hold what the best holds is only bracketed to this factor."""
LOST_STEPS = 2
"""So many rates below that are tried before it is given up without a value."""

Ending = Literal["found", "not_beaten", "never_met", "always_met", "steps", "time", "unjudged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rate tried. `met`: whether every limit held, None where the measurement says nothing.
    `worst`: the largest normalised violation (above 0: broken), where known. `seconds` it took.
    """

    multiplier: float
    met: bool | None
    worst: float | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Json]:
        return {
            "multiplier": self.multiplier,
            "met": self.met,
            "worst": self.worst,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFound:
    """`capacity`: the highest multiplier that met the limits, None if none did; `failed_at`: the
    lowest above it that did not, None if none was tried. `ended`: `found` (a rung apart),
    `not_beaten` (below what was to be beaten, and known only roughly or not at all), `never_met`
    and `always_met` (at the ends of the ladder), `steps`, `time` or `unjudged` (what ran out: the
    value is that of a wider bracket).
    """

    capacity: float | None
    failed_at: float | None
    steps: tuple[Step, ...]
    ended: Ending


def rung_of(multiplier: float) -> int:
    """The nearest rung of the ladder to a multiplier above 0, within the ladder's ends."""
    rung = round(math.log(multiplier) / math.log1p(RESOLUTION))
    return max(_BOTTOM, min(_TOP, rung))


def multiplier_of(rung: int) -> float:
    """The multiplier of a rung, rounded to four digits behind the point."""
    return round((1 + RESOLUTION) ** rung, 4)


_BOTTOM = math.ceil(math.log(LOWEST) / math.log1p(RESOLUTION))
_TOP = math.floor(math.log(HIGHEST) / math.log1p(RESOLUTION))


def find_capacity(
    measure: Callable[[float], Step],
    *,
    start: float = 1.0,
    to_beat: float | None = None,
    stride: float | None = None,
    max_steps: int = MAX_STEPS,
    may_step: Callable[[float], bool] | None = None,
) -> CapacityFound:
    """Try rates until the highest one that meets the limits is known to a rung.

    `measure` replays once at a multiplier. `start`: the first one. Away from it the strides double
    up to `WIDE`; the bracket is then bisected. `to_beat`: the capacity of the best launch so far;
    one that fails there is only bracketed to `LOST`. `stride`: the first one, `NARROW` with
    something to beat, else `WIDE`. `may_step`: whether there is time for a replay at a multiplier.

    A truth that is not monotone gives one of its boundaries: no rate that failed was tried below
    the capacity, none that held above `failed_at`.
    """
    ladder = _Ladder(
        start=rung_of(start),
        stride=max(1, rung_of(stride or (WIDE if to_beat is None else NARROW))),
        to_beat=None if to_beat is None else rung_of(to_beat),
    )
    steps: list[Step] = []
    while True:
        rung = ladder.following()
        ended: Ending
        if not isinstance(rung, int):
            ended = rung
        elif len(steps) >= max_steps:
            ended = "steps"
        elif may_step is not None and not may_step(multiplier_of(rung)):
            ended = "time"
        else:
            steps.append(measure(multiplier_of(rung)))
            if steps[-1].met is not None:
                ladder.learn(rung, met=steps[-1].met, worst=steps[-1].worst)
                continue
            ended = "unjudged"
        return CapacityFound(
            capacity=None if ladder.low is None else multiplier_of(ladder.low),
            failed_at=None if ladder.high is None else multiplier_of(ladder.high),
            steps=tuple(steps),
            ended=ended,
        )


@dataclass(slots=True, kw_only=True)
class _Ladder:
    """The bracket in rungs: `low` held, `high` did not."""

    start: int
    stride: int
    to_beat: int | None
    low: int | None = None
    high: int | None = None
    lost: int = 0
    below: int = 0

    def learn(self, rung: int, *, met: bool, worst: float | None) -> None:
        if met:
            self.low = rung
            return
        self.high = rung
        # A look just below counts for no step
        self.lost += not self.below
        first = rung == self.to_beat == self.start
        self.below = rung_of(BELOW) if first and worst is not None and worst <= BARELY else 0

    @property
    def behind(self) -> bool:
        """What was to be beaten cannot be held."""
        return self.to_beat is not None and self.high is not None and self.high <= self.to_beat

    def following(self) -> int | Ending:
        """The next rung to try, or why there is none."""
        if self.low is None and self.high is None:
            return self.start
        if self.high is None:
            assert self.low is not None
            return "always_met" if self.low == _TOP else min(_TOP, self.low + self._strides())
        if self.low is None:
            if self.behind and self.lost > LOST_STEPS:
                return "not_beaten"
            if self.high == _BOTTOM:
                return "never_met"
            return max(_BOTTOM, self.high - (self.below or self._strides()))
        if self.behind and self.high - self.low <= rung_of(LOST):
            return "not_beaten"
        return "found" if self.high - self.low <= 1 else (self.low + self.high) // 2

    def _strides(self) -> int:
        stride = self.stride
        self.stride = max(stride, min(2 * stride, rung_of(WIDE)))
        return stride
