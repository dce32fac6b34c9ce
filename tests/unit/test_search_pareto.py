"""Fronts, their volume, their knee, and the points that say most."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.pareto import dominates, front, hypervolume, knee, most_telling, scaled

CURVE = [(1.0, 9.0), (2.0, 4.0), (3.0, 3.0), (5.0, 2.5), (9.0, 2.0)]


def points(costs: int, most: int = 12) -> st.SearchStrategy[list[tuple[float, ...]]]:
    return st.lists(st.tuples(*[st.integers(0, 6).map(float)] * costs), min_size=1, max_size=most)


many = st.integers(1, 3).flatmap(points)


@given(many)
def test_the_front_is_what_nothing_beats_and_beats_all_the_rest(
    given_points: list[tuple[float, ...]],
) -> None:
    chosen = front(given_points)
    assert chosen
    for index, point in enumerate(given_points):
        beaten = any(dominates(given_points[other], point) for other in chosen)
        assert beaten == (index not in chosen)


def test_equal_points_do_not_beat_each_other() -> None:
    assert not dominates((1.0, 2.0), (1.0, 2.0))
    assert front([(1.0, 2.0), (1.0, 2.0), (2.0, 2.0)]) == [0, 1]


def test_the_volume_of_known_fronts() -> None:
    assert hypervolume([(0.0, 0.0)], (1.0, 1.0)) == 1.0
    assert hypervolume([(0.0, 0.5), (0.5, 0.0)], (1.0, 1.0)) == pytest.approx(0.75)
    assert hypervolume([(0.0, 0.0, 0.5), (0.5, 0.5, 0.0)], (1.0, 1.0, 1.0)) == pytest.approx(0.625)
    assert hypervolume([(2.0, 2.0)], (1.0, 1.0)) == 0.0


@given(points(3, 6), st.integers(0, 1000))
def test_the_volume_is_that_of_counted_unit_cells(
    given_points: list[tuple[float, ...]], seed: int
) -> None:
    corner = (7, 7, 7)
    cells = sum(
        any(p[0] <= x and p[1] <= y and p[2] <= z for p in given_points)
        for x in range(7)
        for y in range(7)
        for z in range(7)
    )
    shuffled = list(given_points)
    Random(seed).shuffle(shuffled)
    assert hypervolume(shuffled, corner) == pytest.approx(cells)


def test_the_knee_is_where_one_gives_up_least() -> None:
    assert CURVE[knee(CURVE)] == (3.0, 3.0)
    assert scaled([(1.0, 5.0), (3.0, 5.0)]) == [(0.0, 0.0), (1.0, 0.0)]


def test_the_best_in_the_first_then_the_knee_then_what_adds_most_are_told() -> None:
    assert most_telling(CURVE, 1) == [0]
    assert most_telling(CURVE, 2) == [0, 2]
    assert most_telling(CURVE, 3) == [0, 2, 1]
    assert sorted(most_telling([*CURVE, (9.0, 9.0)], 9)) == [0, 1, 2, 3, 4]
    assert most_telling([], 3) == []


@given(many, st.integers(1, 5))
def test_the_chosen_are_few_distinct_points_of_the_front_with_the_best_of_the_first(
    given_points: list[tuple[float, ...]], count: int
) -> None:
    chosen = most_telling(given_points, count)
    assert set(chosen) <= set(front(given_points))
    assert len({given_points[index] for index in chosen}) == len(chosen)
    assert 1 <= len(chosen) <= count
    assert given_points[chosen[0]][0] == min(point[0] for point in given_points)


def test_the_choice_does_not_depend_on_the_units() -> None:
    stretched = [(a * 1000, b) for a, b in CURVE]
    assert most_telling(stretched, 4) == most_telling(CURVE, 4)
    for order in permutations(range(3)):
        few = [CURVE[index] for index in order]
        assert {few[i] for i in most_telling(few, 2)} == {CURVE[0], CURVE[1]}
