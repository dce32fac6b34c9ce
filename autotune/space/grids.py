"""The finite lists of values that ranges stand for.

Ranges are cut into few values on purpose: each new value of some flags is a cold compilation in the
engine, and repeated values let trials share what is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

Number = int | float
MOST_VALUES = 10_000
_LINEAR_POINTS = 17
_ALL_INTEGERS_UP_TO = 33
_PER_DECADE = 3


def stepped(low: Number, high: Number, step: Number) -> tuple[Number, ...]:
    """low, low + step, ... up to high, in exact decimals. Raises ValueError past 10,000 values."""
    first, last, by = (Decimal(repr(value)) for value in (low, high, step))
    count = int((last - first) / by) + 1
    if count > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values; take a larger step")
    return tuple(_like(low, step, first + by * index) for index in range(count))


def multiplied(low: Number, high: Number, factor: Number) -> tuple[Number, ...]:
    """low, low x factor, ... up to high. Raises ValueError past 10,000 values."""
    return tuple(_multiples(low, high, factor))


def _multiples(low: Number, high: Number, factor: Number) -> Iterator[Number]:
    last, by = Decimal(repr(high)), Decimal(repr(factor))
    value, count = Decimal(repr(low)), 0
    while value <= last:
        if count >= MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES:,} values; take a larger step")
        yield _like(low, factor, value)
        value, count = value * by, count + 1


def integers(low: int, high: int, *, log: bool) -> tuple[int, ...]:
    """A whole-number range without a step.

    `log`: both ends and the powers of two between them. Otherwise every number when there are at
    most 33, else 17 evenly spaced ones, ends included.
    """
    if log:
        powers = (1 << bit for bit in range(low.bit_length(), high.bit_length()))
        return tuple(sorted({low, high, *(p for p in powers if low < p < high)}))
    if high - low < _ALL_INTEGERS_UP_TO:
        return tuple(range(low, high + 1))
    gaps = _LINEAR_POINTS - 1
    return tuple(sorted({low + (high - low) * i // gaps for i in range(_LINEAR_POINTS)}))


def reals(low: float, high: float, *, log: bool) -> tuple[float, ...]:
    """A range of reals without a step, to 6 significant digits, ends exact.

    `log`: three values per factor of ten, evenly spaced by ratio. Otherwise 11 evenly spaced ones.
    """
    if log:
        gaps = max(1, round((Decimal(repr(high)) / Decimal(repr(low))).log10() * _PER_DECADE))
        inner = [low * (high / low) ** (i / gaps) for i in range(1, gaps)]
    else:
        inner = [low + (high - low) * i / 10 for i in range(1, 10)]
    rounded = (float(f"{value:.6g}") for value in inner)
    return tuple(sorted({low, high, *(value for value in rounded if low < value < high)}))


def _like(low: Number, step: Number, value: Decimal) -> Number:
    whole = isinstance(low, int) and isinstance(step, int)
    return int(value) if whole else float(value)
