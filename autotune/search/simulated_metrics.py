"""Metrics of a simulated replay, by the same definitions as those of a real one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from autotune.measure.metrics import goodput, output_throughput, request_throughput
from autotune.measure.quantiles import percentile, rank_of
from autotune.measure.scoring import resolve_limit
from autotune.replay.records import RequestRecord
from autotune.replay.schedule import window_of
from autotune.search.forecast import Part, Prediction
from autotune.simulator.calibration import Sample, latencies, ranked_latency
from autotune.simulator.load import Limits, Load, Times
from autotune.spec.expressions import Constraint
from autotune.spec.vocabulary import METRICS, STATISTICS, MetricName

_FAMILIES: Mapping[str, Literal["ttft", "tpot", "e2e"]] = {
    "ttft": "ttft",
    "ttft_service": "ttft",
    "tpot": "tpot",
    "e2e": "e2e",
}
_PERCENTILES = frozenset(s for s in STATISTICS if s.startswith("p"))
ANSWERS = ("ttft_p50", "ttft_p90", "ttft_p95", "tpot_p50", "tpot_p90", "tpot_p95")
"""The metrics of a launch that the calibration looks at."""
PART_SPREAD = 0.05
"""The same for a replay that was ended early."""
SPREAD = 0.03
"""How well a right model meets a launch's percentiles, where these follow the engine's speed; times
the steepness elsewhere."""
LEAST = 1e-4
"""Violations are compared as logs; a share or a count of nothing is taken for so much."""


def predictable(metric: MetricName) -> bool:
    """Whether the simulator knows this metric at all."""
    return metric.family in _FAMILIES or metric.name in _PLAIN


def simulated_value(
    metric: MetricName, load: Load, times: Times, limits: Limits, bounds: Mapping[str, float]
) -> float | None:
    """One metric of a replay in its base unit; None if it is not defined, or if requests that never
    ended leave it without a number. `bounds`: latency family -> seconds, the limits of goodput.
    """
    if metric.family in _FAMILIES:
        return _statistic(latencies(load, times, _FAMILIES[metric.family]), metric.statistic)
    formula = _PLAIN.get(metric.name)
    return None if formula is None else formula(load, times, limits, bounds)


def worst_violation(
    constraints: Sequence[Constraint],
    reference: Mapping[str, float | None],
    value: Callable[[MetricName], float | None],
) -> float | None:
    """The largest log distance beyond a limit (above 0: broken); None where nothing can be said.

    Shares near 1 say nothing until they break, so they count only then.
    """
    worst: float | None = None
    for constraint in constraints:
        limit = resolve_limit(constraint, reference)
        if limit is None or not predictable(constraint.metric):
            continue
        found = value(constraint.metric)
        by = math.inf if found is None else log_violation(found, constraint.op, limit)
        if constraint.metric.unit == "ratio" and by <= 0:
            continue
        worst = by if worst is None else max(worst, by)
    return worst


def log_violation(value: float, op: str, limit: float) -> float:
    """The log of a value over its limit, with the sign that makes <= 0 hold."""
    distance = math.log(max(value, LEAST * LEAST)) - math.log(max(limit, LEAST * LEAST))
    return distance if op == "<=" else -distance


def percentile_samples(
    load: Load,
    metrics: Mapping[str, float | None],
    prediction: Prediction | None,
    part: Part | None = None,
) -> tuple[Sample, ...]:
    """What a launch's percentiles say; the steeper they answer to the engine, the less surely."""
    counts = {
        "ttft": sum(job.measured for job in load.jobs),
        "tpot": sum(job.measured and job.output > 1 for job in load.jobs),
    }
    samples = []
    for name in ANSWERS:
        metric = METRICS[name]
        value = metrics.get(metric.key)
        count = counts[metric.family] if part is None else min(counts[metric.family], part.ended)
        if not value or count < 1 or metric.statistic is None:
            continue
        steep = 1.0 if prediction is None else prediction.steepness.get(metric.key, 1.0)
        samples.append(
            Sample(
                what="ttft" if metric.family == "ttft" else "tpot",
                value_s=value,
                spread=(SPREAD if part is None else PART_SPREAD) * max(1.0, steep),
                rank=rank_of(float(metric.statistic[1:]), count),
                until_s=None if part is None else part.until_s,
                ended=count,
            )
        )
    return tuple(samples)


