from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autotune.measure.quantiles import (
    interval_ranks,
    percentile,
    percentile_interval,
    rank_of,
    samples_wanted,
    wilson_interval,
)

latencies = st.lists(
    st.floats(min_value=0, max_value=1e6) | st.just(math.inf), min_size=1, max_size=200
)
percents = st.sampled_from([1, 7, 50, 90, 95, 99, 99.9, 100])


@given(latencies, percents)
def test_a_percentile_is_a_sample_with_enough_samples_at_or_below_it(
    samples: list[float], percent: float
) -> None:
    value = percentile(samples, percent)
    assert value in samples
    at_or_below = sum(sample <= value for sample in samples)
    below = sum(sample < value for sample in samples)
    assert at_or_below >= percent / 100 * len(samples) - 1e-6
    assert below < percent / 100 * len(samples)


@given(latencies)
def test_percentiles_never_fall_when_the_percent_rises(samples: list[float]) -> None:
    values = [percentile(samples, percent) for percent in (1, 50, 90, 95, 99, 100)]
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("percent", "count", "rank"),
    [(95, 20, 19), (95, 21, 20), (7, 100, 7), (99.9, 1000, 999), (50, 1, 1), (50, 2, 1)],
)
def test_ranks_are_nearest_ranks_without_rounding_accidents(
    percent: float, count: int, rank: int
) -> None:
    assert rank_of(percent, count) == rank


def test_a_percentile_lands_on_infinity_when_failures_reach_it() -> None:
    samples = [0.1] * 96 + [math.inf] * 4
    assert percentile(samples, 95) == 0.1
    assert percentile(samples, 99) == math.inf


@pytest.mark.parametrize("percent", [50, 90, 95, 99])
@pytest.mark.parametrize("count", [1, 5, 20, 72, 73, 100, 368, 1000, 4321])
def test_interval_ranks_agree_with_scipy_quantile_test(percent: float, count: int) -> None:
    result = stats.quantile_test(range(1, count + 1), q=0, p=percent / 100)
    low, high = result.confidence_interval(0.95)
    expected = tuple(None if math.isnan(end) else int(end) for end in (low, high))
    assert interval_ranks(percent, count) == expected


@given(st.integers(1, 3000), st.sampled_from([50, 90, 95, 99]))
def test_the_interval_covers_at_least_what_it_promises(count: int, percent: float) -> None:
    low, high = interval_ranks(percent, count)
    binomial = stats.binom(count, percent / 100)
    assert binomial.cdf((low or 0) - 1) <= 0.025 + 1e-9
    if high is not None:
        assert binomial.sf(high - 1) <= 0.025 + 1e-9
        assert low is None or low <= rank_of(percent, count) <= high


def test_an_interval_end_on_a_failure_does_not_exist() -> None:
    samples = [float(n) for n in range(100)] + [math.inf] * 5
    low, high = percentile_interval(samples, 95)
    assert low is not None
    assert math.isfinite(low)
    assert high is None
    assert percentile_interval([], 95) == (None, None)


@given(st.integers(0, 500), st.integers(0, 500))
def test_wilson_interval_agrees_with_scipy_and_holds_the_share(hits: int, misses: int) -> None:
    count = hits + misses
    low, high = wilson_interval(hits, count)
    if count == 0:
        assert (low, high) == (None, None)
        return
    expected = stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert low is not None
    assert high is not None
    assert low <= hits / count <= high


@pytest.mark.parametrize(("percent", "count"), [(50, 2), (90, 10), (95, 20), (99, 100)])
def test_enough_samples_make_a_percentile_more_than_the_maximum(percent: float, count: int) -> None:
    assert samples_wanted(percent) == count
    assert rank_of(percent, count) < count or percent == 50


@pytest.mark.parametrize(("percent", "count"), [(0, 5), (101, 5), (50, 0)])
def test_impossible_percentiles_are_refused(percent: float, count: int) -> None:
    with pytest.raises(ValueError, match="no rank"):
        rank_of(percent, count)
