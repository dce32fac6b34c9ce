"""What failed launches say of others."""

from __future__ import annotations

import pytest

from autotune.search.risk import PRIOR, Risk, named_knobs

NAMES = ("tokens", "seqs", "backend", "mode")
NUMBERS = frozenset({"tokens", "seqs"})


def risk() -> Risk:
    found = Risk(NAMES, need=frozenset({"seqs"}), ordered=NUMBERS)
    found.learn(row(), failed=False)
    return found


def row(tokens: int = 0, seqs: int = 1, backend: int = 0, mode: int = 0) -> dict[str, int]:
    return {"tokens": tokens, "seqs": seqs, "backend": backend, "mode": mode}


def of(found: Risk, **settings: int) -> float:
    return float(found.of([row(**settings)])[0])


def test_without_failures_only_more_memory_than_ever_served_is_a_risk() -> None:
    found = risk()
    assert of(found) == pytest.approx(PRIOR)
    assert of(found, tokens=3) == pytest.approx(PRIOR)
    assert of(found, seqs=3) > of(found, seqs=2) > PRIOR


def test_two_failures_are_explained_by_what_they_have_in_common() -> None:
    found = risk()
    found.learn(row(tokens=1, backend=2, mode=1), failed=True)
    once = of(found, tokens=3, backend=2)
    found.learn(row(tokens=2, backend=2), failed=True)
    assert of(found, tokens=3, backend=2) > max(once, 0.5)
    # What is explained by the backend speaks less against the rest
    assert of(found, tokens=1, mode=1) < 0.2


def test_a_value_that_served_is_not_suspected_of_being_it_alone() -> None:
    found = risk()
    found.learn(row(backend=1, mode=1), failed=True)
    before = of(found, backend=1)
    found.learn(row(tokens=2, backend=1), failed=False)
    assert of(found, backend=1) < 0.5 * before
    assert of(found, backend=1, mode=1) > 0.3


def test_the_engines_words_name_the_suspects() -> None:
    found = risk()
    found.learn(row(tokens=3, backend=1, mode=1), failed=True, named=["backend"])
    assert of(found, backend=1) > 0.5
    assert of(found, tokens=3, mode=1) < 0.1


def test_what_is_known_to_be_at_fault_together_fails_again() -> None:
    found = risk()
    found.learn(row(backend=1, mode=1), failed=True, blamed=["backend", "mode"])
    assert of(found, tokens=2, backend=1, mode=1) > 0.9


def test_running_out_of_memory_speaks_against_more_and_against_nothing_else() -> None:
    found = risk()
    found.learn(row(seqs=3, backend=1), failed=True, memory="lower")
    assert of(found, seqs=4) > 0.9
    assert of(found, seqs=3, backend=2) > 0.9
    assert of(found, backend=1) == pytest.approx(PRIOR)


def test_a_later_success_takes_back_what_it_contradicts() -> None:
    found = risk()
    found.learn(row(seqs=3), failed=True, memory="lower")
    found.learn(row(seqs=3), failed=False)
    assert of(found, seqs=3) == pytest.approx(PRIOR)


def test_knobs_are_named_by_their_name_or_by_their_value() -> None:
    params = {"attention-backend": "TRITON_ATTN", "kv-cache-dtype": "fp8", "max-num-seqs": 8}
    words = "Selected backend TRITON_ATTN is not valid. Reason: ['kv_cache_dtype not supported']"
    assert named_knobs(words, params) == ["attention-backend", "kv-cache-dtype"]
    assert named_knobs("died with 8", params) == []


MEMORY = ("fraction", "length", "dtype", "budget")


def memory_row(
    fraction: int = 2, length: int = 1, dtype: int = 0, budget: int = 0
) -> dict[str, int]:
    return {"fraction": fraction, "length": length, "dtype": dtype, "budget": budget}


def too_small() -> Risk:
    found = Risk(
        MEMORY,
        share=frozenset({"fraction"}),
        need=frozenset({"length"}),
        ordered=frozenset({"fraction", "length", "budget"}),
    )
    found.learn(memory_row(), failed=False)
    found.learn(memory_row(fraction=1), failed=True, memory="raise")
    return found


@pytest.mark.parametrize("like", [{}, {"fraction": 0}, {"length": 2}, {"budget": 3}])
def test_a_cache_too_small_speaks_against_as_little_and_less(like: dict[str, int]) -> None:
    row = memory_row(**{"fraction": 1, **like})
    assert too_small().of([row])[0] > 0.9


def test_a_cache_too_small_says_nothing_of_larger_ones() -> None:
    rows = [memory_row(), memory_row(fraction=3), memory_row(budget=3)]
    assert max(too_small().of(rows)) < 0.1


def test_a_cache_too_small_may_be_large_enough_where_less_is_stored() -> None:
    assert too_small().of([memory_row(fraction=1, dtype=1)])[0] < 0.5


def test_a_knob_that_is_not_set_is_not_below_what_was_too_small() -> None:
    row = {"length": 1, "dtype": 0, "budget": 0}
    assert too_small().of([row])[0] < 0.1
