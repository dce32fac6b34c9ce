"""Steps in a row, each a little longer than the one before. Pure; any unit of time."""

from __future__ import annotations

import math


def span_of(count: int, first: float, growth: float) -> float:
    """How long `count` steps last: the first lasts `first`, each next one `growth` more."""
    return count * first + growth * count * (count - 1) / 2


def steps_until(wait: float, first: float, growth: float, least: int) -> int:
    """The smallest count >= `least` of such steps that together last `wait` or longer."""
    if wait <= 0:
        return least
    if growth <= 0:
        count = math.ceil(wait / first)
    else:
        linear = first - growth / 2
        count = math.ceil((math.sqrt(linear * linear + 2 * growth * wait) - linear) / growth)
    # One either way: rounding
    while count > least and span_of(count - 1, first, growth) >= wait:
        count -= 1
    while span_of(count, first, growth) < wait:
        count += 1
    return max(least, count)
