from __future__ import annotations

from autotune.search.finalists import Contender, choose, launch_order


def contender(
    trial: int, value: float | None, feasible: bool = True, changes: int = 1
) -> Contender:
    return Contender(trial=trial, value=value, feasible=feasible, changes=changes)


BASELINE = contender(0, 1.0, changes=0)


def test_only_feasible_candidates_better_than_the_baseline_are_confirmed() -> None:
    field = [
        BASELINE, contender(1, 0.5, feasible=False), contender(2, 0.8), contender(3, 1.2),
        contender(4, None, feasible=False), contender(5, 0.7),
    ]  # fmt: skip
    assert choose(field, BASELINE, direction="minimize", count=3) == (5, 2)
    assert choose(field, BASELINE, direction="minimize", count=1) == (5,)
    assert choose(field, BASELINE, direction="maximize", count=3) == (3,)


def test_without_a_feasible_baseline_every_feasible_candidate_competes() -> None:
    broken = contender(0, 0.1, feasible=False)
    field = [broken, contender(1, 0.9), contender(2, 1.5)]
    assert choose(field, broken, direction="minimize", count=3) == (1, 2)
    assert choose(field, None, direction="minimize", count=3) == (1, 2)


def test_ties_go_to_fewer_changes_and_then_to_the_earlier_trial() -> None:
    field = [contender(1, 0.5, changes=4), contender(3, 0.5), contender(2, 0.5)]
    assert choose(field, BASELINE, direction="minimize", count=3) == (2, 3, 1)


def test_what_keeps_the_limits_for_certain_comes_before_better_values_in_doubt() -> None:
    doubtful = Contender(trial=1, value=0.5, feasible=True, changes=1, certain=False)
    field = [doubtful, contender(2, 0.8), contender(3, 0.9)]
    assert choose(field, BASELINE, direction="minimize", count=2) == (2, 3)
    assert choose(field, BASELINE, direction="minimize", count=3) == (2, 3, 1)
    assert choose([doubtful], BASELINE, direction="minimize", count=2) == (1,)


def test_launches_are_interleaved_and_swap_sides() -> None:
    order = [(launch.trial, launch.pair) for launch in launch_order(0, [7], 3)]
    assert order == [(0, 0), (7, 0), (7, 1), (0, 1), (0, 2), (7, 2)]


def test_every_pair_launches_each_side_once() -> None:
    order = launch_order(0, [7, 9], 4)
    for pair in range(4):
        assert sorted(launch.trial for launch in order if launch.pair == pair) == [0, 7, 9]


def test_nothing_is_launched_without_a_finalist_or_without_repeats() -> None:
    assert launch_order(0, [], 3) == ()
    assert launch_order(0, [7], 0) == ()
