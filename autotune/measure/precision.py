"""What a window of N requests will tell before any is sent: how well a percentile will be known.

The ranks of the order-statistic interval are exact; turning ranks into "± 30 %" needs a shape.
Waiting times are taken as exponential, whose order statistics are known: the k-th of n has the mean
H(n) - H(n-k), H the harmonic numbers (David and Nagaraja, Order Statistics, section 2.5). Steadier
latencies give narrower intervals, heavier tails wider ones; the measurement prints the real ones.
"""

from __future__ import annotations

import math

from autotune.measure.quantiles import interval_ranks, samples_wanted

MOST_REQUESTS = 1_000_000
_EULER = 0.5772156649015329


def expected_spread(percent: float, count: int) -> tuple[float | None, float | None]:
    """(low, high) ends of the 95 % interval of a percentile, relative to it: (-0.2, 0.3) reads
    "from 20 % below to 30 % above". None for an end that `count` requests do not give.

    Raises ValueError unless 0 < percent < 100 and count >= 1.
    """
    if not 0 < percent < 100 or count < 1:
        raise ValueError(f"no interval for the {percent}th percentile of {count} requests")
    value = -math.log1p(-percent / 100)
    ends = [
        None if rank is None else (_harmonic(count) - _harmonic(count - rank)) / value - 1
        for rank in interval_ranks(percent, count)
    ]
    return ends[0], ends[1]


def expected_width(percent: float, count: int) -> float | None:
    """The larger of both ends of `expected_spread`, as a share; None where one is missing."""
    low, high = expected_spread(percent, count)
    return None if low is None or high is None else max(-low, high)


def requests_wanted(percent: float, width: float) -> int | None:
    """How many requests give a percentile to within `width` (0.3: 30 %) on both sides.

    None if a million do not. Raises ValueError for a width that is not above 0.
    """
    if width <= 0:
        raise ValueError(f"a width of {width} cannot be reached")
    low, high = samples_wanted(percent), MOST_REQUESTS
    if not _reaches(percent, high, width):
        return None
    while low < high:
        middle = (low + high) // 2
        if _reaches(percent, middle, width):
            high = middle
        else:
            low = middle + 1
    return low


def _reaches(percent: float, count: int, width: float) -> bool:
    found = expected_width(percent, count)
    return found is not None and found <= width


def _harmonic(count: int) -> float:
    """H(count); exact for small counts, to 1e-12 beyond (Euler-Maclaurin)."""
    if count < 64:
        return math.fsum(1 / k for k in range(1, count + 1))
    square = count * count
    return math.log(count) + _EULER + 1 / (2 * count) - 1 / (12 * square) + 1 / (120 * square**2)
