"""How numbers are written in the report: one unit per metric, digits that follow the interval.

Rounding is for display only; everything is sorted and compared on full values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from autotune.spec.vocabulary import METRICS, MetricName

MINUS = "\N{MINUS SIGN}"
GIB = 1024.0**3
MISSING = "not measured"
_DIGITS = 3
_BY_BASELINE = ("ttft", "ttft_service", "e2e", "queue_p95")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How one metric is shown: base-unit value times `factor`, in `unit` (spoken `spoken`)."""

    factor: float
    unit: str
    spoken: str


SECONDS = Scale(factor=1.0, unit="s", spoken="seconds")
MILLISECONDS = Scale(factor=1000.0, unit="ms", spoken="milliseconds")
PLAIN = Scale(factor=1.0, unit="", spoken="")
_FIXED: Mapping[str, Scale] = MappingProxyType(
    {
        "ratio": Scale(factor=100.0, unit="%", spoken="per cent"),
        "per_s": Scale(factor=1.0, unit="requests/s", spoken="requests per second"),
        "tokens_per_s": Scale(factor=1.0, unit="tokens/s", spoken="tokens per second"),
        "count": PLAIN,
        "bytes": Scale(factor=1.0 / GIB, unit="GiB", spoken="gibibytes"),
        "watts": Scale(factor=1.0, unit="W", spoken="watts"),
        "joules": Scale(factor=1.0, unit="J", spoken="joules"),
        "times": Scale(factor=1.0, unit="x", spoken="times"),
        "s": SECONDS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """One scale per metric family for a whole report, chosen from the baseline's metrics.

    `baseline` maps metric keys (`ttft_p95_s`) to values in base units. A latency is shown in
    seconds if the baseline's p95 is at least 1 s, else in milliseconds; TPOT and gaps always in
    milliseconds.
    """

    baseline: Mapping[str, float | None] = field(default_factory=dict)

    def scale(self, metric: MetricName | None) -> Scale:
        """The scale of a metric; plain numbers for a metric that this version does not know."""
        if metric is None:
            return PLAIN
        if metric.unit != "s" or metric.family == "startup_seconds":
            return _FIXED[metric.unit]
        if metric.family not in _BY_BASELINE:
            return MILLISECONDS
        name = metric.name if metric.statistic is None else f"{metric.family}_p95"
        reference = self.baseline.get(METRICS[name].key)
        return SECONDS if reference is not None and reference >= 1.0 else MILLISECONDS


def place_of(half_width: float) -> int | None:
    """The decimal place that a half-width of a 95 % interval allows (2: hundredths, -1: tens).

    Two significant digits of the half-width if its first digit is 1 or 2, else one. None for a
    half-width of zero or one that is no number: it says nothing about digits.
    """
    if not math.isfinite(half_width) or half_width <= 0:
        return None
    exponent = math.floor(math.log10(half_width))
    leading = int(half_width / 10.0**exponent + 1e-9)
    return 1 - exponent if leading in {1, 2} else -exponent


def significant_place(value: float, digits: int) -> int:
    """The decimal place of the last of `digits` significant digits of a value."""
    if value == 0 or not math.isfinite(value):
        return 0
    return digits - 1 - math.floor(math.log10(abs(value)))


def fixed(value: float, place: int) -> str:
    """A number rounded to a decimal place, with comma thousands and a real minus sign."""
    rounded = round(value, place)
    if rounded == 0:
        rounded = 0.0
    return f"{rounded:,.{max(place, 0)}f}".replace("-", MINUS)


def _place(
    value: float, low: float | None, high: float | None, digits: int, allowed: int | None = None
) -> int:
    """The place that is `allowed`, else the interval's where it has two ends; never more than
    `digits` significant digits.
    """
    most = significant_place(value, digits)
    if allowed is None and low is not None and high is not None:
        allowed = place_of((high - low) / 2)
    return most if allowed is None else min(allowed, most)


def place_beside(
    today: float | None,
    scale: Scale,
    intervals: Iterable[tuple[float | None, float | None] | None],
    change: tuple[float | None, float | None] | None = None,
) -> int | None:
    """The decimal place for two values that stand beside each other, so that neither is rounded
    away from the other: what the interval of their ratio allows (`change`: its ends; `today`: what
    they multiply), else the finer one of what their own intervals allow. None: nothing is known.
    """
    low, high = change or (None, None)
    if today is not None and low is not None and high is not None:
        allowed = place_of((high - low) / 2 * abs(today) * scale.factor)
        if allowed is not None:
            return allowed
    places = [
        place_of((high - low) / 2 * scale.factor)
        for low, high in (interval or (None, None) for interval in intervals)
        if low is not None and high is not None
    ]
    return max((place for place in places if place is not None), default=None)


def share(value: float) -> str:
    """A share of one as per cent, with as many decimals as it takes not to read as 100 % or 0 %."""
    percent = 100.0 * value
    distance = min(abs(percent), abs(100.0 - percent))
    if distance == 0 or percent > 100.0 or percent < 0.0:
        return f"{fixed(percent, 0)} %"
    decimals = 1 if distance >= 1 else min(6, 1 - math.floor(math.log10(distance)))
    nearest = 10.0**-decimals
    text = f"{min(max(percent, nearest), 100.0 - nearest):.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.')} %"


def quantity(
    value: float | None,
    scale: Scale,
    interval: tuple[float | None, float | None] | None = None,
    *,
    digits: int = _DIGITS,
    unit: bool = True,
    place: int | None = None,
) -> str:
    """A value in base units as text: `1.39 s`. None reads `not measured`.

    `interval` only decides the digits, `place` (of `place_beside`) outranks it; `digits` is the
    most significant digits ever shown.
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if scale.unit == "%":
        return share(value) if unit else share(value).removesuffix(" %")
    low, high = interval or (None, None)
    shown = value * scale.factor
    place = _place(shown, _times(low, scale), _times(high, scale), digits, place)
    if scale is PLAIN and float(value).is_integer():
        place = 0
    text = fixed(shown, place)
    return f"{text} {scale.unit}" if unit and scale.unit else text


def _times(value: float | None, scale: Scale) -> float | None:
    return None if value is None or not math.isfinite(value) else value * scale.factor


def bounds(
    value: float | None,
    scale: Scale,
    interval: tuple[float | None, float | None] | None,
    *,
    samples: int | None = None,
    place: int | None = None,
) -> str:
    """A value's interval for a table: `[1.35, 1.43]`; a missing end is said in words. `place` as
    for `quantity`.
    """
    if value is None or interval is None or interval == (None, None):
        return ""
    low, high = interval
    if scale.unit == "%":
        shown = ["" if end is None else share(end).removesuffix(" %") for end in (low, high)]
    else:
        ends = _times(low, scale), _times(high, scale)
        place = _place(value * scale.factor, *ends, _DIGITS, place)
        shown = ["" if end is None else fixed(end * scale.factor, place) for end in (low, high)]
    reason = f"not measurable with {count(samples)} requests" if samples else "not measurable"
    left, right = (text or reason for text in shown)
    return f"[{left}, {right}]"


def with_interval(
    value: float, scale: Scale, interval: tuple[float | None, float | None] | None
) -> str:
    """A value and its interval for a sentence: `1.39 s (1.35 to 1.43)`.

    Value and ends are rounded to the same place, so the shown value lies within the shown interval.
    """
    low, high = interval or (None, None)
    if low is None or high is None:
        return quantity(value, scale, digits=2)
    if scale.unit == "%":
        ends = [share(end).removesuffix(" %") for end in (low, high)]
        return f"{share(value)} ({ends[0]} to {ends[1]})"
    place = _place(value * scale.factor, _times(low, scale), _times(high, scale), _DIGITS)
    text, left, right = (fixed(number * scale.factor, place) for number in (value, low, high))
    return f"{text} {scale.unit} ({left} to {right})".replace("  ", " ")


def count(number: float | None) -> str:
    """A whole number with comma thousands, or `not measured`."""
    return MISSING if number is None or not math.isfinite(number) else f"{number:,.0f}"


def percent_digits(percent: float) -> int:
    """Decimals of a percentage: none from 10 % up, one below."""
    return 0 if round(abs(percent), 1) >= 10 else 1


def percent(value: float, *, signed: bool = False) -> str:
    """A share as a percentage without its sign word: `65 %`, `2.1 %`; signed: `+2.1 %`."""
    amount = 100.0 * value
    text = fixed(amount, percent_digits(amount))
    return f"{'+' if signed and amount > 0 and text[0] != MINUS else ''}{text} %"


def duration(seconds: float | None) -> str:
    """A duration as people say it: `0.8 s`, `97 s`, `12 min 5 s`, `6 h 12 min`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return MISSING
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
