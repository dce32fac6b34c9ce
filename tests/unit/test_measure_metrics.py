from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.metrics import (
    chunk_gap,
    client_metrics,
    e2e,
    meets,
    output_throughput,
    tpot,
    ttft,
    ttft_service,
)
from autotune.replay.records import RequestRecord
from autotune.spec.vocabulary import METRICS


def record(index: int = 0, **changes: Any) -> RequestRecord:
    """A success: due 1.0, sent 1.1, tokens from 1.5 to 2.5, 11 tokens."""
    values: dict[str, Any] = {
        "due_s": 1.0, "measured": True, "planned_input_tokens": 5, "planned_output_tokens": 11,
        "sent_s": 1.1, "first_token_s": 1.5, "last_token_s": 2.5, "end_s": 2.6,
        "input_tokens": 5, "output_tokens": 11, "max_gap_s": 0.3,
    }  # fmt: skip
    return RequestRecord(index=index, **{**values, **changes})


def failed(index: int = 0, **changes: Any) -> RequestRecord:
    return record(
        index, failure="http_5xx", first_token_s=None, last_token_s=None, output_tokens=None,
        max_gap_s=None, **changes,
    )  # fmt: skip


def test_latencies_of_one_request_follow_their_formulas() -> None:
    one = record()
    assert ttft(one) == pytest.approx(0.5)
    assert ttft_service(one) == pytest.approx(0.4)
    assert tpot(one) == pytest.approx(0.1)
    assert e2e(one) == pytest.approx(1.5)
    assert chunk_gap(one) == 0.3


def test_tokens_of_the_first_event_are_left_out_of_tpot() -> None:
    burst = record(first_token_s=0.1, last_token_s=0.18, output_tokens=12, first_event_tokens=4)
    assert tpot(burst) == pytest.approx(0.01)


@pytest.mark.parametrize(("tokens", "first"), [(1, 1), (4, 4), (None, 1)])
def test_tpot_is_not_defined_without_a_token_after_the_first_event(
    tokens: int | None, first: int
) -> None:
    assert tpot(record(output_tokens=tokens, first_event_tokens=first)) is None


def test_every_latency_and_rate_of_the_vocabulary_gets_its_key() -> None:
    numbers = client_metrics([record(i) for i in range(3)], (0.0, 4.0), {})
    expected = {
        metric.key
        for metric in METRICS.values()
        if metric.statistic is not None
        or metric.name in ("success_rate", "output_throughput", "request_throughput", "goodput")
    }
    assert set(numbers.metrics) == expected
    assert all(value is not None for value in numbers.metrics.values())


def test_a_percentile_that_lands_on_a_failure_has_no_number_and_says_so() -> None:
    records = [record(i) for i in range(97)] + [failed(i) for i in range(97, 100)]
    numbers = client_metrics(records, (0.0, 4.0), {})
    assert numbers.metrics["ttft_p95_s"] == pytest.approx(0.5)
    assert numbers.metrics["ttft_p99_s"] is None
    assert "ttft_p99_s" in numbers.unbounded
    assert "ttft_p95_s" not in numbers.unbounded
    assert numbers.metrics["ttft_mean_s"] == pytest.approx(0.5)
    assert numbers.metrics["success_rate"] == pytest.approx(0.97)


def test_shedding_slow_requests_never_improves_a_percentile() -> None:
    slow = [record(i, first_token_s=1.0 + (i + 1) / 10) for i in range(100)]
    shed = [*slow[:96], *(failed(i) for i in range(96, 100))]
    kept = client_metrics(slow, (0.0, 4.0), {}).metrics["ttft_p95_s"]
    assert client_metrics(shed, (0.0, 4.0), {}).metrics["ttft_p95_s"] == kept


def test_requests_that_are_not_measured_count_for_no_latency() -> None:
    records = [record(0, measured=False, first_token_s=90.0), record(1)]
    numbers = client_metrics(records, (0.0, 4.0), {})
    assert numbers.metrics["ttft_max_s"] == pytest.approx(0.5)


def test_a_metric_without_samples_is_not_defined_rather_than_unbounded() -> None:
    numbers = client_metrics([record(output_tokens=1)], (0.0, 4.0), {})
    assert numbers.metrics["tpot_p95_s"] is None
    assert numbers.intervals["tpot_p95_s"] == (None, None)
    assert not any(key.startswith("tpot") for key in numbers.unbounded)


def test_throughput_counts_tokens_inside_the_window_only() -> None:
    # 11 tokens: one at 1.5, ten evenly to 2.5
    assert output_throughput([record()], (0.0, 4.0)) == pytest.approx(11 / 4)
    assert output_throughput([record()], (0.0, 2.0)) == pytest.approx((1 + 5) / 2)
    assert output_throughput([record()], (2.0, 4.0)) == pytest.approx(5 / 2)
    assert output_throughput([failed()], (0.0, 4.0)) == 0
    assert output_throughput([record()], (1.0, 1.0)) is None


@given(
    st.floats(0, 10), st.floats(0, 10), st.integers(1, 500), st.integers(1, 8),
    st.lists(st.integers(1, 25_000), min_size=1, max_size=5, unique=True),
)  # fmt: skip
def test_windows_that_touch_share_all_tokens_between_them(
    first: float, length: float, tokens: int, at_once: int, cuts_ms: list[int]
) -> None:
    one = record(
        first_token_s=first, last_token_s=first + length, output_tokens=tokens,
        first_event_tokens=at_once,
    )  # fmt: skip
    edges = [0.0, *(cut / 1000 for cut in sorted(cuts_ms)), 30.0]
    inside = [
        (output_throughput([one], (start, end)) or 0.0) * (end - start)
        for start, end in pairwise(edges)
    ]
    assert math.fsum(inside) == pytest.approx(tokens, rel=1e-6, abs=1e-6)


def test_goodput_counts_requests_that_met_every_limit() -> None:
    records = [record(0), record(1, first_token_s=2.0), failed(2), record(3, output_tokens=1)]
    numbers = client_metrics(records, (0.0, 2.0), {"ttft": 0.6, "tpot": 0.2})
    assert numbers.metrics["goodput_per_s"] == pytest.approx(2 / 2)
    assert not meets(records[1], {"ttft": 0.6})
    assert not meets(records[2], {})
    assert meets(records[3], {"tpot": 0.01})
