"""The server's own numbers and the GPU's, sampled beside a replay, off its hot path.

A server without `/metrics` and a machine without a GPU are normal: what is not there is None.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

import httpx

SCRAPE_TIMEOUT_S = 2.0
INTERVAL_S = 1.0
MAX_SAMPLES = 20_000
_GAUGES = ("kv_usage", "running", "waiting")
_COUNTERS = ("preemptions", "prefix_hits", "prefix_queries", "prompt_tokens", "generation_tokens")

Labels = Mapping[str, str]
Scrape = Mapping[str, Sequence[tuple[Labels, float]]]
"""Sample name as exposed (`..._total`, `..._bucket`) -> (labels, value) of every series."""


class GpuReader(Protocol):
    """Reads the GPUs that a server runs on."""

    def read(self) -> GpuReading | None:
        """One reading over all GPUs, or None where they cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Sums over the watched GPUs: bytes, watts, joules since the driver was loaded."""

    memory_bytes: float
    power_w: float | None
    energy_j: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """The machine since the reading before: shares of all cores' time; bytes still available.

    `steal_share`: time that the hypervisor gave to others, None where it is not told.
    """

    cpu_share: float
    steal_share: float | None
    memory_available_bytes: float


class HostSource(Protocol):
    """Reads this machine."""

    def read(self) -> HostReading | None:
        """What happened since the last reading; None the first time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look: seconds since the sampler was started, values by our own names, GPU reading."""

    at_s: float
    values: Mapping[str, float]
    queue_buckets: Mapping[float, float] = field(default_factory=dict)
    gpu: GpuReading | None = None
    host: HostReading | None = None


def scrape(
    url: str, *, client: httpx.Client | None = None
) -> dict[str, list[tuple[Labels, float]]]:
    """All series of a server's `/metrics`. `url` is the server's address, with or without `/v1`.

    Raises httpx.HTTPError (unreachable, slow, bad status) and ValueError (not Prometheus text).
    """
    from prometheus_client.parser import text_string_to_metric_families

    address = url.rstrip("/").removesuffix("/metrics").removesuffix("/v1") + "/metrics"
    if client is None:
        with httpx.Client(trust_env=False, timeout=SCRAPE_TIMEOUT_S) as own:
            response = own.get(address)
    else:
        response = client.get(address)
    response.raise_for_status()
    series: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    return series


class Telemetry:
    """Samples a server once a second in a thread of its own, from `start` to `stop`.

    `names`: our name -> Prometheus name (`Engine.metric_names()`). Nothing that goes wrong with the
    server or the GPU escapes; `problem` holds the last such thing as text.
    """

    def __init__(
        self,
        url: str | None,
        names: Mapping[str, str],
        *,
        gpu: GpuReader | None = None,
        host: HostSource | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._url = url
        self._names = dict(names)
        self._gpu = gpu
        self._host = host
        self._interval_s = interval_s
        self._first: Sample | None = None
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._origin = 0.0
        self.problem: str | None = None

    def start(self) -> None:
        """Take the first sample and go on in the background. Once only."""
        self._origin = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float | None]:
        """Take a last sample, end the thread (bounded wait) and give the summary. Idempotent."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(timeout=3 * SCRAPE_TIMEOUT_S)
        return self.summary()

    def __enter__(self) -> Telemetry:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def summary(self) -> dict[str, float | None]:
        """The window's numbers; None for what the server or the machine did not tell.

        Metric names of the vocabulary (`kv_usage_max`, `preemptions`, `prefix_hit_rate`,
        `queue_p95`, `gpu_memory_peak`, `power_mean`), and for the diagnosis `running_max`,
        `waiting_max`, `prompt_tokens`, `generation_tokens`, `energy_joules`, and of this machine
        `host_cpu_share`, `host_steal_share` (means, of all cores). Counters and
        histograms are differences between the first and the last sample; one that went back (the
        server was started anew) is None. Seconds, bytes, watts, joules, shares.
        """
        samples = list(self._samples)
        first = self._first
        if first is not None and first not in samples:
            samples.insert(0, first)
        deltas = {name: _delta(samples, name) for name in _COUNTERS}
        hits, queries = deltas["prefix_hits"], deltas["prefix_queries"]
        return {
            "kv_usage_max": _peak(samples, "kv_usage"),
            "running_max": _peak(samples, "running"),
            "waiting_max": _peak(samples, "waiting"),
            "preemptions": deltas["preemptions"],
            "prefix_hit_rate": hits / queries if hits is not None and queries else None,
            "queue_p95": _queue_percentile(samples, 95),
            "prompt_tokens": deltas["prompt_tokens"],
            "generation_tokens": deltas["generation_tokens"],
            **_gpu_summary(samples),
            **_host_summary(samples),
        }

    def write_parquet(self, path: Path) -> None:
        """One row per sample: at_s, our names, gpu_memory_bytes, gpu_power_w, gpu_energy_j,
        host_cpu_share, host_steal_share, host_memory_available_bytes.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        samples = list(self._samples)
        columns: dict[str, list[float | None]] = {"at_s": [sample.at_s for sample in samples]}
        for name in (*_GAUGES, *_COUNTERS):
            columns[name] = [sample.values.get(name) for sample in samples]
        for name in ("memory_bytes", "power_w", "energy_j"):
            columns[f"gpu_{name}"] = [getattr(sample.gpu, name, None) for sample in samples]
        for name in ("cpu_share", "steal_share", "memory_available_bytes"):
            columns[f"host_{name}"] = [getattr(sample.host, name, None) for sample in samples]
        schema = pa.schema([(name, pa.float64()) for name in columns])
        pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=SCRAPE_TIMEOUT_S) as client:
            self._look(client)
            while not self._done.wait(self._interval_s):
                self._look(client)
            self._look(client)

    def _look(self, client: httpx.Client) -> None:
        values: dict[str, float] = {}
        buckets: dict[float, float] = {}
        if self._url is not None:
            try:
                series = scrape(self._url, client=client)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                self.problem = f"{type(error).__name__}: {error}"
            else:
                values, buckets = self._read(series)
        reading = self._gpu.read() if self._gpu is not None else None
        sample = Sample(
            at_s=time.monotonic() - self._origin, values=values, queue_buckets=buckets, gpu=reading,
            host=self._host.read() if self._host is not None else None,
        )  # fmt: skip
        if self._first is None and (values or reading is not None):
            self._first = sample
        self._samples.append(sample)

    def _read(self, series: Scrape) -> tuple[dict[str, float], dict[float, float]]:
        values: dict[str, float] = {}
        for name in (*_GAUGES, *_COUNTERS):
            exposed = self._names.get(name)
            found = _series(series, exposed) if exposed else []
            numbers = [value for _, value in found if math.isfinite(value)]
            if numbers:
                # Several series are the ranks of one deployment: usage is that of the fullest
                values[name] = max(numbers) if name == "kv_usage" else math.fsum(numbers)
        buckets: dict[float, float] = {}
        queue = self._names.get("queue_time")
        for part in ("sum", "count"):
            found = series.get(f"{queue}_{part}", [])
            if found:
                values[f"queue_{part}"] = math.fsum(value for _, value in found)
        for labels, count in series.get(f"{queue}_bucket", []):
            bound = float(labels["le"])
            buckets[bound] = buckets.get(bound, 0.0) + count
        return values, buckets


def _series(series: Scrape, exposed: str) -> Sequence[tuple[Labels, float]]:
    bare = exposed.removesuffix("_total")
    return series.get(exposed) or series.get(f"{bare}_total") or series.get(bare) or []


def _peak(samples: Sequence[Sample], name: str) -> float | None:
    return max((s.values[name] for s in samples if name in s.values), default=None)


def _delta(samples: Sequence[Sample], name: str) -> float | None:
    seen = [sample.values[name] for sample in samples if name in sample.values]
    if len(seen) < 2 or seen[-1] < seen[0]:
        return None
    return seen[-1] - seen[0]


def _queue_percentile(samples: Sequence[Sample], percent: float) -> float | None:
    """A percentile of what entered a cumulative histogram between the first and the last sample.

    Linear inside the bucket (as Prometheus' histogram_quantile); in the open last bucket its lower
    bound, which is then a lower bound of the percentile. Never above mean / (1 - percent/100),
    which no percentile of times can exceed (Markov): a first bucket of 0.3 s would else make 0.285
    s out of no queue at all. None without observations.
    """
    found = _bucket_percentile(samples, percent)
    total, count = _delta(samples, "queue_sum"), _delta(samples, "queue_count")
    if found is None or total is None or not count:
        return found
    return min(found, total / count / (1 - percent / 100))


def _bucket_percentile(samples: Sequence[Sample], percent: float) -> float | None:
    seen = [sample.queue_buckets for sample in samples if sample.queue_buckets]
    if len(seen) < 2:
        return None
    first, last = seen[0], seen[-1]
    counts = [(bound, last[bound] - first.get(bound, 0.0)) for bound in sorted(last)]
    total = counts[-1][1]
    if total <= 0 or any(count < 0 for _, count in counts):
        return None
    wanted = percent / 100 * total
    low_bound, low_count = 0.0, 0.0
    for bound, count in counts:
        if count >= wanted:
            if math.isinf(bound) or count == low_count:
                return low_bound
            return low_bound + (bound - low_bound) * (wanted - low_count) / (count - low_count)
        low_bound, low_count = bound, count
    return low_bound


def _host_summary(samples: Sequence[Sample]) -> dict[str, float | None]:
    readings = [sample.host for sample in samples if sample.host is not None]
    steals = [reading.steal_share for reading in readings if reading.steal_share is not None]
    return {
        "host_cpu_share": _mean([reading.cpu_share for reading in readings]),
        "host_steal_share": _mean(steals),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _gpu_summary(samples: Sequence[Sample]) -> dict[str, float | None]:
    readings = [(sample.at_s, sample.gpu) for sample in samples if sample.gpu is not None]
    powers = [(at, gpu.power_w) for at, gpu in readings if gpu.power_w is not None]
    counters = [gpu.energy_j for _, gpu in readings if gpu.energy_j is not None]
    mean = math.fsum(power for _, power in powers) / len(powers) if powers else None
    energy: float | None = None
    if len(counters) >= 2 and counters[-1] >= counters[0]:
        energy = counters[-1] - counters[0]
    elif mean is not None and len(powers) >= 2:
        energy = mean * (powers[-1][0] - powers[0][0])
    return {
        "gpu_memory_peak": max((gpu.memory_bytes for _, gpu in readings), default=None),
        "power_mean": mean,
        "energy_joules": energy,
    }
