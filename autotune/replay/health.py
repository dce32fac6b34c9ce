"""The client's own health, from what its workers noted about themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.canonical import Json
from autotune.replay.records import ClientHealth
from autotune.replay.shard import WorkerReport


def combine(reports: Sequence[WorkerReport]) -> ClientHealth:
    """One verdict on the client: lags pooled over the workers, CPU share of the busiest."""
    dispatch = sorted(lag for report in reports for lag in report.health["dispatch_lags_s"])
    loop = sorted(lag for report in reports for lag in report.health["loop_lags_s"])
    shares = [
        report.health["cpu_s"] / report.health["wall_s"]
        for report in reports
        if report.health["wall_s"] > 0
    ]
    extra: dict[str, Json] = {
        "dispatch_lag_p50_s": nearest_rank(dispatch, 0.5),
        "dispatch_lag_max_s": dispatch[-1] if dispatch else None,
        "loop_lag_max_s": loop[-1] if loop else None,
        "cpu_s": sum(report.health["cpu_s"] for report in reports),
        "peak_in_flight": sum(report.health["peak_in_flight"] for report in reports),
        "peak_rss_bytes": max((report.health["peak_rss_bytes"] for report in reports), default=0),
        "port_share": _port_share(sum(report.health["peak_in_flight"] for report in reports)),
        "urgent": all(report.health.get("urgent", False) for report in reports),
        "retries": sum(report.health["retries"] for report in reports),
    }
    return ClientHealth(
        dispatch_lag_p99_s=nearest_rank(dispatch, 0.99),
        loop_lag_p99_s=nearest_rank(loop, 0.99),
        cpu_share=max(shares, default=None),
        workers=len(reports),
        extra=extra,
    )


def _port_share(in_flight: int) -> float | None:
    """Requests in flight over the local ports that Linux gives to connections to one address."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        low, high = (int(part) for part in text.split())
    except (OSError, ValueError):
        return None
    return in_flight / (high - low + 1)


def nearest_rank(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank quantile of ascending values; None if there are none."""
    if not ordered:
        return None
    rank = max(1, -int(-share * len(ordered) // 1))
    return ordered[rank - 1]
