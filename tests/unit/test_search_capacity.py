"""Bracketing and bisection on made-up servers."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.capacity import (
    BELOW,
    CLOSE,
    HIGHEST,
    LOST,
    LOST_STEPS,
    LOWEST,
    MAX_STEPS,
    RESOLUTION,
    WIDE,
    CapacityFound,
    Step,
    find_capacity,
    multiplier_of,
    rung_of,
)

SURE = 30
"""Steps that are enough from any start to any truth of the ladder."""
truths = st.floats(min_value=LOWEST * 1.1, max_value=HIGHEST / 1.1)
rungs = st.integers(rung_of(LOWEST), rung_of(HIGHEST))


def server(truth: float, tried: list[float] | None = None) -> Callable[[float], Step]:
    """Holds every rate up to `truth`."""

    def measure(multiplier: float) -> Step:
        if tried is not None:
            tried.append(multiplier)
        return Step(multiplier=multiplier, met=multiplier <= truth, worst=multiplier / truth - 1)

    return measure


def is_consistent(found: CapacityFound) -> bool:
    held = [step.multiplier for step in found.steps if step.met]
    failed = [step.multiplier for step in found.steps if step.met is False]
    return (
        found.capacity == max(held, default=None)
        and found.failed_at == min(failed, default=None)
        and (not held or not failed or max(held) < min(failed))
    )


@given(truths, rungs)
def test_the_capacity_is_found_to_a_rung_from_any_start(truth: float, rung: int) -> None:
    tried: list[float] = []
    found = find_capacity(server(truth, tried), start=multiplier_of(rung), max_steps=SURE)
    assert found.ended == "found"
    assert found.capacity is not None
    assert found.failed_at is not None
    assert found.capacity <= truth < found.failed_at
    assert rung_of(found.failed_at) == rung_of(found.capacity) + 1
    assert found.failed_at / found.capacity == pytest.approx(1 + RESOLUTION, abs=1e-3)
    assert tried[0] == multiplier_of(rung)
    assert len(tried) == len(set(tried))
    assert is_consistent(found)


@given(truths, st.integers(-2, 2))
def test_a_start_near_the_truth_takes_few_replays(truth: float, off: int) -> None:
    near = multiplier_of(rung_of(truth) + off)
    found = find_capacity(server(truth), start=near, stride=CLOSE)
    assert found.ended == "found"
    assert len(found.steps) <= 5


@given(st.floats(1.0, 4.0))
def test_an_unknown_baseline_takes_no_more_than_eight_replays(truth: float) -> None:
    found = find_capacity(server(truth))
    assert found.ended == "found"
    assert len(found.steps) <= 8


@given(truths, truths)
def test_what_cannot_beat_the_best_costs_few_replays_and_no_wrong_value(
    truth: float, best: float
) -> None:
    to_beat = multiplier_of(rung_of(best))
    found = find_capacity(server(truth), start=to_beat, to_beat=to_beat)
    assert is_consistent(found)
    assert found.steps[0].multiplier == to_beat
    if truth >= to_beat:
        assert found.capacity is not None
        assert to_beat <= found.capacity <= truth
        return
    assert len(found.steps) <= 1 + LOST_STEPS + math.ceil(math.log2(rung_of(WIDE)))
    if found.capacity is None:
        assert found.ended in ("not_beaten", "never_met")
    else:
        assert found.capacity <= truth < found.failed_at  # type: ignore[operator]
        assert found.failed_at / found.capacity <= LOST * (1 + RESOLUTION)  # type: ignore[operator]


def test_the_ends_of_the_ladder_are_said() -> None:
    weak = find_capacity(server(0.01))
    assert (weak.capacity, weak.ended) == (None, "never_met")
    assert weak.failed_at == pytest.approx(LOWEST, rel=RESOLUTION)
    strong = find_capacity(server(1e9))
    assert (strong.failed_at, strong.ended) == (None, "always_met")
    assert strong.capacity == pytest.approx(HIGHEST, rel=RESOLUTION)


def test_steps_and_time_that_run_out_leave_the_bracket_so_far() -> None:
    found = find_capacity(server(3.0), max_steps=3)
    assert (found.capacity, found.ended, len(found.steps)) == (
        multiplier_of(rung_of(2.0)),
        "steps",
        3,
    )
    assert find_capacity(server(20.0), start=0.2).ended in ("steps", "found")
    short = find_capacity(server(3.0), may_step=lambda multiplier: multiplier >= 1.9)
    assert (short.steps, short.capacity, short.ended) == ((), None, "time")


def test_a_replay_that_says_nothing_ends_the_search_with_what_is_known() -> None:
    def measure(multiplier: float) -> Step:
        return Step(multiplier=multiplier, met=True if multiplier < 2.5 else None)

    found = find_capacity(measure)
    assert found.ended == "unjudged"
    assert found.capacity == multiplier_of(rung_of(2.0))
    assert found.failed_at is None


@given(truths, st.integers(0, 10_000), st.floats(0.0, 0.2))
def test_noise_around_the_truth_never_breaks_the_bracket(
    truth: float, seed: int, spread: float
) -> None:
    rng = Random(seed)

    def measure(multiplier: float) -> Step:
        return Step(multiplier=multiplier, met=multiplier <= truth * math.exp(rng.gauss(0, spread)))

    found = find_capacity(measure, start=truth)
    assert is_consistent(found)
    assert len(found.steps) <= MAX_STEPS


@given(truths, st.floats(1.05, 1.5), st.floats(1.05, 1.5))
def test_a_truth_with_a_hole_gives_one_of_its_boundaries(
    truth: float, gap: float, width: float
) -> None:
    """Held up to `truth`, not in the hole above it, held again, then not."""
    hole = (truth, truth * gap)
    end = truth * gap * width

    def holds(multiplier: float) -> bool:
        return multiplier <= end and not hole[0] < multiplier < hole[1]

    found = find_capacity(
        lambda multiplier: Step(multiplier=multiplier, met=holds(multiplier)), max_steps=SURE
    )
    assert is_consistent(found)
    if found.ended == "found":
        assert found.capacity is not None
        assert found.failed_at is not None
        assert holds(found.capacity)
        assert not holds(found.failed_at)


@given(rungs)
def test_a_rung_and_its_multiplier_name_each_other(rung: int) -> None:
    assert rung_of(multiplier_of(rung)) == rung


def test_the_recorded_rate_is_a_rung() -> None:
    assert (multiplier_of(0), rung_of(1.0)) == (1.0, 0)
    assert rung_of(1e6) == rung_of(HIGHEST)


@given(st.floats(1.5, 8.0), st.floats(0.96, 0.999))
def test_how_far_behind_a_near_miss_is_is_known_to_two_rungs(best: float, share: float) -> None:
    """Else a candidate that fails by a launch's noise would count as up to a third worse."""
    to_beat = multiplier_of(rung_of(best))
    found = find_capacity(server(to_beat * share), start=to_beat, to_beat=to_beat)
    assert found.ended == "not_beaten"
    assert found.capacity is not None
    assert found.failed_at is not None
    assert found.failed_at / found.capacity <= (1 + RESOLUTION) ** 2 * 1.001 * (
        1 if share > 1 / BELOW else LOST
    )
    assert len(found.steps) <= 3


@given(st.floats(1.5, 8.0), st.floats(0.3, 0.6))
def test_a_look_just_below_is_not_spent_on_a_clear_miss(best: float, share: float) -> None:
    tried: list[float] = []
    to_beat = multiplier_of(rung_of(best))
    find_capacity(server(to_beat * share, tried), start=to_beat, to_beat=to_beat)
    assert tried[1] <= to_beat / 1.3
