from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.measure.comparison import Change
from autotune.report import numbers
from autotune.report.numbers import MILLISECONDS, SECONDS, Units
from autotune.report.words import change_cell, change_range, change_words, outcome_phrase
from autotune.spec.vocabulary import METRICS

TTFT = METRICS["ttft_p95"]
THROUGHPUT = METRICS["output_throughput"]
positive = st.floats(min_value=1e-4, max_value=1e5)


def parsed(text: str) -> float:
    return float(text.replace(",", "").replace(numbers.MINUS, "-"))


@given(low=positive, step=positive, at=st.floats(0, 1))
def test_a_shown_value_lies_within_its_shown_interval(low: float, step: float, at: float) -> None:
    high = low + step
    value = min(max(low + at * step, low), high)
    text = numbers.with_interval(value, SECONDS, (low, high))
    shown, _, rest = text.partition(" s (")
    left, _, right = rest.removesuffix(")").partition(" to ")
    assert parsed(left) <= parsed(shown) <= parsed(right)


@given(low=positive, step=positive, at=st.floats(0, 1))
def test_a_value_in_a_table_lies_within_the_interval_beside_it(
    low: float, step: float, at: float
) -> None:
    high = low + step
    value = min(max(low + at * step, low), high)
    shown = numbers.quantity(value, SECONDS, (low, high), unit=False)
    left, right = numbers.bounds(value, SECONDS, (low, high)).strip("[]").split(", ")
    assert parsed(left) <= parsed(shown) <= parsed(right)


@given(
    a=st.floats(0, 1), b=st.floats(0, 1), c=st.floats(0, 1)
)  # fmt: skip
def test_a_shown_share_lies_within_its_shown_interval(a: float, b: float, c: float) -> None:
    low, value, high = sorted((a, b, c))
    texts = [parsed(numbers.share(item).removesuffix(" %")) for item in (low, value, high)]
    assert texts == sorted(texts)


@given(st.floats(0, 1, exclude_max=True))
def test_a_share_below_one_never_reads_as_100_per_cent(value: float) -> None:
    assert numbers.share(value) != "100 %"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100 %"), (0.9986, "99.86 %"), (0.999, "99.9 %"), (0.0, "0 %"), (0.61, "61 %")],
)
def test_shares_are_written_with_the_decimals_they_need(value: float, text: str) -> None:
    assert numbers.share(value) == text


def test_digits_follow_the_half_width_of_the_interval() -> None:
    assert numbers.with_interval(1.387, SECONDS, (1.346, 1.428)) == "1.39 s (1.35 to 1.43)"
    assert numbers.quantity(0.0978123, MILLISECONDS, (0.0951, 0.1005)) == "97.8 ms"
    assert numbers.quantity(1387.0, SECONDS, (1340.0, 1430.0)) == "1,390 s"


@given(positive)
def test_a_half_width_keeps_one_digit_or_two_if_it_starts_with_1_or_2(half: float) -> None:
    place = numbers.place_of(half)
    assert place is not None
    digits = round(half * 10.0**place, 6)
    assert 2.99 <= digits <= 29.999999 or math.isclose(digits, 30, rel_tol=1e-5)


def test_an_end_that_does_not_exist_is_said_in_words() -> None:
    text = numbers.bounds(1.39, SECONDS, (1.35, None), samples=60)
    assert text.startswith("[1.35,")
    assert "not measurable with 60 requests" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.84, "0.8 s"), (97.2, "97 s"), (725.0, "12 min 5 s"), (22320.0, "6 h 12 min"),
     (None, "not measured"), (math.nan, "not measured")],
)  # fmt: skip
def test_durations_read_as_people_say_them(seconds: float | None, text: str) -> None:
    assert numbers.duration(seconds) == text


def test_a_missing_value_is_said_in_words() -> None:
    for value in (None, math.nan, math.inf):
        assert numbers.quantity(value, SECONDS) == "not measured"


