"""Which part of a recording is replayed: a window that represents the whole, a second one that is
held out for confirmation, and the prefixes that the window would have found in the cache.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.errors import InputError
from autotune.workload.reader import ordered
from autotune.workload.statistics import hit_tokens, nearest_rank
from autotune.workload.trace import Request, Skipped, Trace

MAX_STARTS = 400
STEPS_PER_WINDOW = 10
QUANTILES = (0.5, 0.9)
MIN_REQUESTS = 5
"""A window with fewer requests represents nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is replayed in a study.

    `search` and `held_out` start at 0 s with their first request; `held_out` is None when the
    recording is too short for two. `over_limit`: requests left out for all candidates. `priming`
    (`held_out_priming`): requests of one output token whose prompts are the longest leading blocks
    that occurred before the window and are used in it, oldest last use first. `window_s` is the
    window's (start, end) in recorded time, None for the whole recording.
    """

    search: Trace
    held_out: Trace | None
    over_limit: tuple[Skipped, ...]
    priming: tuple[Request, ...]
    notes: tuple[str, ...]
    held_out_priming: tuple[Request, ...] = ()
    window_s: tuple[float, float] | None = None


def select(
    trace: Trace,
    *,
    window_s: float | None = None,
    time_scale: float = 1.0,
    max_total_tokens: int | None = None,
    max_priming_tokens: int | None = None,
) -> Selection:
    """Choose what to replay.

    `window_s` counts recorded seconds (None: everything); `time_scale` divides arrival times, so 2
    plays twice as fast; requests with more prompt and output tokens together than
    `max_total_tokens` are left out once, before anything else; `max_priming_tokens` bounds the
    priming, most recently used prefixes first.

    The window is the one whose rate, length quantiles and prefix reuse (with the history before it)
    differ least from the whole recording's; the held-out window is the best one that does not
    overlap it. Sessions are cut at its edges, their first turn inside starting afresh.

    Raises InputError when every request is over the limit.
    """
    if time_scale <= 0:
        raise ValueError("time_scale must be above 0")
    kept, over = _within(trace.requests, max_total_tokens)
    if not kept:
        raise InputError(
            message=f"no request of the workload fits {max_total_tokens} tokens",
            seen=f"the shortest needs {min(r.input_tokens + r.output_tokens for r in over)}",
            hint="raise max-model-len, or choose another workload",
        )
    over_limit = tuple(Skipped(line=r.line, reason="over_limit") for r in over)
    whole = replace(trace, requests=ordered(kept))
    notes = []
    if over:
        notes.append(
            f"{len(over)} of {len(trace.requests)} requests are longer than {max_total_tokens} "
            "tokens and left out for every candidate"
        )
    if window_s is None or window_s >= whole.duration_s:
        notes.append("the whole recording is replayed; no part of it is held out")
        return Selection(
            search=_scaled(whole, time_scale),
            held_out=None,
            over_limit=over_limit,
            priming=(),
            notes=tuple(notes),
        )
    return _two_windows(whole, window_s, time_scale, over_limit, notes, max_priming_tokens)


def _two_windows(
    whole: Trace,
    window_s: float,
    time_scale: float,
    over_limit: tuple[Skipped, ...],
    notes: list[str],
    max_priming_tokens: int | None,
) -> Selection:
    first, second = _pair(_ranked(whole, window_s), window_s)
    notes.append(first.described(window_s))
    if second is None:
        notes.append("the recording is too short for a second window; no part of it is held out")
    return Selection(
        search=_scaled(_cut(whole, first), time_scale),
        held_out=None if second is None else _scaled(_cut(whole, second), time_scale),
        over_limit=over_limit,
        priming=_priming(whole, first, max_priming_tokens),
        notes=tuple(notes),
        held_out_priming=() if second is None else _priming(whole, second, max_priming_tokens),
        window_s=(first.start_s, first.start_s + window_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What a window must have in common with the whole."""

    rate: float
    quantiles: tuple[int, ...]
    reuse: float

    def distance(self, other: _Shape) -> float:
        """0 for equal shapes: absolute log ratios of rate and lengths, and difference of reuse."""
        pairs = [(self.rate, other.rate), *zip(self.quantiles, other.quantiles, strict=True)]
        ratios = (abs(math.log(max(a, 1e-9) / max(b, 1e-9))) for a, b in pairs)
        return sum(ratios) + 2 * abs(self.reuse - other.reuse)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Requests [low, high) of the whole, due from `start_s` on."""

    start_s: float
    low: int
    high: int
    shape: _Shape
    whole: _Shape

    @property
    def score(self) -> float:
        few = 10.0 if self.high - self.low < MIN_REQUESTS else 0.0
        return self.shape.distance(self.whole) + few

    def described(self, window_s: float) -> str:
        """How well the window represents the whole, in words."""
        mine, whole = self.shape, self.whole
        return (
            f"window {self.start_s:.1f} s to {self.start_s + window_s:.1f} s of the recording: "
            f"{mine.rate:.3g} requests/s (whole {whole.rate:.3g}), input p50 {mine.quantiles[0]} "
            f"(whole {whole.quantiles[0]}), output p50 {mine.quantiles[len(QUANTILES)]} "
            f"(whole {whole.quantiles[len(QUANTILES)]}), prefix reuse with history "
            f"{mine.reuse:.0%} (whole {whole.reuse:.0%})"
        )


def _ranked(trace: Trace, window_s: float) -> list[_Window]:
    """All windows on a grid that hold a request, most representative first, ties by time."""
    requests = trace.requests
    times = [r.at_s for r in requests]
    hits = hit_tokens(requests, trace.block_size)
    whole = _shape(requests, hits, trace.duration_s)
    room = trace.duration_s - window_s
    step = max(window_s / STEPS_PER_WINDOW, room / MAX_STARTS)
    windows = []
    for i in range(int(room / step) + 1):
        low = bisect_left(times, i * step)
        high = bisect_left(times, i * step + window_s)
        if high > low:
            shape = _shape(requests[low:high], hits[low:high], window_s)
            windows.append(_Window(start_s=i * step, low=low, high=high, shape=shape, whole=whole))
    return sorted(windows, key=lambda window: (window.score, window.start_s))


def _pair(windows: Sequence[_Window], window_s: float) -> tuple[_Window, _Window | None]:
    """The most representative window that leaves room for a second one, and that second one.

    Traffic held out is worth more than the last bit of likeness; None only if no two fit.
    """
    for first in windows:
        for second in windows:
            if abs(second.start_s - first.start_s) >= window_s:
                return first, second
    return windows[0], None


def _shape(requests: Sequence[Request], hits: Sequence[int], span_s: float) -> _Shape:
    inputs = [r.input_tokens for r in requests]
    outputs = [r.output_tokens for r in requests]
    return _Shape(
        rate=len(requests) / span_s,
        quantiles=tuple(nearest_rank(v, q) for v in (inputs, outputs) for q in QUANTILES),
        reuse=sum(hits) / sum(inputs),
    )


def _within(requests: Sequence[Request], limit: int | None) -> tuple[list[Request], list[Request]]:
    """(requests that fit, requests that do not)."""
    if limit is None:
        return list(requests), []
    over = [r for r in requests if r.input_tokens + r.output_tokens > limit]
    return [r for r in requests if r.input_tokens + r.output_tokens <= limit], over


def _cut(trace: Trace, window: _Window) -> Trace:
    return replace(trace, requests=ordered(trace.requests[window.low : window.high]))


def _scaled(trace: Trace, time_scale: float) -> Trace:
    """Arrivals faster by `time_scale`; the gaps of sessions are people's and stay."""
    if time_scale == 1.0:
        return trace
    scaled = tuple(replace(r, at_s=round(r.at_s / time_scale, 6)) for r in trace.requests)
    return replace(trace, requests=scaled)


def _priming(trace: Trace, window: _Window, max_tokens: int | None) -> tuple[Request, ...]:
    """The longest prefixes of the window's prompts that the history holds, none inside another."""
    last_use: dict[int, int] = {}
    for index, request in enumerate(trace.requests[: window.low]):
        for block in request.blocks:
            last_use[block] = index
    found: dict[tuple[int, ...], int] = {}
    for request in trace.requests[window.low : window.high]:
        known = 0
        while known < len(request.blocks) and request.blocks[known] in last_use:
            known += 1
        if known:
            tokens = min(known * trace.block_size, request.input_tokens)
            prefix = request.blocks[:known]
            found[prefix] = max(found.get(prefix, 0), tokens)
    inner = {prefix[:-n] for prefix in found for n in range(1, len(prefix))}
    maximal = [prefix for prefix in found if prefix not in inner]
    maximal.sort(key=lambda prefix: (last_use[prefix[-1]], prefix), reverse=True)
    chosen, total = [], 0
    for prefix in maximal:
        total += found[prefix]
        if max_tokens is not None and total > max_tokens:
            break
        chosen.append(Request(at_s=0.0, input_tokens=found[prefix], output_tokens=1, blocks=prefix))
    return tuple(reversed(chosen))
