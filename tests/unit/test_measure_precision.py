from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.precision import expected_spread, expected_width, requests_wanted
from autotune.measure.quantiles import interval_ranks


def test_more_requests_know_a_percentile_better() -> None:
    widths = [expected_width(99, count) for count in (500, 1000, 4000, 16000)]
    assert all(width is not None for width in widths)
    assert widths == sorted(widths, reverse=True)  # type: ignore[type-var]


def test_a_window_too_small_for_an_end_says_so() -> None:
    low, high = expected_spread(99, 150)
    assert low is not None
    assert high is None
    assert expected_width(99, 150) is None


def test_the_spread_is_that_of_exponential_waits() -> None:
    count, rng = 400, Random(3)
    low_rank, high_rank = interval_ranks(95, count)
    assert low_rank is not None
    assert high_rank is not None
    lows, highs = [], []
    for _ in range(400):
        waits = sorted(rng.expovariate(1) for _ in range(count))
        lows.append(waits[low_rank - 1])
        highs.append(waits[high_rank - 1])
    value = -math.log(0.05)
    low, high = expected_spread(95, count)
    assert low == pytest.approx(math.fsum(lows) / 400 / value - 1, abs=0.01)
    assert high == pytest.approx(math.fsum(highs) / 400 / value - 1, abs=0.02)


@given(st.sampled_from([50.0, 90.0, 95.0, 99.0]), st.floats(0.05, 1.0))
def test_the_least_number_of_requests_is_the_least(percent: float, width: float) -> None:
    wanted = requests_wanted(percent, width)
    assert wanted is not None
    reached = expected_width(percent, wanted)
    assert reached is not None
    assert reached <= width
    before = expected_width(percent, wanted - 1)
    # Ranks are whole numbers, so widths have steps of a few per mille against the trend.
    assert before is None or before > width * 0.97


def test_what_cannot_be_reached() -> None:
    assert requests_wanted(99, 1e-6) is None
    with pytest.raises(ValueError, match="cannot be reached"):
        requests_wanted(99, 0)
    with pytest.raises(ValueError, match="no interval"):
        expected_spread(100, 5)
