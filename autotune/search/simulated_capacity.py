"""The highest rate that a simulated engine holds: where the worst violation of the limits is 0."""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.search.capacity import HIGHEST, LOWEST

WIDE, CLOSE = 0.4, 0.04
"""First strides of the log of the rate."""
TOLERANCE = 0.005
"""Of the log of the rate."""
MOST_RUNS = 14
USUAL_SLOPE = 4.0
"""By how many percent the worst violation grows where the rate grows by one."""
REACH = 3.0
"""Violations beyond this (as logs) only say which way to go."""


def simulated_capacity(
    violation: Callable[[float], float | None], *, start: float | None = None
) -> float | None:
    """The rate multiplier at which `violation` (a log distance, above 0: broken) changes its sign;
    None where nothing can be said. At the ends of the range these are returned.

    Brackets from `start` (about what it is, None: not known), then bisects in logs with the
    secant's help.
    """
    low = high = math.log(min(max(start or 1.0, LOWEST), HIGHEST))
    found = violation(math.exp(low))
    if found is None:
        return None
    below = above = found
    stride, runs = WIDE if start is None else CLOSE, 1
    while (below > 0 or above <= 0) and runs < MOST_RUNS:
        if above <= 0:
            low, below = high, above
            high = min(high + stride, math.log(HIGHEST))
            above = _defined(violation(math.exp(high)))
        else:
            high, above = low, below
            low = max(low - stride, math.log(LOWEST))
            below = _defined(violation(math.exp(low)))
        runs += 1
        stride *= 1.7
        if (above <= 0 and high >= math.log(HIGHEST)) or (below > 0 and low <= math.log(LOWEST)):
            return math.exp(high if above <= 0 else low)
    while high - low > TOLERANCE and runs < MOST_RUNS:
        share = 0.5
        if math.isfinite(above) and above > below:
            share = min(0.85, max(0.15, -below / (above - below)))
        middle = low + share * (high - low)
        value = _defined(violation(math.exp(middle)))
        runs += 1
        if value > 0:
            high, above = middle, value
        else:
            low, below = middle, value
    return math.exp((low + high) / 2)


def near_capacity(
    violation: Callable[[float], float | None], *, start: float = 1.0
) -> tuple[float | None, float]:
    """As `simulated_capacity`, from two simulations and the line between them; and the rate of the
    second.
    """
    first = violation(start)
    if first is None:
        return None, start
    first = max(-REACH, min(REACH, first))
    other = start * math.exp(max(-0.7, min(0.7, -first / USUAL_SLOPE)))
    second = max(-REACH, min(REACH, _defined(violation(other))))
    span = math.log(other / start)
    if abs(span) < TOLERANCE or (second - first) / span <= USUAL_SLOPE / 4:
        log = math.log(other) - second / USUAL_SLOPE
    else:
        log = math.log(other) - second * span / (second - first)
    return math.exp(min(math.log(HIGHEST), max(math.log(LOWEST), log))), other


def _defined(value: float | None) -> float:
    return math.inf if value is None else value
