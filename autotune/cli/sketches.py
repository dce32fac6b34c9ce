"""Pictures of a workload in characters: lengths, arrivals over time, reuse of prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.spec.units import format_duration

if TYPE_CHECKING:
    from autotune.workload.columns import Columns, Ints

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


def sketch(columns: Columns, pen: Pen) -> list[str]:
    """The pictures of a workload, line by line; what is not known is left out."""
    lines = ["prompt tokens", *histogram(columns.input_tokens, pen)]
    lines += ["", "answer tokens", *histogram(columns.output_tokens, pen)]
    if columns.timed and columns.duration_s > 0:
        lines += ["", *_arrivals(columns, pen)]
    if columns.hit_tokens is not None:
        lines += ["", *_reuse(columns, columns.hit_tokens, pen)]
    return lines


def histogram(values: Ints, pen: Pen) -> list[str]:
    """One line per power of two that holds values, or that lies between such; from 1 on."""
    import numpy as np

    if not len(values):
        return []
    # Exact for whole numbers below 2**53: frexp gives the number of bits
    counts = np.bincount(np.frexp(np.maximum(values, 1).astype(np.float64))[1] - 1)
    low, high = int(np.flatnonzero(counts)[0]), len(counts) - 1
    step = -(-(high - low + 1) // MOST_BINS)
    rows = []
    for first in range(low, high + 1, step):
        last = min(high, first + step - 1)
        rows.append((f"{2**first:,}-{2 ** (last + 1) - 1:,}", int(counts[first : last + 1].sum())))
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


def _places(columns: Columns, pen: Pen) -> tuple[Ints, int, float]:
    """(the column of a picture over time for each request, columns, seconds of each)."""
    import numpy as np

    count = max(10, pen.width - 4)
    each_s = columns.duration_s / count
    places = np.minimum((columns.at_s / each_s).astype(np.int64), count - 1)
    return places, count, each_s


def _arrivals(columns: Columns, pen: Pen) -> list[str]:
    import numpy as np

    places, count, each_s = _places(columns, pen)
    counts = np.bincount(places, minlength=count)
    most = int(counts.max())
    span, each = format_duration(round(columns.duration_s, 1)), format_duration(each_s)
    highest = f"the highest {most:,} requests ({most / each_s:.3g}/s)"
    return [
        f"arrivals over {span}; a column is {each}, {highest}",
        f"  {sparkline(counts.tolist(), pen)}",
    ]


def _reuse(columns: Columns, hits: Ints, pen: Pen) -> list[str]:
    import numpy as np

    inputs = columns.input_tokens
    quarters = np.ceil(4 * hits / inputs).astype(np.int64)
    bins = np.bincount(np.minimum(quarters, 4), minlength=len(REUSE_BINS))
    lines = [
        "share of a prompt that an infinite prefix cache would hold",
        *_bars(list(zip(REUSE_BINS, bins.tolist(), strict=True)), len(hits), pen),
    ]
    if columns.timed and columns.duration_s > 0:
        places, count, _ = _places(columns, pen)
        found = np.bincount(places, weights=hits, minlength=count)
        asked = np.bincount(places, weights=inputs, minlength=count)
        reuse = (found / np.maximum(asked, 1)).tolist()
        lines += [
            f"the same over time, the highest {max(reuse):.0%}",
            f"  {sparkline(reuse, pen)}",
        ]
    return lines
