"""Capacity and metrics of simulated replays, and the candidates that are looked at."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.candidate_pool import WHOLE, CandidatePool
from autotune.search.choices import Choices
from autotune.search.simulated_capacity import near_capacity, simulated_capacity
from autotune.search.simulated_metrics import log_violation, simulated_value, worst_violation
from autotune.simulator.fast import run
from autotune.simulator.load import Job, Limits, Load, Pace, jobs_at
from autotune.simulator.profile import StepCoefficients
from autotune.space.candidate import Candidate
from autotune.space.search_space import load_space
from autotune.spec.expressions import parse_constraint
from autotune.spec.vocabulary import METRICS

LIMITS = Limits(budget=2048, seqs=64, kv_tokens=100_000)
PACE = Pace(
    step=StepCoefficients(a_s=1e-3, m_s=3e-3, b_s=2e-5, c_s=6e-10, d_s=1.3e-8, f_s=1e-3), r0_s=5e-3
)


@given(st.floats(0.2, 25.0), st.floats(1.0, 20.0), st.one_of(st.none(), st.floats(0.2, 25.0)))
def test_the_capacity_is_where_the_violation_changes_its_sign(
    truth: float, slope: float, start: float | None
) -> None:
    found = simulated_capacity(lambda rate: slope * math.log(rate / truth), start=start)
    assert found == pytest.approx(truth, rel=0.01)


def test_a_violation_that_jumps_is_bracketed_all_the_same() -> None:
    found = simulated_capacity(lambda rate: math.inf if rate > 3.3 else -0.5)
    assert found == pytest.approx(3.3, rel=0.02)


def test_at_the_ends_of_the_range_these_are_the_answer() -> None:
    assert simulated_capacity(lambda rate: -1.0) == pytest.approx(32.0)
    assert simulated_capacity(lambda rate: 1.0) == pytest.approx(0.125)
    assert simulated_capacity(lambda rate: None) is None


def test_two_simulations_tell_about_where_it_is() -> None:
    asked: list[float] = []

    def violation(rate: float) -> float:
        asked.append(rate)
        return 3.0 * math.log(rate / 2.0)

    found, _ = near_capacity(violation, start=1.2)
    assert found == pytest.approx(2.0, rel=0.05)
    assert len(asked) == 2


def test_metrics_of_a_simulated_replay() -> None:
    load = jobs_at([0.5 * i for i in range(20)], [1000] * 20, [1] * 5 + [30] * 15)
    times = run(load, LIMITS, PACE)

    def value(name: str) -> float | None:
        return simulated_value(METRICS[name], load, times, LIMITS, {"ttft": 1.0})

    assert value("ttft_p50") == pytest.approx(0.0267, rel=0.3)
    assert value("ttft_max") is not None
    assert value("success_rate") == 1.0
    assert value("goodput") == pytest.approx(2.0)
    assert value("request_throughput") == pytest.approx(2.0, rel=0.1)
    assert 0 < (value("kv_usage_max") or 0) < 0.1
    assert value("preemptions") == 0.0
    assert value("power_mean") is None


def test_a_request_that_never_ends_leaves_percentiles_without_a_number() -> None:
    load = Load(jobs=(Job(at_s=0.0, prompt=200_000, output=5), Job(at_s=0.0, prompt=10, output=5)))
    times = run(load, LIMITS, PACE)
    assert simulated_value(METRICS["ttft_p95"], load, times, LIMITS, {}) is None
    assert simulated_value(METRICS["success_rate"], load, times, LIMITS, {}) == 0.0


def test_the_worst_violation_ignores_shares_that_hold() -> None:
    limits = [parse_constraint("ttft_p95 <= 2s"), parse_constraint("success_rate >= 0.99")]
    values = {"ttft_p95": 1.0, "success_rate": 1.0}
    worst = worst_violation(limits, {}, lambda metric: values[metric.name])
    assert worst == pytest.approx(math.log(0.5))
    values["success_rate"] = 0.5
    broken = worst_violation(limits, {}, lambda metric: values[metric.name])
    assert broken is not None
    assert broken > 0


def test_relative_limits_refer_to_the_baseline() -> None:
    limits = [parse_constraint("tpot_p95 <= 1.1 x baseline")]
    worst = worst_violation(limits, {"tpot_p95_s": 0.02}, lambda metric: 0.022)
    assert worst == pytest.approx(0.0, abs=1e-9)
    assert worst_violation(limits, {}, lambda metric: 0.022) is None
    assert log_violation(2.0, ">=", 1.0) < 0


def choices(values: int) -> Choices:
    knobs = {f"k{i}": {"type": "int", "values": list(range(1, values + 1))} for i in range(4)}
    return Choices(load_space({"knobs": knobs, "rules": ["k0 <= k1"]}), {})


def test_a_small_space_is_looked_at_as_a_whole() -> None:
    pool = CandidatePool(choices(4), seed=0)
    assert pool.whole
    assert len(pool.candidates) == len(set(pool.candidates)) == 16 * 10


def test_a_large_one_in_part_and_around_what_is_good() -> None:
    pool = CandidatePool(choices(10), seed=0)
    assert not pool.whole
    before = len(pool.candidates)
    assert before <= WHOLE
    place = pool.include(Candidate({"k0": 1, "k1": 5, "k2": 5, "k3": 5}))
    assert place is not None
    pool.extend_around([place])
    assert all(c.params["k0"] <= c.params["k1"] for c in pool.candidates)
    assert pool.place(Candidate({"k0": 2, "k1": 5, "k2": 5, "k3": 5})) is not None
    assert pool.include(Candidate({"k0": 77, "k1": 5, "k2": 5, "k3": 5})) is None
