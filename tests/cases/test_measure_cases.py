"""Faults of other tools' numbers, each rebuilt small: B07, C01, C02, C09, C10, C12, C13, E05."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from autotune.measure.comparison import ConfirmPair, Standing, decide
from autotune.measure.measurement import Measurement
from autotune.measure.metrics import e2e, tpot, ttft
from autotune.measure.outcome import Score, Unmeasurable
from autotune.measure.scoring import score
from autotune.measure.summary import measure
from autotune.replay.records import ClientHealth, ReplayResult, RequestRecord
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import METRICS

TTFT = Objective(metric=METRICS["ttft_p99"], direction="minimize", text="minimize ttft_p99")
SUCCESS = Constraint(
    metric=METRICS["success_rate"], op=">=", value=0.99, relative=False, text="success_rate >= 0.99"
)


def record(index: int, **changes: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "due_s": index / 10, "measured": True, "planned_input_tokens": 9,
        "planned_output_tokens": 3, "sent_s": index / 10, "first_token_s": index / 10 + 0.1,
        "last_token_s": index / 10 + 0.2, "end_s": index / 10 + 0.2, "input_tokens": 9,
        "output_tokens": 3,
    }  # fmt: skip
    return RequestRecord(index=index, **{**values, **changes})


def measured(records: list[RequestRecord], aborted: str | None = None) -> Measurement:
    result = ReplayResult(
        records=tuple(records),
        health=ClientHealth(dispatch_lag_p99_s=0.0, loop_lag_p99_s=0.0, cpu_share=0.1),
        window_s=(0.0, len(records) / 10),
        wall_s=len(records) / 10,
        aborted=aborted,
    )
    return measure(
        result, telemetry={}, startup_s=None, limits={}, limited=[TTFT.metric], context={}
    )


def test_b07_survivors_of_a_dead_engine_are_never_scored() -> None:
    lived = [record(i) for i in range(90)]
    refused = [record(i, failure="refused", first_token_s=None) for i in range(90, 200)]
    found = measured(lived + refused, aborted="server_died")
    assert found.validity.verdict == "invalid"
    assert found.metrics["ttft_p50_s"] is None
    assert found.metrics["success_rate"] == pytest.approx(0.45)


def test_c01_a_request_ends_at_its_last_token_not_at_the_usage_event() -> None:
    one = record(0, due_s=0.0, first_token_s=0.12, last_token_s=0.18, end_s=0.24, output_tokens=3)
    assert ttft(one) == pytest.approx(0.12)
    assert tpot(one) == pytest.approx(0.03)
    assert e2e(one) == pytest.approx(0.18)


def test_c02_tokens_are_counted_by_usage_and_never_by_events() -> None:
    one = record(
        0, first_token_s=0.1, last_token_s=0.18, output_tokens=12, events=3, max_gap_s=0.04
    )
    assert tpot(one) == pytest.approx(0.08 / 11)


def test_c09_waiting_at_the_client_counts() -> None:
    # service takes 0.5 s, one at a time, one request every 0.1 s: the eighth waits for seven
    queued = [
        record(i, sent_s=0.5 * i, first_token_s=0.5 * (i + 1), last_token_s=0.5 * (i + 1))
        for i in range(8)
    ]
    metrics = measured(queued).metrics
    assert metrics["ttft_p99_s"] == pytest.approx(3.3)
    assert metrics["ttft_service_p99_s"] == pytest.approx(0.5)


def test_c10_failures_hurt_and_their_latencies_do_not_pollute() -> None:
    quick = {"failure": "http_5xx", "first_token_s": None, "last_token_s": None, "output_tokens": 3}
    records = [record(i, **(quick if i % 4 == 3 else {})) for i in range(100)]
    found = measured(records)
    assert found.metrics["success_rate"] == 0.75
    assert found.metrics["ttft_p50_s"] == pytest.approx(0.1)
    assert found.metrics["ttft_p99_s"] is None
    assert found.metrics["output_throughput_tps"] == pytest.approx(75 * 3 / 10, rel=0.02)
    median = Objective(metric=METRICS["ttft_p50"], direction="minimize", text="minimize ttft_p50")
    scored = score(found, [median], [SUCCESS], {})
    assert isinstance(scored, Score)
    assert not scored.feasible


def test_c12_warm_up_requests_are_left_out_of_every_latency() -> None:
    slow = [record(i, measured=False, first_token_s=i / 10 + 3) for i in range(4)]
    found = measured(slow + [record(i) for i in range(4, 44)])
    assert found.planned == 40
    assert found.metrics["ttft_p99_s"] == pytest.approx(0.1)
    assert found.metrics["ttft_max_s"] == pytest.approx(0.1)


def test_c13_the_best_of_noise_is_not_announced_as_a_gain() -> None:
    throughput = Objective(
        metric=METRICS["output_throughput"], direction="maximize",
        text="maximize output_throughput",
    )  # fmt: skip
    announced = 0
    for seed in range(300):
        rng = Random(seed)
        trials = [1000 * rng.uniform(0.97, 1.03) for _ in range(30)]
        best = max(range(1, 30), key=trials.__getitem__)
        pairs = [
            ConfirmPair(
                pair=n, baseline_trial=30 + 2 * n, best_trial=31 + 2 * n,
                baseline_value=1000 * rng.uniform(0.97, 1.03),
                best_value=1000 * rng.uniform(0.97, 1.03),
            )
            for n in range(3)
        ]  # fmt: skip
        found = decide(
            objective=throughput,
            baseline=Standing(trial=0, value=trials[0], feasible=True),
            best=Standing(trial=best, value=trials[best], feasible=True),
            pairs=pairs,
        )
        announced += found.verdict == "better"
    assert announced / 300 <= 0.05


def test_e05_an_objective_without_a_value_is_never_a_number() -> None:
    found = measured([record(i, output_tokens=1) for i in range(30)])
    objective = Objective(
        metric=METRICS["tpot_p50"], direction="minimize", text="minimize tpot_p50"
    )
    scored = score(found, [objective], [], {})
    assert isinstance(scored, Unmeasurable)
    assert scored.message == "metric not defined: no request with two or more tokens"
