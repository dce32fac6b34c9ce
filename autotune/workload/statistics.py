"""What a workload looks like in numbers: the `workload inspect --json` contract."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from autotune.canonical import Json
from autotune.workload.trace import Request, Trace

FIRST_OFFSETS = 10


def describe(trace: Trace) -> dict[str, Json]:
    """Counts, rates (requests/s), token lengths and prefix reuse of a trace.

    `rate_mean` is None when all requests come at one instant; `prefix_reuse` None when no block ids
    are known; `sessions` None when there are none.
    """
    requests = trace.requests
    duration = trace.duration_s
    sessions = {r.session for r in requests if r.session is not None}
    return {
        "format": trace.source_format,
        "requests": len(requests),
        "skipped": [{"line": s.line, "reason": s.reason} for s in trace.skipped],
        "skipped_by_reason": dict(Counter(s.reason for s in trace.skipped)),
        "duration_s": duration,
        "rate_mean": len(requests) / duration if duration > 0 else None,
        "rate_peak_1s": peak_rate(requests),
        "input_tokens": _lengths([r.input_tokens for r in requests]),
        "output_tokens": _lengths([r.output_tokens for r in requests]),
        "prefix_reuse": prefix_reuse(trace),
        "sessions": len(sessions) or None,
        "first_offsets_s": [r.at_s for r in requests[:FIRST_OFFSETS]],
        "input_tokens_total": sum(r.input_tokens for r in requests),
        "output_tokens_total": sum(r.output_tokens for r in requests),
        "total_tokens_max": max((r.input_tokens + r.output_tokens for r in requests), default=None),
        "block_size": trace.block_size,
        "notes": list(trace.notes),
    }


def nearest_rank(values: Sequence[int], share: float) -> int:
    """The nearest-rank percentile of unsorted, non-empty values; `share` in (0, 1]."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def peak_rate(requests: Sequence[Request]) -> int:
    """The most arrivals in any one second [t, t + 1 s)."""
    first, peak = 0, 0
    for last, request in enumerate(requests):
        while round(request.at_s - requests[first].at_s, 6) >= 1.0:
            first += 1
        peak = max(peak, last - first + 1)
    return peak


def hit_tokens(requests: Sequence[Request], block_size: int) -> list[int]:
    """Prompt tokens of each request that an infinite, at first empty prefix cache would hold: its
    leading blocks that occurred in an earlier request.
    """
    seen: set[int] = set()
    hits = []
    for request in requests:
        leading = 0
        for block in request.blocks:
            if block not in seen:
                break
            leading += 1
        hits.append(min(leading * block_size, request.input_tokens))
        seen.update(request.blocks)
    return hits


def prefix_reuse(trace: Trace) -> float | None:
    """Share of all prompt tokens found in an infinite prefix cache; None without block ids."""
    if not any(r.blocks for r in trace.requests):
        return None
    hits = hit_tokens(trace.requests, trace.block_size)
    return sum(hits) / sum(r.input_tokens for r in trace.requests)


def _lengths(values: Sequence[int]) -> dict[str, Json]:
    if not values:
        return {"p50": None, "p95": None, "p99": None, "max": None}
    return {
        "p50": nearest_rank(values, 0.50),
        "p95": nearest_rank(values, 0.95),
        "p99": nearest_rank(values, 0.99),
        "max": max(values),
    }
