"""What the fast simulation adds to the whole one: prefix pieces, limits that bind nobody, rates."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.simulator.fast import run
from autotune.simulator.load import AMPLE, Job, Limits, Load, Pace, jobs_at, simultaneous
from autotune.simulator.profile import StepCoefficients

PACE = Pace(
    step=StepCoefficients(a_s=1e-3, m_s=3e-3, b_s=2e-5, c_s=6e-10, d_s=1.3e-8, f_s=1e-3),
    r0_s=5e-3,
)
LIMITS = Limits(budget=2048, seqs=AMPLE)


def traffic(seed: int, count: int = 60) -> Load:
    rng = random.Random(seed)
    moments = [rng.uniform(0, count / 6) for _ in range(count)]
    return jobs_at(
        moments,
        [rng.randint(1, 6000) for _ in moments],
        [rng.choice([1, 20, 200]) for _ in moments],
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_limits_that_held_nobody_up_stand_for_all_larger_ones(seed: int) -> None:
    load = traffic(seed)
    free = run(load, LIMITS, PACE)
    assert not free.seats_blocked
    assert not free.memory_blocked
    tight = replace(LIMITS, seqs=free.most_seated, kv_tokens=free.most_tokens)
    same = run(load, tight, PACE)
    assert same.last == pytest.approx(free.last)
    assert not same.memory_blocked
    assert not same.seats_blocked
    fewer = run(load, replace(tight, seqs=max(1, free.most_seated - 1)), PACE)
    assert fewer.seats_blocked or free.most_seated == 1


def test_every_request_ends_however_short_the_memory() -> None:
    load = traffic(3)
    times = run(load, replace(LIMITS, kv_tokens=7000), PACE)
    assert times.memory_blocked
    assert all(math.isfinite(last) for last in times.last)


def test_a_request_that_no_memory_holds_never_ends_and_the_simulation_does() -> None:
    times = run(jobs_at([0.0], [5000], [10]), replace(LIMITS, kv_tokens=1000), PACE)
    assert times.last == [math.inf]


def test_a_known_prefix_is_not_computed_again() -> None:
    chain = tuple(range(8))
    jobs = tuple(Job(at_s=float(i), prompt=8 * 512 + 10, output=1, chain=chain) for i in range(2))
    cold = run(Load(jobs=jobs), LIMITS, PACE)
    assert cold.cached == [0, 8 * 512]
    assert cold.first[1] - cold.due[1] < 0.2 * (cold.first[0] - cold.due[0])
    warm = run(Load(jobs=jobs, primed=chain), LIMITS, PACE)
    assert warm.cached == [8 * 512, 8 * 512]
    off = run(Load(jobs=jobs), replace(LIMITS, prefix_caching=False), PACE)
    assert off.cached == [0, 0]


def test_a_prefix_is_forgotten_when_more_than_the_memory_was_written_since() -> None:
    chain = tuple(range(4))
    first = Job(at_s=0.0, prompt=4 * 512 + 1, output=1, chain=chain)
    others = [Job(at_s=1.0 + i, prompt=2000, output=1) for i in range(4)]
    load = Load(jobs=(first, *others, replace(first, at_s=9.0)))
    assert run(load, replace(LIMITS, kv_tokens=20_000), PACE).cached[-1] == 4 * 512
    assert run(load, replace(LIMITS, kv_tokens=6000), PACE).cached[-1] == 0


def test_only_the_measured_are_waited_for() -> None:
    late = Job(at_s=100.0, prompt=10, output=1, measured=False)
    times = run(Load(jobs=(Job(at_s=0.0, prompt=10, output=5), late)), LIMITS, PACE)
    assert math.isfinite(times.last[0])
    assert times.end_s < 1.0


def test_a_rate_moves_arrivals_and_leaves_gaps() -> None:
    jobs = (
        Job(at_s=4.0, prompt=100, output=3),
        Job(at_s=0.0, prompt=100, output=3, after=0, gap_s=2.0),
    )
    times = run(Load(jobs=jobs, rate=2.0), LIMITS, PACE)
    assert times.due[0] == 2.0
    assert math.isclose(times.due[1], times.last[0] + 2.0)


def test_without_mixed_steps_decoding_stands_still_while_a_prompt_is_computed() -> None:
    load = Load(jobs=(Job(at_s=0.0, prompt=10, output=100), Job(at_s=0.1, prompt=20_000, output=1)))
    mixed = run(load, LIMITS, PACE)
    apart = run(load, replace(LIMITS, mixed=False), PACE)
    assert apart.last[0] > mixed.last[0]
    assert apart.first[1] <= mixed.first[1]


def test_each_prompt_in_a_step_may_cost_something() -> None:
    load = simultaneous(100, 1, 8)
    plain, dear = run(load, LIMITS, PACE), run(load, LIMITS, replace(PACE, chunk_s=1e-3))
    # One alone in the first step, seven in the next: requests queue behind the step ahead
    assert math.isclose(max(dear.last) - max(plain.last), 8e-3, rel_tol=1e-6)
