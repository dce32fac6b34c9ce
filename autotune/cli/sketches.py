"""Pictures of a workload in characters: lengths, arrivals over time, reuse of prefixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.spec.units import format_duration
from autotune.workload.statistics import hit_tokens
from autotune.workload.trace import Trace

BAR, SPARKS = "█", " ▁▂▃▄▅▆▇█"
ASCII_BAR, ASCII_SPARKS = "#", " .:-=+*%#@"
MOST_BINS = 12
REUSE_BINS = ("none", "to 25 %", "to 50 %", "to 75 %", "to 100 %")
_LABEL = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """How wide a picture may be, in characters, and whether only ASCII can be shown."""

    width: int = 80
    ascii_only: bool = False

    @property
    def bar(self) -> str:
        """One step of a bar."""
        return ASCII_BAR if self.ascii_only else BAR

    @property
    def sparks(self) -> str:
        """Heights from nothing to full."""
        return ASCII_SPARKS if self.ascii_only else SPARKS


def sketch(trace: Trace, pen: Pen) -> list[str]:
    """The pictures of a trace, line by line; what is not known is left out."""
    requests = trace.requests
    lines = ["prompt tokens", *histogram([r.input_tokens for r in requests], pen)]
    lines += ["", "answer tokens", *histogram([r.output_tokens for r in requests], pen)]
    if trace.duration_s > 0:
        lines += ["", *_arrivals(trace, pen)]
    if any(r.blocks for r in requests):
        lines += ["", *_reuse(trace, pen)]
    return lines


def histogram(values: Sequence[int], pen: Pen) -> list[str]:
    """One line per power of two that holds values, or that lies between such; from 1 on."""
    if not values:
        return []
    counts = Counter(max(1, value).bit_length() - 1 for value in values)
    low, high = min(counts), max(counts)
    step = -(-(high - low + 1) // MOST_BINS)
    rows = []
    for first in range(low, high + 1, step):
        last = min(high, first + step - 1)
        count = sum(counts[power] for power in range(first, last + 1))
        rows.append((f"{2**first:,}-{2 ** (last + 1) - 1:,}", count))
    return _bars(rows, len(values), pen)


def _bars(rows: Sequence[tuple[str, int]], total: int, pen: Pen) -> list[str]:
    label_width = max(_LABEL, *(len(label) for label, _ in rows))
    room = max(8, pen.width - label_width - 8)
    most = max(count for _, count in rows) or 1
    lines = []
    for label, count in rows:
        # Whatever happened at all is seen
        length = max(1, round(room * count / most)) if count else 0
        lines.append(f"{label:>{label_width}} {pen.bar * length} {count / total:.1%}")
    return lines


def sparkline(values: Sequence[float], pen: Pen) -> str:
    """One character per value, the highest for the largest; nothing only for zero."""
    sparks, most = pen.sparks, max(values, default=0)
    top = len(sparks) - 1
    return "".join(
        sparks[max(1, round(top * value / most))] if value > 0 else sparks[0] for value in values
    )


def _columns(trace: Trace, pen: Pen) -> tuple[int, float]:
    """(columns of a picture over time, seconds of each)."""
    columns = max(10, pen.width - 4)
    return columns, trace.duration_s / columns


def _place(at_s: float, columns: int, each_s: float) -> int:
    return min(columns - 1, int(at_s / each_s))


def _arrivals(trace: Trace, pen: Pen) -> list[str]:
    columns, each_s = _columns(trace, pen)
    first = trace.requests[0].at_s
    counts = Counter(_place(r.at_s - first, columns, each_s) for r in trace.requests)
    most = max(counts.values())
    span, each = format_duration(round(trace.duration_s, 1)), format_duration(each_s)
    highest = f"the highest {most:,} requests ({most / each_s:.3g}/s)"
    return [
        f"arrivals over {span}; a column is {each}, {highest}",
        f"  {sparkline([counts[i] for i in range(columns)], pen)}",
    ]


def _reuse(trace: Trace, pen: Pen) -> list[str]:
    hits = hit_tokens(trace.requests, trace.block_size)
    shares = [hit / r.input_tokens for hit, r in zip(hits, trace.requests, strict=True)]
    bins = Counter(0 if share == 0 else min(4, 1 + int(share * 4 - 1e-9)) for share in shares)
    rows = [(name, bins[i]) for i, name in enumerate(REUSE_BINS)]
    lines = [
        "share of a prompt that an infinite prefix cache would hold",
        *_bars(rows, len(shares), pen),
    ]
    if trace.duration_s > 0:
        columns, each_s = _columns(trace, pen)
        first = trace.requests[0].at_s
        found, asked = Counter[int](), Counter[int]()
        for hit, request in zip(hits, trace.requests, strict=True):
            place = _place(request.at_s - first, columns, each_s)
            found[place] += hit
            asked[place] += request.input_tokens
        reuse = [found[i] / asked[i] if asked[i] else 0.0 for i in range(columns)]
        lines += [
            f"the same over time, the highest {max(reuse):.0%}",
            f"  {sparkline(reuse, pen)}",
        ]
    return lines
