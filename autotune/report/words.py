"""Metrics and changes in words: what a metric is called and what its change is called.

A time gets shorter, a rate gets higher; nothing is ever "% faster", no ratio is given in per cent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autotune.canonical import Json, canonical_json
from autotune.measure.comparison import Change
from autotune.report.numbers import fixed, percent, percent_digits
from autotune.spec.vocabulary import METRICS, MetricName, Unit

_FALLS: Mapping[Unit, str] = MappingProxyType(
    {"s": "shorter", "bytes": "less", "joules": "less", "count": "fewer"}
)
_RISES: Mapping[Unit, str] = MappingProxyType(
    {"s": "longer", "bytes": "more", "joules": "more", "count": "more"}
)
_FACTOR: Mapping[Unit, str] = MappingProxyType(
    {"s": "as long", "count": "as many", "bytes": "as much", "joules": "as much"}
)
_ACRONYMS = MappingProxyType({"ttft": "TTFT", "tpot": "TPOT", "kv": "KV", "gpu": "GPU"})
_NAMES = MappingProxyType(
    {
        "ttft_service": "TTFT from the send",
        "e2e": "whole answer",
        "chunk_gap": "longest stream gap",
        "kv_usage_max": "KV cache in use, highest",
        "gpu_memory_peak": "GPU memory, peak",
        "power_mean": "GPU power, mean",
        "energy_per_1k_tokens": "energy per 1,000 output tokens",
        "startup_seconds": "start-up",
        "queue_p95": "engine queue p95",
    }
)
_SUBJECTS = MappingProxyType(
    {
        "ttft": ("the first token comes in about {} of the time", "the wait for the first token"),
        "tpot": ("each further token comes in about {} of the time", "the time per further token"),
        "e2e": ("whole answers come in about {} of the time", "the time for a whole answer"),
        "output_throughput": ("", "output per second"),
        "request_throughput": ("", "completed requests per second"),
        "goodput": ("", "requests per second within the limits"),
        "capacity": ("", "the load that still meets the limits"),
    }
)
_FRACTIONS = (
    (2 / 3, "two thirds"),
    (1 / 2, "half"),
    (1 / 3, "a third"),
    (1 / 4, "a quarter"),
    (1 / 5, "a fifth"),
    (1 / 6, "a sixth"),
    (1 / 8, "an eighth"),
    (1 / 10, "a tenth"),
)
_CLOSE = 0.07


def metric_label(metric: MetricName) -> str:
    """The short name of a metric for tables and axes: `TTFT p95`, `output throughput`."""
    if metric.name in _NAMES:
        return _NAMES[metric.name]
    family = _NAMES.get(metric.family) or " ".join(
        _ACRONYMS.get(word, word) for word in metric.family.split("_")
    )
    return f"{family} {metric.statistic}" if metric.statistic else family


def sentence_start(text: str) -> str:
    """The same text with a capital first letter."""
    return text[:1].upper() + text[1:]


def direction_word(metric: MetricName, *, falls: bool) -> str:
    """What the metric got: `shorter`, `higher`, `fewer`."""
    return _FALLS.get(metric.unit, "lower") if falls else _RISES.get(metric.unit, "higher")


def change_words(metric: MetricName, ratio: float) -> str:
    """A change from the baseline in words: `65 % shorter`, `2.8 times as long`, `no change`."""
    if ratio == 1:
        return "no change"
    word = direction_word(metric, falls=ratio < 1)
    if ratio >= 2:
        return f"{fixed(ratio, 1)} times {_FACTOR.get(metric.unit, 'as high')}"
    change = abs(ratio - 1)
    if change < 0.0005:
        return f"less than 0.1 % {word}"
    return f"{percent(change)} {word}"


def is_distinguishable(change: Change) -> bool:
    """Whether the whole interval lies on one side of no change. False without an interval."""
    if change.low is None or change.high is None:
        return False
    return change.low > 1 or change.high < 1


def change_range(change: Change) -> str | None:
    """The interval of a change in the same terms as `change_words`: `61 to 68 %`."""
    if change.low is None or change.high is None:
        return None
    if change.ratio >= 2 and change.low > 1:
        return f"{fixed(change.low, 1)} to {fixed(change.high, 1)} times"
    if not is_distinguishable(change):
        return f"{signed_share(change.low - 1, change)} to {signed_share(change.high - 1, change)}"
    ends = sorted((abs(change.low - 1) * 100, abs(change.high - 1) * 100))
    digits = percent_digits(abs(change.ratio - 1) * 100)
    if fixed(ends[0], digits) == fixed(ends[1], digits):
        digits += 1
    return f"{fixed(ends[0], digits)} to {fixed(ends[1], digits)} %"


def signed_share(value: float, change: Change) -> str:
    """A relative change with its sign and without unit, in the digits of the change itself."""
    text = fixed(value * 100, percent_digits((change.ratio - 1) * 100))
    return f"+{text}" if value > 0 and float(text.replace(",", "")) != 0 else text


def change_cell(metric: MetricName, change: Change | None) -> str:
    """A change for a table: `65 % shorter (61 to 68 %)`, `+2 % (-3 to +6), not distinguishable`."""
    if change is None:
        return "not comparable"
    spread = change_range(change)
    if spread is None:
        return change_words(metric, change.ratio)
    if not is_distinguishable(change):
        return f"{signed_share(change.ratio - 1, change)} % ({spread}), not distinguishable"
    return f"{change_words(metric, change.ratio)} ({spread})"


def outcome_phrase(metric: MetricName, ratio: float) -> str:
    """A change in everyday words: `the first token comes in about a third of the time`."""
    fraction, subject = _SUBJECTS.get(metric.family, ("", metric_label(metric)))
    if fraction:
        near = min(_FRACTIONS, key=lambda item: abs(item[0] / ratio - 1) if ratio else 1.0)
        if ratio and abs(near[0] / ratio - 1) <= _CLOSE:
            return fraction.format(near[1])
    return f"{subject} is {change_words(metric, ratio)}"


def objective_words(text: str) -> str:
    """An objective in words: `minimize ttft_p95` reads `TTFT p95, lower is better`."""
    verb, _, rest = text.partition(" ")
    metric = METRICS.get(rest.strip())
    label = metric_label(metric) if metric else rest or text
    return f"{label}, {'higher' if verb == 'maximize' else 'lower'} is better"


def setting(value: Json) -> str:
    """A knob's value as a user writes it; a knob that was not given keeps the engine's default."""
    if value is None:
        return "engine default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else canonical_json(value)


def plural(number: int, noun: str, many: str | None = None) -> str:
    """`1 launch`, `3 launches`."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"
