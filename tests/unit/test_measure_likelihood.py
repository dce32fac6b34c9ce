"""The loss of answers, its interval and what follows: identical passes, unclear does not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.built_in_texts import built_in
from autotune.measure.likelihood import (
    LEAST_PASSAGES,
    Estimate,
    Scored,
    agreement_of,
    broken_share,
    fall_of,
    garbage,
    judged,
    loss_of,
    scored,
    shared_prefix,
)

nlls = st.lists(st.floats(50.0, 900.0), min_size=LEAST_PASSAGES, max_size=60)


def passages(values: list[float], tokens: int = 200) -> dict[str, Scored]:
    return {f"p{i}": Scored(nll=value, tokens=tokens) for i, value in enumerate(values)}


def test_score_is_the_sum_over_all_tokens_but_the_first() -> None:
    assert scored([None, -1.0, -2.5]) == Scored(nll=3.5, tokens=2)
    assert scored([-9.0, -1.0]) == Scored(nll=1.0, tokens=1)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_number_that_is_none_leaves_no_score(bad: float | None) -> None:
    assert scored([None, -1.0, bad, -2.0]) is None


@given(nlls)
def test_identical_engine_has_no_loss_and_passes_any_limit(values: list[float]) -> None:
    found = loss_of(passages(values), passages(values))
    assert found == Estimate(value=0.0, low=0.0, high=0.0, count=len(values))
    assert judged(found, 0.0, "loss").verdict == "passed"


@given(nlls, st.floats(0.0, 1.0))
def test_loss_is_the_relative_rise_in_perplexity(values: list[float], loss: float) -> None:
    before = passages(values)
    after = {
        k: Scored(nll=s.nll + s.tokens * math.log1p(loss), tokens=7) for k, s in before.items()
    }
    found = loss_of(before, after)
    assert found is not None
    assert found.value == pytest.approx(loss, abs=1e-9)


def test_passages_weigh_alike_whatever_their_length() -> None:
    before = {"a": Scored(nll=100.0, tokens=10), "b": Scored(nll=100.0, tokens=1000)}
    after = {"a": Scored(nll=102.0, tokens=10), "b": Scored(nll=100.0, tokens=1000)}
    found = loss_of(before, after)
    assert found is not None
    assert found.value == pytest.approx(math.expm1(0.1))


@given(nlls, st.lists(st.floats(-20.0, 20.0), min_size=60, max_size=60))
def test_interval_holds_the_loss(values: list[float], rises: list[float]) -> None:
    after = [v + r for v, r in zip(values, rises, strict=False)]
    found = loss_of(passages(values), passages(after))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high


def test_only_common_passages_are_compared() -> None:
    before = passages([10.0, 20.0])
    after = {"p1": Scored(nll=20.0, tokens=200), "other": Scored(nll=9.0, tokens=1)}
    found = loss_of(before, after)
    assert found is not None
    assert found.count == 1
    assert loss_of(before, {}) is None


def test_loss_of_nonsense_is_large_and_finite() -> None:
    found = loss_of(passages([10.0] * 9, tokens=1), passages([9999.0] * 9, tokens=1))
    assert found is not None
    assert math.isfinite(found.value)
    assert judged(found, 0.01, "loss").verdict == "failed"


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict"),
    [
        (-0.002, 0.001, 0.009, "passed"),
        (0.0, 0.0, 0.01, "passed"),
        (-0.03, -0.02, -0.01, "passed"),
        (0.004, 0.008, 0.012, "not_enough"),
        (-0.05, 0.0, 0.05, "not_enough"),
        (0.011, 0.02, 0.03, "failed"),
        (0.01, 0.02, 0.03, "not_enough"),
    ],
)
def test_what_cannot_be_told_from_too_much_does_not_pass(
    low: float, value: float, high: float, verdict: str
) -> None:
    found = judged(Estimate(value=value, low=low, high=high, count=40), 0.01, "the loss")
    assert found.verdict == verdict
    assert bool(found.because) == (verdict != "passed")


@pytest.mark.parametrize("count", [0, 1, LEAST_PASSAGES - 1])
def test_few_passages_are_not_enough_however_equal(count: int) -> None:
    found = judged(loss_of(passages([5.0] * count), passages([5.0] * count)), 0.01, "the loss")
    assert found.verdict == "not_enough"
    assert str(count) in found.because


@given(st.lists(st.sampled_from("abc"), max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
def test_agreement_is_a_share_the_same_both_ways_and_one_for_equals(
    one: list[str], other: list[str]
) -> None:
    share = shared_prefix(one, other)
    assert 0 <= share <= 1
    assert share == shared_prefix(other, one)
    assert (share == 1) == (one == other)


def test_agreement_counts_up_to_the_first_difference() -> None:
    assert shared_prefix("abcd", "abXd") == 0.5
    assert shared_prefix("ab", "abcd") == 0.5
    found = agreement_of({"x": "abcd", "y": "ab"}, {"x": "abXd", "y": "ab", "z": "q"})
    assert found is not None
    assert (found.value, found.count) == (0.75, 2)
    assert found.rest.value == 0.25
    assert agreement_of({"x": "a"}, {}) is None


def test_servers_that_both_say_nothing_are_not_said_to_agree() -> None:
    assert agreement_of({"x": ""}, {"x": ""}) is None
    found = agreement_of({"x": "", "y": "a"}, {"x": "b", "y": "a"})
    assert found is not None
    assert (found.value, found.count) == (0.5, 2)


@pytest.mark.parametrize(
    ("text", "units", "wrong"),
    [
        ("", (), "empty"),
        ("  \n", ("\n",), "empty"),
        ("!" * 32, ("!",) * 32, "repeated"),
        ("la" * 5, ("la",) * 5, None),
        ("a\ufffdb\ufffd\ufffd", ("a", "b"), "unreadable"),
        ("a word cut short \ufffd", ("a", "word"), None),
        ("Paris, of course.", ("Paris", ",", " of", " course", "."), None),
    ],
)
def test_garbage_is_recognised(text: str, units: tuple[str, ...], wrong: str | None) -> None:
    assert garbage(text, units) == wrong


def test_garbage_that_the_baseline_gives_too_is_not_held_against_a_candidate() -> None:
    reference = {"a": "repeated", "b": None, "c": None, "d": None}
    candidate = {"a": "repeated", "b": "empty", "c": None, "d": None}
    assert broken_share(reference, candidate) == 0.25
    assert broken_share(reference, {}) == 0.0


def test_fall_of_a_task_is_relative_and_paired() -> None:
    before = {f"d{i}": float(i % 2) for i in range(20)}
    after = {**before, "d1": 0.0}
    found = fall_of(before, after)
    assert found is not None
    assert found.value == pytest.approx(0.1)
    assert fall_of({"a": 0.0}, {"a": 1.0}) is None
    assert fall_of(before, {}) is None


def test_built_in_set_is_whole() -> None:
    texts = built_in()
    assert len(texts) >= 48
    assert len({text.text for text in texts}) == len(texts)
    assert min(len(text.text) for text in texts) > 150
    assert max(len(text.text) for text in texts) < 1100
    assert {"en", "de", "fr", "es", "ru", "zh", "ja", "code", "numbers"} <= {t.kind for t in texts}
    assert not any("===" in text.text and " | " in text.text for text in texts)
