"""How much measurements differ without a cause."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.noise import noise_of_launches


def test_one_value_tells_nothing() -> None:
    assert noise_of_launches([]) is None
    assert noise_of_launches([[1.0]]) is None
    assert noise_of_launches([[], [1.0]]) is None
    assert noise_of_launches([[1.0, 0.0]]) is None  # no logarithm


def test_repeats_in_one_launch_give_what_differs_within() -> None:
    found = noise_of_launches([[1.0, 1.1]])
    assert found is not None
    assert found.spread == pytest.approx(math.log(1.1) / math.sqrt(2))
    assert found.within == found.spread
    assert found.between is None
    assert found.tie == pytest.approx(math.log(1.1))


def test_single_measurements_of_several_launches_give_the_spread_of_launches() -> None:
    found = noise_of_launches([[1.0], [1.1], [1.2]])
    assert found is not None
    assert found.within is None
    assert found.spread == pytest.approx(0.0914, abs=1e-3)


def test_what_differs_between_launches_is_told_from_what_differs_within() -> None:
    rng = Random(3)
    within, between = [], []
    for _ in range(400):
        launches = []
        for _ in range(4):
            centre = rng.gauss(0, 0.03)
            launches.append([math.exp(centre + rng.gauss(0, 0.01)) for _ in range(3)])
        found = noise_of_launches(launches)
        assert found is not None
        assert found.within is not None
        assert found.between is not None
        within.append(found.within**2)
        between.append(found.between**2)
    assert math.sqrt(fmean(within)) == pytest.approx(0.01, rel=0.1)
    assert math.sqrt(fmean(between)) == pytest.approx(0.03, rel=0.1)


@given(
    st.lists(st.lists(st.floats(0.5, 2), min_size=1, max_size=4), min_size=1, max_size=4),
    st.floats(0.01, 100),
)
def test_the_noise_is_relative_and_never_negative(launches: list[list[float]], unit: float) -> None:
    found = noise_of_launches(launches)
    other = noise_of_launches([[value * unit for value in values] for values in launches])
    assert (found is None) == (other is None)
    if found is None or other is None:
        return
    assert found.spread >= 0
    assert found.spread >= (found.within or 0) - 1e-12
    assert other.spread == pytest.approx(found.spread, rel=1e-6, abs=1e-9)
