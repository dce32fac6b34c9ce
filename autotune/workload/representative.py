"""Which stretches of a recording look most like the whole, and how much like it they look."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.workload.statistics import hit_tokens, nearest_rank
from autotune.workload.trace import Request, Trace

MAX_STARTS = 400
STEPS_PER_WINDOW = 10
QUANTILES = (0.5, 0.9)
MIN_REQUESTS = 5
"""A window with fewer requests represents nothing."""
WELL, FAIRLY = 0.1, 0.25
"""A window whose worst difference is at most this represents the recording well, or fairly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a window must have in common with the whole: requests/s, token counts at `QUANTILES` of
    inputs and outputs, and the share of prompt tokens found in an infinite cache that saw
    everything before (None without block ids).
    """

    rate: float
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reuse: float | None

    def differences(self, whole: Shape) -> dict[str, float]:
        """Name of each trait -> how far it is off: relative for rate and lengths (symmetric, 1 is
        a factor of e), in share points for the reuse; never negative.
        """
        found = {"rate": _ratio(self.rate, whole.rate)}
        for name, mine, theirs in (
            ("input", self.inputs, whole.inputs),
            ("output", self.outputs, whole.outputs),
        ):
            for q, a, b in zip(QUANTILES, mine, theirs, strict=True):
                found[f"{name} p{q * 100:.0f}"] = _ratio(a, b)
        if self.reuse is not None and whole.reuse is not None:
            found["reuse"] = abs(self.reuse - whole.reuse)
        return found


def _ratio(a: float, b: float) -> float:
    return abs(math.log(max(a, 1e-9) / max(b, 1e-9)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Requests [low, high) of a trace, due from `start_s` to `end_s` (recorded seconds)."""

    start_s: float
    end_s: float
    low: int
    high: int
    shape: Shape
    whole: Shape

    @property
    def score(self) -> float:
        """0 for a perfect likeness; the sum of all differences, reuse counting double."""
        found = self.shape.differences(self.whole)
        few = 10.0 if self.high - self.low < MIN_REQUESTS else 0.0
        return sum(found.values()) + found.get("reuse", 0.0) + few

    def described(self, name: str) -> str:
        """How well the window represents the whole: a word, the worst trait, all numbers."""
        mine, whole = self.shape, self.whole
        worst, off = max(self.shape.differences(whole).items(), key=lambda item: item[1])
        word = "well" if off <= WELL else "fairly" if off <= FAIRLY else "badly"
        lengths = ", ".join(
            f"{kind} p50/p90 {_both(a)} (whole {_both(b)})"
            for kind, a, b in (
                ("input", mine.inputs, whole.inputs),
                ("output", mine.outputs, whole.outputs),
            )
        )
        reuse = (
            ""
            if mine.reuse is None or whole.reuse is None
            else f", prefix reuse with history {mine.reuse:.0%} (whole {whole.reuse:.0%})"
        )
        return (
            f"{name} {self.start_s:.1f} s to {self.end_s:.1f} s of the recording represents it "
            f"{word} (worst: {worst}, off by {_share(off, worst)}): {self.high - self.low} "
            f"requests, {mine.rate:.3g}/s (whole {whole.rate:.3g}/s), {lengths}{reuse}"
        )


def _both(values: Sequence[int]) -> str:
    return "/".join(f"{value:,}" for value in values)


def _share(off: float, trait: str) -> str:
    return f"{off * 100:.0f} points" if trait == "reuse" else f"{math.expm1(off):.0%}"


def ranked(trace: Trace, window_s: float) -> list[Window]:
    """All windows on a grid that hold a request, most representative first, ties by time. Where two
    windows only just fit, the grid has the very last one too. `window_s` is below the duration.
    """
    requests = trace.requests
    times = [r.at_s for r in requests]
    hits = hit_tokens(requests, trace.block_size)
    known = any(r.blocks for r in requests)
    whole = _shape(requests, hits, trace.duration_s, known=known)
    room = trace.duration_s - window_s
    step = max(window_s / STEPS_PER_WINDOW, room / MAX_STARTS)
    starts = [i * step for i in range(int(room / step) + 1)]
    if room - step <= window_s and starts[-1] < room:
        starts.append(room)
    windows = []
    for start_s in starts:
        low = bisect_left(times, start_s)
        if start_s == room:  # closed: it holds the last request of the recording
            end_s, high = trace.duration_s, len(times)
        else:
            end_s = start_s + window_s
            high = bisect_left(times, end_s)
        if high > low:
            shape = _shape(requests[low:high], hits[low:high], window_s, known=known)
            windows.append(
                Window(start_s=start_s, end_s=end_s, low=low, high=high, shape=shape, whole=whole)
            )
    return sorted(windows, key=lambda window: (window.score, window.start_s))


def best_pair(windows: Sequence[Window], window_s: float) -> tuple[Window, Window | None]:
    """The most representative window that leaves room for a second one, and that second one.

    Traffic held out is worth more than the last bit of likeness; None only if no two fit.
    """
    for first in windows:
        for second in windows:
            if abs(second.start_s - first.start_s) >= window_s:
                return first, second
    return windows[0], None


def _shape(
    requests: Sequence[Request], hits: Sequence[int], span_s: float, *, known: bool
) -> Shape:
    inputs = [r.input_tokens for r in requests]
    outputs = [r.output_tokens for r in requests]
    return Shape(
        rate=len(requests) / span_s,
        inputs=tuple(nearest_rank(inputs, q) for q in QUANTILES),
        outputs=tuple(nearest_rank(outputs, q) for q in QUANTILES),
        reuse=sum(hits) / sum(inputs) if known else None,
    )
