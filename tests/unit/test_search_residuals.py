"""What launches teach about candidates that were not launched."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.search.residuals import Grid, Residuals, Rows, pull_matrix

GRID = Grid(counts=(5, 3), ordered=(True, False), understood=(True, False))


def rows(places: list[tuple[int, int]], behaviour: list[float], *, steep: float = 1.0,
         pulls: list[float] | None = None, predicted: bool = True) -> Rows:  # fmt: skip
    count = len(places)
    return Rows(
        places=np.array(places, dtype=int),
        behaviour=np.array(behaviour, dtype=float).reshape(count, 1),
        pulls=np.array(pulls or [0.0] * count, dtype=float).reshape(count, 1),
        steep=np.full(count, steep),
        predicted=np.full(count, predicted),
    )


def test_without_launches_there_is_only_doubt() -> None:
    process = Residuals(GRID, rows([], []), np.zeros(0))
    mean, variance = process.at(rows([(1, 1)], [0.0]))
    assert mean[0] == 0.0
    assert 0.02 < variance[0] ** 0.5 < 0.2


def test_a_launch_speaks_for_its_like() -> None:
    process = Residuals(GRID, rows([(1, 1)], [0.0]), np.array([0.2]))
    asked = rows([(1, 1), (2, 1), (1, 2), (5, 2)], [0.0, 0.0, 0.0, 2.0])
    mean, variance = process.at(asked)
    assert mean[0] == pytest.approx(0.2, abs=0.04)
    assert mean[0] >= mean[1] > mean[2] > mean[3]
    assert variance[0] <= variance[1] < variance[2] < variance[3]


def test_what_a_value_does_is_learned_for_all_that_have_it() -> None:
    known = rows([(1, 1), (1, 2)], [0.0, 0.0])
    mean, _ = Residuals(GRID, known, np.array([0.0, 0.15])).at(rows([(4, 1), (4, 2)], [1.0, 1.0]))
    assert mean[1] - mean[0] > 0.05


def test_what_candidates_share_is_learned_from_one() -> None:
    known = rows([(1, 1)], [0.0], pulls=[0.1])
    asked = rows([(5, 3), (5, 3)], [2.0, 2.0], pulls=[0.2, -0.2])
    mean, _ = Residuals(GRID, known, np.array([0.1])).at(asked)
    assert mean[0] > 0.05
    assert mean[1] < 0


def test_doubt_grows_with_steepness() -> None:
    process = Residuals(GRID, rows([], []), np.zeros(0))
    _, flat = process.at(rows([(1, 1)], [0.0]))
    _, steep = process.at(rows([(1, 1)], [0.0], steep=3.0))
    assert steep[0] > 4 * flat[0]


def test_large_residuals_widen_all_doubt() -> None:
    places = [(1, 1), (3, 2), (5, 3), (2, 1)]
    calm = Residuals(GRID, rows(places, [0, 1, 2, 3]), np.array([0.01, -0.02, 0.01, 0.0]))
    wild = Residuals(GRID, rows(places, [0, 1, 2, 3]), np.array([0.5, -0.6, 0.4, -0.5]))
    assert wild.scale > calm.scale


def test_a_bound_counts_less_than_a_measurement() -> None:
    one = rows([(1, 1)], [0.0])
    sure, _ = Residuals(GRID, one, np.array([0.2])).at(one)
    vague, _ = Residuals(GRID, one, np.array([0.2]), np.array([0.3])).at(one)
    assert vague[0] < sure[0]


def test_what_nothing_predicts_has_wide_doubt() -> None:
    _, blind = Residuals(GRID, rows([], []), np.zeros(0)).at(rows([(1, 1)], [0.0], predicted=False))
    assert blind[0] ** 0.5 > 0.25


def test_equal_names_of_pulls_are_one_column() -> None:
    matrix = pull_matrix([{"a": 1.0, "b": 2.0}, {"b": 3.0}], ["a", "b"])
    assert matrix.tolist() == [[1.0, 2.0], [0.0, 3.0]]
