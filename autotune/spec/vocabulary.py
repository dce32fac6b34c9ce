"""The names of all metrics, their units and directions. Formulas live in `measure/metrics.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal[
    "s", "ratio", "per_s", "tokens_per_s", "count", "bytes", "watts", "joules", "times"
]  # fmt: skip
CAPACITY_RESOLUTION = 0.025
"""Rates that are tried lie at least this far apart, as shares."""
STATISTICS = ("p50", "p90", "p95", "p99", "mean", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricName:
    """One metric as users write it (`ttft_p95`).

    `family` is the name without its statistic; `key` the name in JSON with its unit; `goal` whether
    lower or higher is better; `scored` False for metrics that may be shown or limited but never
    optimised; `statistic` None for plain numbers. `resolution`: the least relative difference that
    can be told, above 0 for what a search inside one launch finds.
    """

    name: str
    family: str
    statistic: str | None
    unit: Unit
    goal: Literal["lower", "higher"]
    title: str
    scored: bool = True
    resolution: float = 0.0

    @property
    def searched(self) -> bool:
        """Whether it takes several replays of one launch: alone as an objective, never a limit."""
        return self.resolution > 0

    @property
    def key(self) -> str:
        suffix = {
            "s": "_s",
            "per_s": "_per_s",
            "tokens_per_s": "_tps",
            "bytes": "_bytes",
            "watts": "_w",
            "joules": "_j",
        }.get(self.unit, "")
        return self.name + suffix


_LATENCIES = {
    "ttft": ("time to first token, from the due time", True),
    "ttft_service": ("time to first token, from the real send", True),
    "tpot": ("time per output token after the first", True),
    "e2e": ("time to last token, from the due time", True),
    "chunk_gap": ("longest gap between stream events", False),
}
_PLAIN: tuple[tuple[str, Unit, Literal["lower", "higher"], str, bool], ...] = (
    ("output_throughput", "tokens_per_s", "higher", "output tokens per second", True),
    ("request_throughput", "per_s", "higher", "completed requests per second", True),
    ("goodput", "per_s", "higher", "requests per second that met every limit", True),
    ("success_rate", "ratio", "higher", "share of planned requests that succeeded", True),
    ("kv_usage_max", "ratio", "lower", "highest KV cache usage seen", True),
    ("preemptions", "count", "lower", "requests preempted by the engine", True),
    (
        "prefix_hit_rate",
        "ratio",
        "higher",
        "share of prompt tokens found in the prefix cache",
        True,
    ),
    ("queue_p95", "s", "lower", "95th percentile of time in the engine's queue", True),
    ("gpu_memory_peak", "bytes", "lower", "peak GPU memory", True),
    ("power_mean", "watts", "lower", "mean GPU power", True),
    ("energy_per_1k_tokens", "joules", "lower", "energy per 1,000 output tokens", True),
    ("startup_seconds", "s", "lower", "time from launch to first real answer", True),
)


def _build() -> dict[str, MetricName]:
    names = [
        MetricName(
            name=f"{family}_{statistic}",
            family=family,
            statistic=statistic,
            unit="s",
            goal="lower",
            title=f"{title}, {statistic}",
            scored=scored,
        )
        for family, (title, scored) in _LATENCIES.items()
        for statistic in STATISTICS
    ]
    names += [
        MetricName(
            name=name, family=name, statistic=None, unit=unit, goal=goal, title=title, scored=scored
        )
        for name, unit, goal, title, scored in _PLAIN
    ]
    names.append(
        MetricName(
            name="capacity",
            family="capacity",
            statistic=None,
            unit="times",
            goal="higher",
            title="highest multiple of the recorded rate that meets the limits",
            resolution=CAPACITY_RESOLUTION,
        )
    )
    return {metric.name: metric for metric in names}


METRICS: dict[str, MetricName] = _build()
"""Every metric by the name users write."""