def test_latencies_have_one_unit_for_the_whole_report_chosen_by_the_baseline() -> None:
    slow, fast = Units(baseline={"ttft_p95_s": 1.2}), Units(baseline={"ttft_p95_s": 0.9})
    assert slow.scale(METRICS["ttft_p50"]) == SECONDS
    assert fast.scale(METRICS["ttft_p99"]) == MILLISECONDS
    assert slow.scale(METRICS["tpot_p95"]) == MILLISECONDS
    assert slow.scale(METRICS["startup_seconds"]) == SECONDS
    assert slow.scale(METRICS["gpu_memory_peak"]).unit == "GiB"


@pytest.mark.parametrize(
    ("metric", "ratio", "text"),
    [
        (TTFT, 0.35, "65 % shorter"),
        (TTFT, 1.042, "4.2 % longer"),
        (TTFT, 2.84, "2.8 times as long"),
        (THROUGHPUT, 1.3, "30 % higher"),
        (THROUGHPUT, 2.3, "2.3 times as high"),
        (TTFT, 1.0, "no change"),
        (TTFT, 0.99995, "less than 0.1 % shorter"),
    ],
)
def test_changes_are_said_in_words(metric: object, ratio: float, text: str) -> None:
    assert change_words(metric, ratio) == text  # type: ignore[arg-type]


@given(st.floats(0.01, 50))
def test_no_change_is_ever_called_faster_and_no_ratio_is_given_in_per_cent(ratio: float) -> None:
    for metric in METRICS.values():
        text = change_words(metric, ratio)
        assert "faster" not in text
        assert not ("times" in text and "%" in text)


def test_an_interval_of_a_change_is_in_the_words_of_the_change() -> None:
    assert change_range(Change(ratio=0.35, low=0.32, high=0.39)) == "61 to 68 %"
    assert change_range(Change(ratio=2.8, low=2.6, high=3.1)) == "2.6 to 3.1 times"
    cell = change_cell(TTFT, Change(ratio=0.98, low=0.94, high=1.03))
    assert cell == f"{numbers.MINUS}2.0 % ({numbers.MINUS}6.0 to +3.0), not distinguishable"


@given(st.floats(0.02, 1.9), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_a_change_that_covers_zero_is_always_called_not_distinguishable(
    ratio: float, below: float, above: float
) -> None:
    change = Change(ratio=ratio, low=ratio - below * ratio, high=ratio + above)
    assume(change.low is not None and change.high is not None)
    covers = (change.low or 0) <= 1 <= (change.high or 0)
    assert ("not distinguishable" in change_cell(TTFT, change)) == covers


def test_outcomes_are_said_in_everyday_words() -> None:
    assert outcome_phrase(TTFT, 0.35) == "the first token comes in about a third of the time"
    assert outcome_phrase(TTFT, 0.88) == "the wait for the first token is 12 % shorter"
    assert outcome_phrase(THROUGHPUT, 1.5) == "output per second is 50 % higher"


@given(today=positive, ratio=st.floats(0.2, 5), half=st.floats(0.001, 0.2))
def test_values_beside_each_other_are_not_rounded_away_from_their_change(
    today: float, ratio: float, half: float
) -> None:
    change = (ratio - half, ratio + half)
    place = numbers.place_beside(today, SECONDS, [(0.1 * today, 3 * today), None], change)
    assert place is not None
    texts = [
        numbers.quantity(value, SECONDS, unit=False, digits=9, place=place)
        for value in (today, ratio * today)
    ]
    # Both are off by less than half of what the change itself is unsure by
    for text, value in zip(texts, (today, ratio * today), strict=True):
        assert abs(parsed(text) - value) <= half * today / 2


def test_two_values_in_a_row_have_one_decimal_place() -> None:
    wide, narrow = (0.0813, 0.1952), (0.0799, 0.1301)
    place = numbers.place_beside(0.1147, MILLISECONDS, [wide, narrow])
    assert numbers.quantity(0.1147, MILLISECONDS, wide, place=place) == "115 ms"
    assert numbers.quantity(0.1049, MILLISECONDS, narrow, place=place) == "105 ms"
    assert numbers.bounds(0.1147, MILLISECONDS, wide, place=place) == "[81, 195]"
    assert numbers.place_beside(0.1147, MILLISECONDS, [None, (None, 0.2)]) is None
