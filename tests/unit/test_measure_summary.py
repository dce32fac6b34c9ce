from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.measure.measurement import Measurement
from autotune.measure.prefill_decode import diagnose_load
from autotune.measure.summary import measure
from autotune.replay.records import ClientHealth, ReplayResult, RequestRecord
from autotune.spec.vocabulary import METRICS


def record(index: int, *, ttft: float = 0.1, decode: float = 0.9, **changes: Any) -> RequestRecord:
    due = index / 10
    values: dict[str, Any] = {
        "due_s": due, "measured": True, "planned_input_tokens": 100, "planned_output_tokens": 10,
        "sent_s": due, "first_token_s": due + ttft, "last_token_s": due + ttft + decode,
        "end_s": due + ttft + decode, "input_tokens": 100, "output_tokens": 10,
    }  # fmt: skip
    return RequestRecord(index=index, **{**values, **changes})


def result(records: list[RequestRecord]) -> ReplayResult:
    return ReplayResult(
        records=tuple(records),
        health=ClientHealth(
            dispatch_lag_p99_s=0.001, loop_lag_p99_s=0.001, cpu_share=0.1, workers=2,
            extra={"gc_frozen": True},
        ),
        window_s=(0.0, len(records) / 10),
        wall_s=len(records) / 10,
    )  # fmt: skip


TELEMETRY: dict[str, float | None] = {
    "kv_usage_max": 0.5, "preemptions": 0.0, "prefix_hit_rate": 0.25, "queue_p95": 0.002,
    "gpu_memory_peak": None, "power_mean": 300.0, "energy_joules": 3000.0, "running_max": 4.0,
    "waiting_max": 0.0,
}  # fmt: skip


def summed(records: list[RequestRecord], **changes: Any) -> Measurement:
    settings: dict[str, Any] = {
        "telemetry": TELEMETRY, "startup_s": 42.0, "limits": {"ttft": 0.5},
        "limited": [METRICS["ttft_p95"]], "context": {"cache_state": "fresh"}, **changes,
    }  # fmt: skip
    return measure(result(records), **settings)


def test_a_measurement_holds_every_metric_of_the_vocabulary() -> None:
    found = summed([record(i) for i in range(40)])
    one_replay = {metric.key for metric in METRICS.values() if not metric.searched}
    assert set(found.metrics) == one_replay
    assert found.metrics["startup_seconds_s"] == 42.0
    assert found.metrics["prefix_hit_rate"] == 0.25
    assert found.metrics["energy_per_1k_tokens_j"] == pytest.approx(3000 / 0.4)
    assert found.metrics["gpu_memory_peak_bytes"] is None
    assert found.validity.verdict == "valid"


def test_a_measurement_survives_strict_json() -> None:
    records = [record(i) for i in range(38)]
    records += [record(i, failure="http_5xx", first_token_s=None) for i in range(38, 40)]
    found = summed(records)
    text = json.dumps(found.to_json(), allow_nan=False)
    again = Measurement.from_json(json.loads(text))
    assert again.to_json() == found.to_json()
    assert (again.planned, again.ok, again.failed) == (40, 38, 2)
    assert again.failed_by_reason == {"http_5xx": 2}
    assert {"dispatch_lag_p99_s", "loop_lag_p99_s", "cpu_share"} <= set(again.client)
    assert again.context["cache_state"] == "fresh"


def test_requests_that_are_not_measured_are_not_planned() -> None:
    found = summed([record(0, measured=False, failure="cut"), *(record(i) for i in range(1, 40))])
    assert (found.planned, found.failed) == (39, 0)


def test_a_server_that_tells_nothing_leaves_its_metrics_empty() -> None:
    found = summed([record(i) for i in range(40)], telemetry={}, startup_s=None)
    assert found.metrics["kv_usage_max"] is None
    assert found.metrics["energy_per_1k_tokens_j"] is None
    assert found.metrics["startup_seconds_s"] is None


@pytest.mark.parametrize(
    ("ttft", "decode", "telemetry", "cap", "bound"),
    [
        (0.9, 0.1, {}, None, "prefill"),
        (0.1, 0.9, {}, None, "decode"),
        (0.5, 0.5, {}, None, "mixed"),
        (0.9, 0.1, {"queue_p95": 0.8}, None, "queue"),
        (0.9, 0.1, {"queue_p95": 0.01}, None, "prefill"),
        (0.9, 0.1, {"queue_p95": 0.8, "running_max": 8.0, "waiting_max": 5.0}, 8, "sequence_cap"),
        (0.9, 0.1, {"running_max": 7.0, "waiting_max": 5.0}, 8, "prefill"),
        (0.9, 0.1, {"kv_usage_max": 0.99, "running_max": 8.0, "waiting_max": 5.0}, 8, "kv_cache"),
        (0.1, 0.9, {"preemptions": 3.0}, None, "kv_cache"),
    ],
)
def test_the_diagnosis_names_what_bounds_a_candidate(
    ttft: float, decode: float, telemetry: dict[str, float | None], cap: int | None, bound: str
) -> None:
    records = [record(i, ttft=ttft, decode=decode) for i in range(20)]
    found = diagnose_load(records, telemetry, max_num_seqs=cap)
    assert found["bound"] == bound
    assert found["evidence"]


def test_nothing_is_diagnosed_where_nothing_succeeded() -> None:
    found = diagnose_load([record(0, failure="cut")], {})
    assert found == {"bound": "unknown", "ttft_share": None, "evidence": [], "knobs": []}


@pytest.mark.parametrize(
    ("engine", "knob"),
    [("vllm", "max-num-seqs"), ("simulated", "max-num-seqs"), ("sglang", "max-running-requests")],
)
def test_the_diagnosis_names_the_knob_that_addresses_it(engine: str, knob: str) -> None:
    telemetry = {"running_max": 8.0, "waiting_max": 3.0}
    found = diagnose_load([record(0)], telemetry, max_num_seqs=8, engine=engine)
    assert (found["bound"], found["knobs"]) == ("sequence_cap", [knob])


def test_an_engine_without_known_flags_gets_no_advice() -> None:
    telemetry = {"running_max": 8.0, "waiting_max": 3.0}
    for engine in (None, "generic"):
        found = diagnose_load([record(0)], telemetry, max_num_seqs=8, engine=engine)
        assert (found["bound"], found["knobs"]) == ("sequence_cap", [])


def test_a_client_that_was_the_limit_says_nothing_of_the_server() -> None:
    telemetry = {"preemptions": 9.0}
    found = diagnose_load([record(0)], telemetry, engine="vllm", spoiled=["the client was busy"])
    assert (found["bound"], found["knobs"]) == ("client", [])
    assert found["evidence"][0] == "the client was busy"
