"""When predictions are not followed any more."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from autotune.search.trust import LATEST, Trust, rank_correlation


def test_good_predictions_keep_their_trust() -> None:
    rng, trust = random.Random(1), Trust()
    for i in range(40):
        truth = 0.1 * (i % 7)
        trust.learn(truth, 0.05, truth + rng.gauss(0, 0.05))
        assert trust.lost() is None


def test_near_ties_in_another_order_are_no_reason() -> None:
    trust = Trust()
    for i in range(LATEST):
        trust.learn(0.01 * i, 0.02, -0.01 * i)
    assert trust.lost() is None


def test_errors_far_beyond_the_claims_are_a_reason() -> None:
    trust = Trust()
    for i in range(LATEST):
        assert trust.lost() is None
        trust.learn(0.0, 0.05, 0.3 + 0.01 * i)
    why = trust.lost()
    assert why is not None
    assert "times what was claimed" in why


def test_the_opposite_order_is_a_reason() -> None:
    trust = Trust()
    for i in range(LATEST):
        trust.learn(0.2 * i, 0.5, -0.2 * i)
    why = trust.lost()
    assert why is not None
    assert "another order" in why


def test_only_the_latest_count() -> None:
    trust = Trust()
    for _ in range(LATEST - 1):
        trust.learn(0.0, 0.05, 1.0)
    for _ in range(LATEST):
        trust.learn(0.0, 0.05, 0.0)
    assert trust.lost() is None


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=8, unique=True))
def test_rank_correlation_is_one_with_itself_and_minus_one_reversed(values: list[float]) -> None:
    assert rank_correlation(values, values) == 1.0
    assert rank_correlation(values, [-value for value in values]) == -1.0
