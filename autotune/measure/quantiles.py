"""Percentiles and shares of exact samples, with their intervals. Pure functions on plain numbers.

Definitions: nearest-rank percentile (inverse of the empirical distribution, no interpolation), its
order-statistic interval (David and Nagaraja, Order Statistics, 3rd ed., section 7.1), Wilson's
score interval of a share (Wilson 1927). Samples may hold +infinity: a request that never answered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

CONFIDENCE = 0.95
_NEGLIGIBLE = 1e-18
_ROUNDING = 1e-9


def rank_of(percent: float, count: int) -> int:
    """The 1-based nearest rank of a percentile among `count` sorted samples: ceil(percent/100 * n).

    Raises ValueError unless 0 < percent <= 100 and count >= 1.
    """
    if not 0 < percent <= 100 or count < 1:
        raise ValueError(f"no rank for the {percent}th percentile of {count} samples")
    # 99.9 * 1000 / 100 is a hair above 999 in floating point
    return max(1, math.ceil(percent * count / 100 - _ROUNDING))


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of unsorted samples (any unit, +inf allowed, never NaN).

    Raises ValueError on an empty sequence.
    """
    return sorted(samples)[rank_of(percent, len(samples)) - 1]


def percentile_interval(
    samples: Sequence[float], percent: float, confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """Order-statistic interval of a percentile, equal tails, distribution-free.

    An end is None where the samples are too few for it to exist, or where it lies on +infinity.
    """
    if not samples:
        return None, None
    ordered = sorted(samples)
    low_rank, high_rank = interval_ranks(percent, len(ordered), confidence)
    low = None if low_rank is None else ordered[low_rank - 1]
    high = None if high_rank is None else ordered[high_rank - 1]
    return _finite(low), _finite(high)


@lru_cache(maxsize=1024)
def interval_ranks(
    percent: float, count: int, confidence: float = CONFIDENCE
) -> tuple[int | None, int | None]:
    """The 1-based ranks of the interval's ends, None for an end that does not exist.

    With B ~ Binomial(count, percent/100): the lower rank is the largest l with P(B < l) <= tail,
    the upper the smallest u with P(B >= u) <= tail, tail = (1 - confidence) / 2.
    """
    tail = (1 - confidence) / 2
    share = percent / 100
    first, masses = _binomial_masses(count, share)
    low: int | None = None
    high: int | None = None
    below = 0.0  # P(B < first + offset)
    for offset, mass in enumerate(masses):
        successes = first + offset
        if successes >= 1 and below <= tail:
            low = successes
        below += mass
        if high is None and below >= 1 - tail and successes + 1 <= count:
            high = successes + 1
    return low, high


def wilson_interval(
    hits: int, count: int, confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """Wilson's score interval of the share hits/count; (None, None) for count 0.

    Raises ValueError unless 0 <= hits <= count.
    """
    if not 0 <= hits <= count:
        raise ValueError(f"{hits} hits of {count}")
    if count == 0:
        return None, None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = hits / count
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == count else min(1.0, centre + half)
    return low, high


def samples_wanted(percent: float) -> int:
    """How many samples a percentile needs before it is more than the largest sample: 100/(100-p).

    p50: 2, p90: 10, p95: 20, p99: 100.
    """
    return math.ceil(100 / (100 - percent) - _ROUNDING) if percent < 100 else 1


def _binomial_masses(count: int, share: float) -> tuple[int, list[float]]:
    """The probabilities of Binomial(count, share) around its mode: (first outcome, masses).

    Terms below 1e-18 of the mode's are left out, so the work grows with the square root of count.
    """
    if share >= 1:
        return count, [1.0]
    mode = min(count, int((count + 1) * share))
    log_peak = (
        math.lgamma(count + 1)
        - math.lgamma(mode + 1)
        - math.lgamma(count - mode + 1)
        + mode * math.log(share)
        + (count - mode) * math.log1p(-share)
    )
    peak = math.exp(log_peak)
    odds = share / (1 - share)
    lower: list[float] = []
    mass, k = peak, mode
    while k > 0 and mass > peak * _NEGLIGIBLE:
        mass *= k / ((count - k + 1) * odds)
        lower.append(mass)
        k -= 1
    first = k
    upper: list[float] = []
    mass, k = peak, mode
    while k < count and mass > peak * _NEGLIGIBLE:
        mass *= (count - k) * odds / (k + 1)
        upper.append(mass)
        k += 1
    return first, [*reversed(lower), peak, *upper]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
