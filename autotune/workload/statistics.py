"""What a workload looks like in numbers: the `workload inspect --json` contract."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.canonical import Json
from autotune.workload.trace import Request, Trace

if TYPE_CHECKING:
    from autotune.workload.columns import Columns, Floats, Ints

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


def describe_columns(columns: Columns) -> dict[str, Json]:
    """The same of a workload that was read as columns; `rate_peak_1s` is None without times."""
    total = len(columns.at_s)
    duration = columns.duration_s
    hits = columns.hit_tokens
    inputs, outputs = columns.input_tokens, columns.output_tokens
    return {
        "format": columns.source_format,
        "requests": total,
        "skipped": [{"line": s.line, "reason": s.reason} for s in columns.skipped],
        "skipped_by_reason": dict(Counter(s.reason for s in columns.skipped)),
        "duration_s": duration,
        "rate_mean": total / duration if duration > 0 else None,
        "rate_peak_1s": _peak_of(columns.at_s) if columns.timed else None,
        "input_tokens": _quantiles(inputs),
        "output_tokens": _quantiles(outputs),
        "prefix_reuse": None if hits is None else int(hits.sum()) / int(inputs.sum()),
        "sessions": columns.sessions or None,
        "first_offsets_s": columns.at_s[:FIRST_OFFSETS].tolist(),
        "input_tokens_total": int(inputs.sum()),
        "output_tokens_total": int(outputs.sum()),
        "total_tokens_max": int((inputs + outputs).max()) if total else None,
        "block_size": columns.block_size,
        "notes": list(columns.notes),
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


def _quantiles(values: Ints) -> dict[str, Json]:
    """`_lengths` of a column."""
    import numpy as np

    ranked = np.sort(values)
    last = len(ranked)
    ranks = {f"p{percent}": -(-percent * last // 100) - 1 for percent in (50, 95, 99)}
    return {name: int(ranked[rank]) for name, rank in ranks.items()} | {"max": int(ranked[-1])}


def _peak_of(at_s: Floats) -> int:
    """`peak_rate` of a column of times in order, counted in whole microseconds."""
    import numpy as np

    micros = np.round(at_s * 1e6).astype(np.int64)
    ends = np.searchsorted(micros, micros + 1_000_000, side="left")
    return int((ends - np.arange(len(micros))).max())