def whole_of(
    part: Part,
    metrics: Mapping[str, float | None],
    keys: Iterable[str],
    load: Load,
    times: Times,
) -> dict[str, float]:
    """What a replay that was ended early would have given: its part, in the ratio of whole to part
    in the simulation. Percentiles of latencies only.
    """
    found = {}
    for key in keys:
        metric = next(m for m in METRICS.values() if m.key == key)
        value = metrics.get(key)
        what = _FAMILIES.get(metric.family)
        if what is None or not value or metric.statistic not in _PERCENTILES:
            continue
        percent = float(metric.statistic[1:])
        seen = Sample(
            what=what,
            value_s=value,
            spread=0.0,
            rank=rank_of(percent, part.ended),
            until_s=part.until_s,
            ended=part.ended,
        )
        then = ranked_latency(load, times, seen)
        whole = _statistic(latencies(load, times, what), metric.statistic)
        if whole is not None and math.isfinite(then) and then > 0:
            found[key] = value * whole / then
    return found


def _statistic(samples: list[float], statistic: str | None) -> float | None:
    if not samples:
        return None
    if statistic is not None and statistic.startswith("p"):
        value = percentile(samples, float(statistic[1:]))
        return value if math.isfinite(value) else None
    finite = [sample for sample in samples if math.isfinite(sample)]
    if not finite:
        return None
    return max(finite) if statistic == "max" else math.fsum(finite) / len(finite)


def _records(load: Load, times: Times) -> list[RequestRecord]:
    records = []
    for i, job in enumerate(load.jobs):
        ended = math.isfinite(times.last[i])
        records.append(
            RequestRecord(
                index=i,
                due_s=times.due[i] if math.isfinite(times.due[i]) else job.at_s,
                measured=job.measured,
                planned_input_tokens=job.prompt,
                planned_output_tokens=job.output,
                output_tokens=job.output,
                first_token_s=times.first[i] if ended else None,
                last_token_s=times.last[i] if ended else None,
                end_s=times.last[i] if ended else None,
                failure=None if ended else "timeout",
            )
        )
    return records


def _window(
    formula: Callable[[Sequence[RequestRecord], tuple[float, float]], float | None],
) -> Callable[[Load, Times, Limits, Mapping[str, float]], float | None]:
    def value(load: Load, times: Times, _: Limits, __: Mapping[str, float]) -> float | None:
        records = _records(load, times)
        return formula(records, window_of(records))

    return value


def _goodput(load: Load, times: Times, _: Limits, bounds: Mapping[str, float]) -> float | None:
    records = [record for record in _records(load, times) if record.measured]
    return goodput(records, window_of(records), bounds)


def _success(load: Load, times: Times, _: Limits, __: Mapping[str, float]) -> float | None:
    ended = [math.isfinite(times.last[i]) for i, job in enumerate(load.jobs) if job.measured]
    return sum(ended) / len(ended) if ended else None


def _kv_usage(_: Load, times: Times, limits: Limits, __: Mapping[str, float]) -> float | None:
    return min(1.0, times.most_tokens / limits.kv_tokens)


def _preemptions(_: Load, times: Times, __: Limits, ___: Mapping[str, float]) -> float | None:
    return float(times.preemptions)


def _hit_rate(load: Load, times: Times, _: Limits, __: Mapping[str, float]) -> float | None:
    asked = sum(j.prompt for j, s in zip(load.jobs, times.scheduled, strict=True) if s < math.inf)
    return sum(times.cached) / asked if asked else None


def _queue(load: Load, times: Times, _: Limits, __: Mapping[str, float]) -> float | None:
    waits = [times.scheduled[i] - times.due[i] for i, j in enumerate(load.jobs) if j.measured]
    return percentile(waits, 95) if waits and math.isfinite(max(waits)) else None


_PLAIN: Mapping[str, Callable[[Load, Times, Limits, Mapping[str, float]], float | None]] = {
    METRICS["output_throughput"].name: _window(output_throughput),
    METRICS["request_throughput"].name: _window(request_throughput),
    METRICS["goodput"].name: _goodput,
    METRICS["success_rate"].name: _success,
    METRICS["kv_usage_max"].name: _kv_usage,
    METRICS["preemptions"].name: _preemptions,
    METRICS["prefix_hit_rate"].name: _hit_rate,
    METRICS["queue_p95"].name: _queue,
}
