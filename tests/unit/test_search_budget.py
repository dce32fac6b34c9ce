from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.budget import (
    Budget,
    affordable_repeats,
    confirm_reserve,
    expected_launch_s,
    may_confirm,
    may_start,
    remaining,
    too_small,
)


def test_a_launch_is_expected_to_take_as_long_as_most_recent_ones() -> None:
    assert expected_launch_s([]) is None
    assert expected_launch_s([10, 20, 30, 40]) == 30
    assert expected_launch_s([900.0] * 5 + [10.0] * 12) == 10


def test_the_confirmation_is_kept_back_from_the_search() -> None:
    left = remaining(
        Budget(time_s=1000), elapsed_s=100, finished=1, durations=[50], repeats=3, finalists=1
    )
    assert left.time_s == pytest.approx(1000 - 100 - 3 * 2 * 50)
    assert left.launches == 12


def test_the_first_launch_may_start_while_its_cost_is_unknown() -> None:
    assert may_start(Budget(time_s=10), elapsed_s=0, finished=0, durations=[]).allowed


@pytest.mark.parametrize(
    ("budget", "elapsed", "finished", "allowed"),
    [
        (Budget(), 1e9, 10**6, True),
        (Budget(trials=3), 0, 2, True),
        (Budget(trials=3), 0, 3, False),
        (Budget(time_s=100), 50, 2, True),
        (Budget(time_s=100), 80, 2, False),
        (Budget(time_s=100, used_s=60), 20, 2, False),
        (Budget(time_s=100, trials=2), 0, 2, False),
    ],
)
def test_nothing_starts_that_does_not_fit(
    budget: Budget, elapsed: float, finished: int, allowed: bool
) -> None:
    decision = may_start(budget, elapsed_s=elapsed, finished=finished, durations=[30, 30])
    assert decision.allowed is allowed
    assert decision.reason


@given(
    st.floats(1, 1e5), st.floats(0, 1e5), st.lists(st.floats(0.1, 1e4), min_size=1, max_size=30),
    st.integers(0, 5), st.integers(1, 3),
)  # fmt: skip
def test_a_launch_that_starts_leaves_the_reserve_untouched(
    time_s: float, elapsed_s: float, durations: list[float], repeats: int, finalists: int
) -> None:
    budget = Budget(time_s=time_s)
    decision = may_start(
        budget, elapsed_s=elapsed_s, finished=len(durations), durations=durations,
        repeats=repeats, finalists=finalists,
    )  # fmt: skip
    launch_s = expected_launch_s(durations)
    assert launch_s is not None
    reserve_s = confirm_reserve(
        budget, repeats=repeats, finalists=finalists, launch_s=launch_s
    ).time_s
    assert 0 <= reserve_s <= 0.6 * time_s + 1e-6
    fits = elapsed_s + launch_s + reserve_s <= time_s
    if decision.allowed:
        assert elapsed_s + launch_s + reserve_s <= time_s * (1 + 1e-9)
    elif elapsed_s + launch_s + reserve_s < time_s * (1 - 1e-9):
        assert not fits


def test_a_small_budget_gets_fewer_confirm_pairs_rather_than_no_search() -> None:
    assert affordable_repeats(Budget(time_s=600), repeats=3, finalists=1, launch_s=100) == 1
    assert affordable_repeats(Budget(time_s=100), repeats=3, finalists=1, launch_s=100) == 0
    assert affordable_repeats(Budget(), repeats=3, finalists=1, launch_s=100) == 3
    assert affordable_repeats(Budget(time_s=600), repeats=3, finalists=1, launch_s=None) == 3


def test_three_pairs_may_take_a_little_more_for_fewer_give_no_interval() -> None:
    budget = Budget(time_s=1000)
    assert affordable_repeats(budget, repeats=5, finalists=1, launch_s=100) == 3
    assert affordable_repeats(budget, repeats=5, finalists=1, launch_s=101) == 2
    assert affordable_repeats(budget, repeats=5, finalists=1, launch_s=70) == 3
    assert affordable_repeats(budget, repeats=2, finalists=1, launch_s=100) == 2


def test_slots_and_gpu_hours_bound_the_pairs() -> None:
    four = Budget(time_s=1000, slots=4)
    assert affordable_repeats(four, repeats=20, finalists=1, launch_s=100) == 8
    assert confirm_reserve(four, repeats=8, finalists=1, launch_s=100).time_s == 400
    hours = Budget(gpu_s=4000, gpus=2)
    assert affordable_repeats(hours, repeats=5, finalists=1, launch_s=100) == 5
    assert confirm_reserve(hours, repeats=5, finalists=1, launch_s=100).gpu_s == 2000


def test_gpu_hours_end_the_search_before_the_reserve_is_touched() -> None:
    budget = Budget(gpu_s=3600, gpus=2)
    left = remaining(
        budget, elapsed_s=1e9, finished=3, durations=[100], repeats=3, gpu_used_s=1000
    )  # fmt: skip
    assert (left.time_s, left.gpu_s, left.launches) == (None, 3600 - 1000 - 1200, 7)
    decision = may_start(
        budget, elapsed_s=0, finished=3, durations=[100], repeats=3, gpu_used_s=2300
    )  # fmt: skip
    assert not decision.allowed
    assert decision.reason == "0.0278 GPU-hours are left for the search, a launch takes 0.0556"
    assert may_confirm(budget, elapsed_s=0, durations=[100], launches=2, gpu_used_s=3200).allowed
    assert not may_confirm(
        budget, elapsed_s=0, durations=[100], launches=2, gpu_used_s=3201
    ).allowed
    assert "GPU-hours" in str(too_small(budget, startup_s=1000, replay_s=1000))


def test_a_confirm_launch_needs_time_of_its_own() -> None:
    assert may_confirm(Budget(time_s=100), elapsed_s=60, durations=[30]).allowed
    assert not may_confirm(Budget(time_s=100), elapsed_s=80, durations=[30]).allowed
    assert may_confirm(Budget(), elapsed_s=1e9, durations=[30]).allowed


def test_a_budget_below_one_launch_is_refused_with_both_numbers() -> None:
    reason = too_small(Budget(time_s=60), startup_s=30, replay_s=120)
    assert reason is not None
    assert "60 s" in reason
    assert "120 s" in reason
    assert too_small(Budget(time_s=150), startup_s=30, replay_s=120) is None
    assert too_small(Budget(trials=1), startup_s=30, replay_s=120) is None
