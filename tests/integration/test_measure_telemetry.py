from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from autotune.measure.telemetry import GpuReading, Telemetry, scrape

NAMES = {
    "kv_usage": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "preemptions": "vllm:num_preemptions_total",
    "prefix_hits": "vllm:prefix_cache_hits",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "queue_time": "vllm:request_queue_time_seconds",
}


def exposition(step: int) -> str:
    """What an engine with two ranks exposes; every counter grows with `step`."""
    done = 100 * step
    return f"""\
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0"}} {0.1 * step}
vllm:kv_cache_usage_perc{{engine="1"}} {0.2 * step}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0"}} {step}
vllm:num_requests_running{{engine="1"}} 3
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0"}} {7 + step}
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0"}} {25 * step}
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0"}} {100 * step}
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{{engine="0",le="0.1"}} {0.5 * done}
vllm:request_queue_time_seconds_bucket{{engine="0",le="0.5"}} {done}
vllm:request_queue_time_seconds_bucket{{engine="0",le="+Inf"}} {done}
vllm:request_queue_time_seconds_sum{{engine="0"}} {done}
vllm:request_queue_time_seconds_count{{engine="0"}} {done}
"""


class Metrics:
    """A server with `/metrics` whose answers a test decides."""

    def __init__(self) -> None:
        self.body, self.status, self.looks = exposition(1), 200, 0
        self.looked = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path == "/metrics"
                body = outer.body.encode()
                self.send_response(outer.status if found else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                with outer.looked:
                    outer.looks += 1
                    outer.looked.notify_all()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def wait_for(self, looks: int) -> None:
        with self.looked:
            assert self.looked.wait_for(lambda: self.looks >= looks, timeout=10)


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    server = Metrics()
    yield server
    server.server.shutdown()
    server.server.server_close()
    server.thread.join(timeout=10)


class Gpu:
    """One GPU that draws 100 W."""

    def __init__(self) -> None:
        self.joules = 0.0

    def read(self) -> GpuReading:
        self.joules += 50.0
        return GpuReading(memory_bytes=8e9, power_w=100.0, energy_j=self.joules)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/metrics"])
def test_scrape_reads_every_series_of_a_server(metrics: Metrics, suffix: str) -> None:
    series = scrape(metrics.url + suffix)
    assert series["vllm:num_preemptions_total"] == [({"engine": "0"}, 8.0)]
    assert len(series["vllm:kv_cache_usage_perc"]) == 2


def test_telemetry_gives_peaks_and_differences_of_the_window(
    metrics: Metrics, tmp_path: Path
) -> None:
    telemetry = Telemetry(metrics.url, NAMES, gpu=Gpu(), interval_s=0.02)
    telemetry.start()
    metrics.wait_for(1)
    metrics.body = exposition(4)
    metrics.wait_for(4)
    found = telemetry.stop()
    assert found == telemetry.stop()
    assert found["kv_usage_max"] == pytest.approx(0.8)
    assert found["running_max"] == 7
    assert found["waiting_max"] is None
    assert found["preemptions"] == 3
    assert found["prefix_hit_rate"] == pytest.approx(0.25)
    assert found["queue_p95"] == pytest.approx(0.1 + 0.4 * 0.9)
    assert found["gpu_memory_peak"] == 8e9
    assert found["power_mean"] == 100
    assert found["energy_joules"] is not None
    assert found["energy_joules"] >= 50
    telemetry.write_parquet(tmp_path / "telemetry.parquet")
    table = pq.read_table(tmp_path / "telemetry.parquet").to_pydict()
    assert table["preemptions"][0] == 8
    assert table["preemptions"][-1] == 11
    assert table["gpu_power_w"][0] == 100
    assert table["at_s"] == sorted(table["at_s"])


@pytest.mark.parametrize(
    ("status", "body"), [(404, "not here"), (500, ""), (200, "{ this is not prometheus"), (200, "")]
)
def test_a_server_without_metrics_is_normal(
    metrics: Metrics, tmp_path: Path, status: int, body: str
) -> None:
    metrics.status, metrics.body = status, body
    telemetry = Telemetry(metrics.url, NAMES, interval_s=0.02)
    telemetry.start()
    metrics.wait_for(2)
    found = telemetry.stop()
    assert set(found.values()) == {None}
    telemetry.write_parquet(tmp_path / "telemetry.parquet")
    assert pq.read_table(tmp_path / "telemetry.parquet").num_rows >= 2


def test_a_server_that_is_not_there_is_told_but_never_raised() -> None:
    gone = Metrics()
    gone.server.shutdown()
    gone.server.server_close()
    with Telemetry(gone.url, NAMES) as telemetry:
        pass
    assert telemetry.problem is not None
    assert set(telemetry.summary().values()) == {None}
    with pytest.raises(httpx.HTTPError):
        scrape(gone.url)


def test_counters_that_go_back_have_no_difference(metrics: Metrics) -> None:
    metrics.body = exposition(9)
    telemetry = Telemetry(metrics.url, NAMES, interval_s=0.02)
    telemetry.start()
    metrics.wait_for(1)
    metrics.body = exposition(1)
    metrics.wait_for(3)
    found = telemetry.stop()
    assert found["preemptions"] is None
    assert found["queue_p95"] is None
