"""What the replayed window can tell, before anything is launched: for the plan."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.canonical import Json
from autotune.measure.precision import expected_spread, expected_width, requests_wanted
from autotune.spec.vocabulary import MetricName

WISHED = 0.30
"""An interval of this half-width is thought good enough to choose by, where it can be had."""


def percentiles(metrics: Iterable[MetricName]) -> list[tuple[MetricName, float]]:
    """Those of the metrics that are percentiles, with the percent, each once."""
    found = {
        metric.name: (metric, float(metric.statistic[1:]))
        for metric in metrics
        if metric.statistic is not None and metric.statistic.startswith("p")
    }
    return list(found.values())


def window_words(metrics: Iterable[MetricName], requests: int) -> str | None:
    """`ttft_p95 to about +/- 25 % in one launch`; None without a percentile to tell of."""
    parts = []
    for metric, percent in percentiles(metrics):
        width = expected_width(percent, requests)
        wanted = requests_wanted(percent, WISHED)
        if width is not None:
            text = f"{metric.name} to about \N{PLUS-MINUS SIGN} {width:.0%} in one launch"
        else:
            text = f"too few requests for the upper end of {metric.name}"
        if wanted is not None and wanted > requests:
            text += f" (\N{PLUS-MINUS SIGN} {WISHED:.0%} takes {wanted:,} requests)"
        parts.append(text)
    return "; ".join(parts) or None


def window_json(metrics: Iterable[MetricName], requests: int) -> dict[str, Json]:
    """Per percentile: the expected 95 % interval relative to it, and the requests for 30 %."""
    return {
        metric.name: {
            "expected_interval": list(expected_spread(percent, requests)),
            "requests_for_30_percent": requests_wanted(percent, WISHED),
        }
        for metric, percent in percentiles(metrics)
    }
