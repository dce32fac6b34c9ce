"""From the records of a replay to a Measurement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from autotune.canonical import Json
from autotune.measure.measurement import Measurement
from autotune.measure.metrics import client_metrics
from autotune.measure.outcome import EarlyEnd
from autotune.measure.prefill_decode import diagnose_load
from autotune.measure.validity import judge
from autotune.replay.records import ReplayResult
from autotune.spec.vocabulary import METRICS, MetricName

SERVER_METRICS = (
    "kv_usage_max", "preemptions", "prefix_hit_rate", "queue_p95", "gpu_memory_peak", "power_mean",
)  # fmt: skip


def measure(
    result: ReplayResult,
    *,
    telemetry: Mapping[str, float | None],
    startup_s: float | None,
    limits: Mapping[str, float],
    limited: Collection[MetricName],
    context: Mapping[str, Json],
    stopped: EarlyEnd | None = None,
) -> Measurement:
    """Everything that one replay says, with the verdict on whether to believe it.

    `telemetry`: `Telemetry.summary()`, or {} where the server was not watched. `startup_s`: seconds
    from launch to the first real answer, None when attached. `limits`: latency family -> seconds
    per request, for goodput. `limited`: metrics with an objective or a constraint on them.
    `context`: kept as it is; `max_num_seqs` and `engine` in it help the diagnosis. `stopped`: why
    the replay was ended early, if it was; the numbers are then about what had ended by itself.
    """
    if stopped is not None:
        result = _ended_part(result, stopped)
        telemetry = {**telemetry, "generation_tokens": None, "energy_joules": None}
    measured = [record for record in result.records if record.measured]
    failures = Counter(record.failure for record in measured if record.failure is not None)
    numbers = client_metrics(result.records, result.window_s, limits)
    metrics = {**numbers.metrics, **_server_metrics(result, telemetry)}
    metrics[METRICS["startup_seconds"].key] = startup_s
    health = result.health
    cap, engine = context.get("max_num_seqs"), context.get("engine")
    validity = judge(
        result, limits=limits, limited=limited, telemetry=telemetry,
        stopped_early=None if stopped is None else stopped.sentence,
    )  # fmt: skip
    return Measurement(
        validity=validity,
        planned=len(measured) if stopped is None else stopped.planned,
        ok=len(measured) - failures.total(),
        failed=failures.total(),
        failed_by_reason=dict(sorted(failures.items())),
        metrics=metrics,
        intervals=numbers.intervals,
        client={
            **health.extra,
            "dispatch_lag_p99_s": health.dispatch_lag_p99_s,
            "loop_lag_p99_s": health.loop_lag_p99_s,
            "cpu_share": health.cpu_share,
            "workers": health.workers,
        },
        unbounded=numbers.unbounded,
        diagnosis=diagnose_load(
            result.records,
            telemetry,
            max_num_seqs=cap if isinstance(cap, int | float) else None,
            engine=engine if isinstance(engine, str) else None,
            spoiled=validity.reasons if validity.client_limited else (),
        ),
        context=dict(context),
        stopped_early={} if stopped is None else stopped.to_json(),
    )


def _ended_part(result: ReplayResult, stopped: EarlyEnd) -> ReplayResult:
    """What had ended by itself when a replay was ended, and the window up to then."""
    start, end = result.window_s
    return replace(
        result,
        records=tuple(record for record in result.records if not record.broken_off),
        window_s=(start, max(start, min(end, stopped.at_s))),
    )


def _server_metrics(
    result: ReplayResult, telemetry: Mapping[str, float | None]
) -> dict[str, float | None]:
    metrics = {METRICS[name].key: telemetry.get(name) for name in SERVER_METRICS}
    energy = telemetry.get("energy_joules")
    # Energy covers the whole watched time, so the tokens of ramp-in requests belong to it too
    tokens = sum(record.output_tokens or 0 for record in result.records)
    per_1k = 1000 * energy / tokens if energy is not None and tokens > 0 else None
    metrics[METRICS["energy_per_1k_tokens"].key] = per_1k
    return metrics
