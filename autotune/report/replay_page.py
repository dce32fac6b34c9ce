"""The page of one replay: a self-contained file with the verdict, numbers and three pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from markupsafe import Markup

import autotune
from autotune.measure.measurement import Measurement
from autotune.measure.metrics import latency_samples, ttft
from autotune.replay.records import RequestRecord
from autotune.report.numbers import Units, quantity
from autotune.report.reading import clean
from autotune.report.svg import Axis, Plot, axis
from autotune.spec.vocabulary import METRICS, STATISTICS

SIZE = (520, 300)
MOST_MARKS = 1_500
MOST_POINTS = 200
LOG_FROM = 8.0
"""Times that differ by less than this factor are drawn on a linear axis."""
FAMILIES = ("ttft", "ttft_service", "tpot", "e2e")
OTHERS = (
    "output_throughput", "request_throughput", "goodput", "success_rate", "prefix_hit_rate",
    "kv_usage_max", "preemptions", "queue_p95", "gpu_memory_peak", "power_mean",
    "energy_per_1k_tokens",
)  # fmt: skip


def replay_page(
    measurement: Measurement,
    records: Sequence[RequestRecord],
    *,
    facts: Mapping[str, str],
    compared: Sequence[tuple[str, str, str, str]] = (),
    built_at: datetime | None = None,
) -> str:
    """The whole page as text.

    `records`: all of the replay. `facts`: what was replayed against what, name -> text. `compared`:
    rows of another client's figures (metric, ours, theirs, difference), if there are any.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("autotune.report", "templates"),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    moment = (built_at or datetime.now(UTC)).astimezone().isoformat(timespec="minutes")
    measured = [record for record in records if record.measured]
    verdict = measurement.validity
    return environment.get_template("replay.html.j2").render(
        verdict=verdict.verdict,
        reasons=[clean(reason) for reason in verdict.reasons],
        planned=measurement.planned,
        ok=measurement.ok,
        failures=dict(measurement.failed_by_reason),
        statistics=STATISTICS,
        latencies=_latencies(measurement),
        others=_others(measurement),
        bound=_bound(measurement),
        client=_client(measurement),
        compared=compared,
        pictures=[
            picture
            for picture in (_cumulative(measured, "ttft"), _cumulative(measured, "tpot"),
                            _over_time(measured))
            if picture is not None
        ],
        facts={name: clean(text) for name, text in facts.items()},
        built_at=moment,
        tool=f"autotune {autotune.__version__}",
    )  # fmt: skip


def _latencies(measurement: Measurement) -> list[tuple[str, list[tuple[str, str]]]]:
    """(family, [(value, interval)] by statistic)."""
    units = Units(baseline=measurement.metrics)
    rows = []
    for family in FAMILIES:
        cells = []
        for statistic in STATISTICS:
            metric = METRICS[f"{family}_{statistic}"]
            value = measurement.metrics.get(metric.key)
            if metric.key in measurement.unbounded:
                cells.append(("not met", "too many failed"))
            elif value is None:
                cells.append(("", ""))
            else:
                scale = units.scale(metric)
                ends = measurement.intervals.get(metric.key, (None, None))
                known = ends != (None, None)
                texts = ["?" if end is None else quantity(end, scale) for end in ends]
                cells.append((quantity(value, scale), " to ".join(texts) if known else ""))
        rows.append((family, cells))
    return rows


def _others(measurement: Measurement) -> list[tuple[str, str]]:
    units = Units(baseline=measurement.metrics)
    found = []
    for name in OTHERS:
        metric = METRICS[name]
        value = measurement.metrics.get(metric.key)
        if value is not None:
            found.append((name, quantity(value, units.scale(metric))))
    return found


def _bound(measurement: Measurement) -> tuple[str, list[str]] | None:
    bound = measurement.diagnosis.get("bound")
    if not isinstance(bound, str):
        return None
    evidence = measurement.diagnosis.get("evidence")
    return bound, [clean(str(text)) for text in evidence] if isinstance(evidence, list) else []


def _client(measurement: Measurement) -> list[tuple[str, str]]:
    """Proof that the client kept time, as text."""
    client = measurement.client
    rows = [("worker processes", str(client.get("workers", 1)))]
    for key, name in (
        ("dispatch_lag_p99_s", "requests left late (p99)"),
        ("loop_lag_p99_s", "event loop late (p99)"),
        ("ttft_error_p99_s", "error of TTFT on this machine (p99, calibrated)"),
    ):
        value = client.get(key)
        if isinstance(value, int | float):
            rows.append((name, f"{1000 * value:.2f} ms"))
    if isinstance(share := client.get("cpu_share"), int | float):
        rows.append(("busiest worker", f"{share:.0%} of a core"))
    if client.get("shared_cores"):
        rows.append(("cores", "shared with the server: too few to keep apart"))
    elif isinstance(cores := client.get("cores"), list) and cores:
        rows.append(("cores", f"pinned to {', '.join(str(core) for core in cores)}"))
    return rows


def _cumulative(measured: Sequence[RequestRecord], family: str) -> Markup | None:
    """The share of all requests that had their `family` within a time; failures never do."""
    samples = sorted(latency_samples(measured, family))
    answered = [max(1e3 * value, 1e-3) for value in samples if math.isfinite(value)]
    if len(answered) < 2:
        return None
    width, height = SIZE
    low = max(answered[0], answered[-1] / 1000)
    name = family.upper()
    x = axis(
        [low, answered[-1]], (48, width - 14), f"{name}, ms", log=answered[-1] > LOG_FROM * low
    )
    shares = (0.0, 0.25, 0.5, 0.75, 0.95)
    y = Axis(
        low=0.0, high=1.0, start=height - 46, end=28, title="share of requests, %",
        ticks=tuple((share, f"{100 * share:.0f}") for share in shares),
    )  # fmt: skip
    plot = Plot(width, height, x, y)
    plot.frame()
    step = max(1, len(answered) // MOST_POINTS)
    ranks = sorted({*range(0, len(answered), step), len(answered) - 1})
    points = [(max(answered[rank], x.low), (rank + 1) / len(samples)) for rank in ranks]
    plot.steps([(points[0][0], 0.0), *points], "curve best")
    return plot.render(f"{name} of all requests", f"Cumulative share of {len(samples)} requests.")


def _over_time(measured: Sequence[RequestRecord]) -> Markup | None:
    """Each request's TTFT at its due time; failures stand on the axis."""
    answered = [
        (record.due_s, 1e3 * value)
        for record in measured
        if record.failure is None and (value := ttft(record)) is not None
    ]
    if len(answered) < 2:
        return None
    width, height = SIZE
    dues = [record.due_s for record in measured]
    x = axis(dues, (48, width - 14), "due, seconds after the start", log=False)
    y = axis([value for _, value in answered], (height - 66, 28), "TTFT, ms")
    plot = Plot(width, height, x, y, floor=height - 46)
    plot.frame()
    step = max(1, len(answered) // MOST_MARKS)
    for due, value in answered[::step]:
        plot.mark("other", due, value, "")
    failed = [record for record in measured if record.failure is not None]
    for record in failed[:: max(1, len(failed) // MOST_MARKS)]:
        plot.rug(record.due_s, f"{record.failure}")
    some = f", one in {step} drawn" if step > 1 else ""
    return plot.render("TTFT over time", f"{len(answered)} answers, {len(failed)} failures{some}.")
