from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Score, Unmeasurable
from autotune.measure.scoring import (
    NO_BASELINE,
    NOT_AVAILABLE,
    NOT_DEFINED,
    REQUESTS_FAILED,
    request_limits,
    score,
    violation,
)
from autotune.spec.expressions import Constraint, Objective
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
