"""The one place where a metric's formula stands. Names and units: `spec/vocabulary.py`.

Every formula works on one request's record; times are seconds after the start of the replay.
Sources: the definitions of vLLM's, SGLang's, aiperf's and guidellm's benchmark clients differ;
those chosen here are safe against coordinated omission (clock starts at the due time) and against
chunks that hold several tokens (tokens are counted by the server's usage).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.measure.quantiles import percentile, percentile_interval, wilson_interval
from autotune.replay.records import RequestRecord
from autotune.spec.vocabulary import METRICS, STATISTICS

LATENCY_FAMILIES = ("ttft", "ttft_service", "tpot", "e2e", "chunk_gap")
Interval = tuple[float | None, float | None]


def ttft(record: RequestRecord) -> float | None:
    """Time to first token: first_token - due. The user's wait, the client's queue included."""
    return _difference(record.first_token_s, record.due_s)


def ttft_service(record: RequestRecord) -> float | None:
    """Time to first token from the real send: first_token - sent (as `vllm bench serve` has it)."""
    return _difference(record.first_token_s, record.sent_s)


def tpot(record: RequestRecord) -> float | None:
    """Time per output token: (last_token - first_token) / (n - k).

    n: tokens by usage, k: tokens in the first token-bearing event. None (not defined) for n <= k.
    """
    span = _difference(record.last_token_s, record.first_token_s)
    tokens = (record.output_tokens or 0) - record.first_event_tokens
    return None if span is None or tokens <= 0 else span / tokens


def e2e(record: RequestRecord) -> float | None:
    """Time to the whole answer: last_token - due; a trailing usage event does not lengthen it."""
    return _difference(record.last_token_s, record.due_s)


def chunk_gap(record: RequestRecord) -> float | None:
    """The longest gap between token-bearing events: visible stutter, not speed. Never scored."""
    return record.max_gap_s


FORMULAS: Mapping[str, Callable[[RequestRecord], float | None]] = {
    "ttft": ttft,
    "ttft_service": ttft_service,
    "tpot": tpot,
    "e2e": e2e,
    "chunk_gap": chunk_gap,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics:
    """What the client's records say: `metrics`, `intervals`, `unbounded` of a Measurement."""

    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Interval]
    unbounded: tuple[str, ...]


def client_metrics(
    records: Sequence[RequestRecord],
    window_s: tuple[float, float],
    limits: Mapping[str, float],
) -> ClientMetrics:
    """All metrics of one replay that the client can know.

    `records`: every request sent, in any order; only those with `measured` count, save for
    throughput (see there). `window_s`: the measured window by due time. `limits`: latency family ->
    seconds, the per-request limits of goodput.

    Percentiles (`_p50` ...) are nearest-rank over all measured requests with a failure as
    +infinity; one that lands on a failure has no number: None, and its key is in `unbounded`. So a
    finite percentile is always the latency of a request that succeeded, and shedding load never
    improves it. `_mean` and `_max` are over successes. Requests whose `tpot` or `chunk_gap` is not
    defined (too few tokens) are left out of it. A metric without any sample is None.
    """
    measured = [record for record in records if record.measured]
    metrics: dict[str, float | None] = {}
    intervals: dict[str, Interval] = {}
    unbounded: list[str] = []
    for family in LATENCY_FAMILIES:
        samples = latency_samples(measured, family)
        for statistic in STATISTICS:
            key = METRICS[f"{family}_{statistic}"].key
            metrics[key] = _statistic(samples, statistic)
            if statistic.startswith("p"):
                if samples and metrics[key] is None:
                    unbounded.append(key)
                intervals[key] = percentile_interval(samples, float(statistic[1:]))
    ok = sum(record.failure is None for record in measured)
    metrics["success_rate"] = ok / len(measured) if measured else None
    intervals["success_rate"] = wilson_interval(ok, len(measured))
    metrics[METRICS["output_throughput"].key] = output_throughput(records, window_s)
    metrics[METRICS["request_throughput"].key] = request_throughput(records, window_s)
    metrics[METRICS["goodput"].key] = goodput(measured, window_s, limits)
    return ClientMetrics(metrics=metrics, intervals=intervals, unbounded=tuple(unbounded))


def latency_samples(records: Iterable[RequestRecord], family: str) -> list[float]:
    """One latency in seconds per request, +inf for a failure; undefined ones are left out."""
    formula = FORMULAS[family]
    values = (math.inf if record.failure is not None else formula(record) for record in records)
    return [value for value in values if value is not None]


def output_throughput(
    records: Iterable[RequestRecord], window_s: tuple[float, float]
) -> float | None:
    """Output tokens per second that the server gave out *inside* the window.

    Counts the tokens of every successful request, ramp-in included, whose time lies in [start,
    end): the first event's tokens at the first token, the others evenly up to the last token.
    Divided by the window's seconds, so neither the drain nor what was answered in it counts, and a
    server that falls behind the trace shows less than was asked of it. None for an empty window.
    """
    start, end = window_s
    if end <= start:
        return None
    tokens = sum(tokens_inside(record, start, end) for record in records if record.failure is None)
    return tokens / (end - start)


def request_throughput(
    records: Iterable[RequestRecord], window_s: tuple[float, float]
) -> float | None:
    """Successful requests per second whose last token came inside the window [start, end)."""
    start, end = window_s
    if end <= start:
        return None
    done = sum(
        record.failure is None
        and record.last_token_s is not None
        and start <= record.last_token_s < end
        for record in records
    )
    return done / (end - start)


def goodput(
    measured: Iterable[RequestRecord], window_s: tuple[float, float], limits: Mapping[str, float]
) -> float | None:
    """Measured requests that met every limit, per second of the window (by due time).

    `limits`: latency family -> seconds. A failure meets nothing; an undefined `tpot` passes its
    limit. Without limits every success counts. None for an empty window.
    """
    start, end = window_s
    if end <= start:
        return None
    return sum(meets(record, limits) for record in measured) / (end - start)


def meets(record: RequestRecord, limits: Mapping[str, float]) -> bool:
    """True if the request succeeded and no defined latency of it is above its limit (seconds)."""
    if record.failure is not None:
        return False
    values = ((FORMULAS[family](record), limit) for family, limit in limits.items())
    return all(value is None or value <= limit for value, limit in values)


def tokens_inside(record: RequestRecord, start: float, end: float) -> float:
    """Output tokens of one request that came in [start, end): see `output_throughput`."""
    first, last = record.first_token_s, record.last_token_s
    tokens = record.output_tokens or 0
    if first is None or last is None or tokens == 0:
        return 0.0
    at_once = min(tokens, record.first_event_tokens)
    inside = float(at_once) if start <= first < end else 0.0
    rest = tokens - at_once
    if rest and last > first:
        overlap = max(0.0, min(last, end) - max(first, start))
        inside += rest * overlap / (last - first)
    elif rest and start <= last < end:
        inside += rest
    return inside


def _statistic(samples: Sequence[float], statistic: str) -> float | None:
    if not samples:
        return None
    if statistic.startswith("p"):
        value = percentile(samples, float(statistic[1:]))
        return value if math.isfinite(value) else None
    finite = [sample for sample in samples if math.isfinite(sample)]
    if not finite:
        return None
    return max(finite) if statistic == "max" else math.fsum(finite) / len(finite)


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else later - earlier
