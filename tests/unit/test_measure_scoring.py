from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Score, Unmeasurable
from autotune.measure.quantiles import percentile, percentile_interval, wilson_interval
from autotune.measure.scoring import (
    NO_BASELINE,
    NOT_AVAILABLE,
    NOT_DEFINED,
    REQUESTS_FAILED,
    request_limits,
    score,
    violation,
)
from autotune.spec.expressions import Constraint, Objective, parse_constraint
from autotune.spec.vocabulary import METRICS

TTFT = Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95")


def limit(metric: str, op: Any, value: float, *, relative: bool = False) -> Constraint:
    text = f"{metric} {op} {value:g}{' x baseline' if relative else ''}"
    return Constraint(metric=METRICS[metric], op=op, value=value, relative=relative, text=text)


def measurement(failed: int = 0, unbounded: tuple[str, ...] = (), **metrics: Any) -> Measurement:
    return Measurement(
        validity=Validity(verdict="valid"),
        planned=100,
        ok=100 - failed,
        failed=failed,
        failed_by_reason={"http_5xx": failed} if failed else {},
        metrics={"ttft_p95_s": 0.4, "tpot_p95_s": 0.02, "success_rate": 1.0, **metrics},
        intervals={},
        client={},
        unbounded=unbounded,
    )


def test_absolute_limits_give_signed_shares_of_the_limit() -> None:
    limits = [limit("ttft_p95", "<=", 0.5), limit("success_rate", ">=", 0.999)]
    found = score(measurement(success_rate=0.9), [TTFT], limits, {})
    assert isinstance(found, Score)
    assert found.values == {"minimize ttft_p95": 0.4}
    assert found.violations["ttft_p95 <= 0.5"] == pytest.approx(-0.2)
    assert found.violations["success_rate >= 0.999"] == pytest.approx(0.099 / 0.999)
    assert not found.feasible


@pytest.mark.parametrize(("factor", "holds"), [(1.1, True), (1.0, True), (0.5, False)])
def test_the_baseline_is_held_against_its_own_value(factor: float, holds: bool) -> None:
    relative = limit("tpot_p95", "<=", factor, relative=True)
    found = score(measurement(), [TTFT], [relative], None)
    assert isinstance(found, Score)
    assert found.feasible is holds
    assert found.limits[relative.text] == pytest.approx(factor * 0.02)


def test_relative_limits_follow_the_measured_baseline() -> None:
    relative = limit("tpot_p95", "<=", 1.1, relative=True)
    found = score(measurement(), [TTFT], [relative], {"tpot_p95_s": 0.01})
    assert isinstance(found, Score)
    assert found.violations[relative.text] == pytest.approx(0.02 / 0.011 - 1)


def test_a_relative_limit_without_a_measured_baseline_gives_no_verdict() -> None:
    relative = limit("tpot_p95", "<=", 1.1, relative=True)
    found = score(measurement(), [TTFT], [relative], {"tpot_p95_s": None})
    assert isinstance(found, Unmeasurable)
    assert found.reason == NO_BASELINE


def test_a_limit_that_failures_make_infinite_is_violated_by_their_share() -> None:
    shed = measurement(failed=3, unbounded=("ttft_p99_s",), ttft_p99_s=None)
    found = score(shed, [TTFT], [limit("ttft_p99", "<=", 1)], {})
    assert isinstance(found, Score)
    assert found.violations["ttft_p99 <= 1"] == pytest.approx(0.03)


def test_an_objective_that_failures_make_infinite_is_infeasible() -> None:
    shed = measurement(failed=30, unbounded=("ttft_p95_s",), ttft_p95_s=None)
    found = score(shed, [TTFT], [], {})
    assert isinstance(found, Infeasible)
    assert found.diagnosis.reason == REQUESTS_FAILED
    assert found.diagnosis.evidence == ("30 of 100 requests: http_5xx",)


def test_an_undefined_objective_gives_no_verdict() -> None:
    tpot = Objective(metric=METRICS["tpot_p95"], direction="minimize", text="minimize tpot_p95")
    found = score(measurement(tpot_p95_s=None), [tpot], [], {})
    assert isinstance(found, Unmeasurable)
    assert found.reason == NOT_DEFINED
    assert found.message == "metric not defined: no request with two or more tokens"


def test_a_metric_that_the_server_does_not_report_gives_no_verdict() -> None:
    found = score(measurement(), [TTFT], [limit("preemptions", "<=", 0)], {})
    assert isinstance(found, Unmeasurable)
    assert found.reason == NOT_AVAILABLE


def test_a_limit_of_zero_can_be_met_and_broken() -> None:
    assert violation(0.0, "<=", 0.0) == 0
    assert violation(3.0, "<=", 0.0) == 3


@given(
    st.floats(0, 1e9),
    st.sampled_from(["<=", ">="]),
    st.floats(-1e6, 1e6).filter(lambda bound: abs(bound) > 1e-9 or bound == 0),
)
def test_a_violation_is_finite_and_positive_exactly_when_the_limit_is_broken(
    value: float, op: str, bound: float
) -> None:
    found = violation(value, op, bound)
    assert math.isfinite(found)
    assert (found <= 0) == (value <= bound if op == "<=" else value >= bound)


def test_a_score_can_always_be_written_as_strict_json() -> None:
    found = score(measurement(), [TTFT], [limit("ttft_p95", "<=", 0.5)], {})
    assert isinstance(found, Score)
    json.dumps([dict(found.values), dict(found.violations)], allow_nan=False)


def test_goodput_uses_the_tightest_absolute_latency_limits() -> None:
    limits = [
        limit("ttft_p95", "<=", 0.5), limit("ttft_p99", "<=", 0.4), limit("success_rate", ">=", 1),
        limit("tpot_p95", "<=", 1.1, relative=True), limit("e2e_p50", ">=", 3),
    ]  # fmt: skip
    assert request_limits(limits) == {"ttft": 0.4}


# ---- the far end of the interval, for the search


def with_interval(low: float | None, high: float | None, **more: Any) -> Measurement:
    found = measurement(**more)
    intervals = {"ttft_p95_s": (low, high), "success_rate": wilson_interval(found.ok, 100)}
    return replace(found, intervals=intervals)


def scored(found: Measurement, *limits: Constraint, baseline: Any = None) -> Score:
    verdict = score(found, [], limits, baseline)
    assert isinstance(verdict, Score)
    return verdict


def test_the_search_holds_a_limit_against_the_far_end_and_the_verdict_against_the_value() -> None:
    found = scored(with_interval(0.3, 0.6), limit("ttft_p95", "<=", 0.5))
    assert found.feasible
    assert found.violations == {"ttft_p95 <= 0.5": pytest.approx(-0.2)}
    assert found.search_violations == {"ttft_p95 <= 0.5": pytest.approx(0.2)}
    assert found.observed == {}


def test_too_few_requests_for_an_interval_leave_the_value_and_say_so() -> None:
    few = replace(with_interval(0.3, None), planned=40, ok=40)
    found = scored(few, limit("ttft_p95", "<=", 0.5))
    assert found.cautious == {}
    assert found.observed == {
        "ttft_p95 <= 0.5": "40 requests are too few for the interval of ttft_p95"
    }


def test_a_far_end_on_failed_requests_is_missed_by_their_share() -> None:
    found = scored(with_interval(0.3, None, failed=3), limit("ttft_p95", "<=", 0.5))
    assert found.feasible
    assert found.search_violations == {"ttft_p95 <= 0.5": pytest.approx(0.03)}


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_candidate_that_equals_the_baseline_keeps_its_relative_limits(factor: float) -> None:
    same = with_interval(0.3, 0.6)
    found = scored(same, limit("ttft_p95", "<=", factor, relative=True), baseline=same.metrics)
    assert max(found.search_violations.values()) <= 0
    assert list(found.observed.values()) == [
        "relative to the baseline, which replays the same requests"
    ]


def test_a_share_that_so_few_requests_cannot_show_is_held_against_its_value() -> None:
    strict = scored(with_interval(0.3, 0.4), limit("success_rate", ">=", 0.999))
    assert max(strict.search_violations.values()) <= 0
    assert list(strict.observed.values()) == ["100 requests cannot show this share beyond doubt"]
    loose = scored(with_interval(0.3, 0.4, failed=2, success_rate=0.98),
                   limit("success_rate", ">=", 0.95))  # fmt: skip
    assert loose.feasible
    assert loose.search_violations["success_rate >= 0.95"] > 0


def test_a_metric_without_an_interval_is_held_against_its_value() -> None:
    found = scored(measurement(kv_usage_max=0.9), limit("kv_usage_max", "<=", 0.95))
    assert found.observed == {"kv_usage_max <= 0.95": "kv_usage_max has no interval"}


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=300), st.floats(0.01, 10))
def test_the_search_is_never_less_strict_than_the_verdict(
    samples: list[float], bound: float
) -> None:
    found = replace(
        measurement(ttft_p95_s=percentile(samples, 95)),
        planned=len(samples),
        ok=len(samples),
        intervals={"ttft_p95_s": percentile_interval(samples, 95)},
    )
    verdict = scored(found, limit("ttft_p95", "<=", bound))
    text = next(iter(verdict.violations))
    assert verdict.search_violations[text] >= verdict.violations[text]


@pytest.mark.parametrize(
    ("text", "key", "baseline"),
    [
        ("e2e_p99 <= 8s", "e2e_p99_s", {}),
        ("queue_p95 <= 1.2 x baseline", "queue_p95_s", {"queue_p95_s": 0.5}),
        ("kv_usage_max <= 0.95", "kv_usage_max", {}),
        ("ttft_service_p90 <= 1.5 x baseline", "ttft_service_p90_s", {"ttft_service_p90_s": 0.2}),
        ("chunk_gap_max <= 300ms", "chunk_gap_max_s", {}),
        ("output_throughput >= 0.9 x baseline", "output_throughput_tps",
         {"output_throughput_tps": 100.0}),
        ("gpu_memory_peak <= 70GiB", "gpu_memory_peak_bytes", {}),
        ("prefix_hit_rate >= 0.5 x baseline", "prefix_hit_rate", {"prefix_hit_rate": 0.4}),
    ],
)  # fmt: skip
def test_any_metric_can_be_limited_absolutely_and_relative_to_the_baseline(
    text: str, key: str, baseline: dict[str, Any]
) -> None:
    constraint = parse_constraint(text)
    bound = constraint.value * baseline.get(key, 1.0)
    at_limit: dict[str, Any] = {key: bound}
    exact = scored(measurement(**at_limit), constraint, baseline=baseline)
    assert exact.violations[constraint.text] == pytest.approx(0.0)
    off = 1.1 if constraint.op == "<=" else 0.9
    beyond: dict[str, Any] = {key: bound * off}
    missed = scored(measurement(**beyond), constraint, baseline=baseline)
    assert missed.violations[constraint.text] == pytest.approx(0.1)
