from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.choices import Choices
from autotune.space.candidate import Candidate
from autotune.space.search_space import load_space

KNOBS: dict[str, Any] = {
    "tokens": {"type": "int", "values": [512, 1024, 2048, 4096]},
    "dtype": {"type": "choice", "values": ["auto", "fp8"]},
    "offload": {"type": "switch"},
    "offload-gib": {"type": "float", "values": [1.0, 2.0, 4.0], "when": "offload"},
    "level": {"type": "int", "values": [None, 1, 2]},
}
SPACE = load_space({"knobs": KNOBS, "rules": ["tokens >= 1024 or dtype == 'auto'"]})
CHOICES = Choices(SPACE, {})


@given(st.integers(0, 10**6))
def test_assignments_and_candidates_are_two_forms_of_the_same(seed: int) -> None:
    rng = Random(seed)
    indices = CHOICES.assign(lambda name: rng.randrange(CHOICES.count(name)))
    candidate = CHOICES.candidate(indices)
    if candidate is None:
        assert indices["tokens"] == 0
        assert indices["dtype"] == 1
    else:
        assert CHOICES.indices_of(candidate) == indices


def test_a_conditional_knob_is_chosen_only_where_it_is_active() -> None:
    off = CHOICES.assign({"tokens": 1, "dtype": 0, "offload": 0, "level": 0}.__getitem__)
    assert "offload-gib" not in off
    on = CHOICES.assign(lambda name: 1)
    assert on["offload-gib"] == 1
    assert CHOICES.conditional


def test_only_numbers_that_rise_are_ordered() -> None:
    ordered = [name for name in KNOBS if CHOICES.is_ordered(name)]
    assert ordered == ["tokens", "offload-gib"]


def test_every_allowed_candidate_is_listed_once() -> None:
    listed = [CHOICES.candidate(indices) for indices in CHOICES.every()]
    allowed = [candidate.key for candidate in listed if candidate is not None]
    assert len(allowed) == len(set(allowed)) == SPACE.size({})


def test_drawing_ends_exactly_when_every_candidate_was_seen() -> None:
    seen: set[Candidate] = set()
    rng = Random(7)
    while (indices := CHOICES.draw(rng, seen.__contains__)) is not None:
        candidate = CHOICES.candidate(indices)
        assert candidate is not None
        assert candidate not in seen
        seen.add(candidate)
    assert len(seen) == SPACE.size({})


def test_a_neighbour_is_one_step_away() -> None:
    origin = {"tokens": 1, "dtype": 0, "offload": 0, "level": 0}
    for seed in range(30):
        found = CHOICES.neighbour(origin, Random(seed), lambda _: False)
        assert found is not None
        moved = [name for name in origin if found[name] != origin[name]]
        assert len(moved) == 1
        if moved == ["tokens"]:
            assert found["tokens"] in (0, 2)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"tokens": 3000, "dtype": "auto", "offload": False},
        {"tokens": 512, "dtype": "auto", "offload": False, "stranger": 1},
        {"tokens": 512, "dtype": "auto", "offload": True},
    ],
)
def test_candidates_outside_the_grids_have_no_place_in_the_model(params: dict[str, Any]) -> None:
    assert CHOICES.indices_of(Candidate(params)) is None


def test_a_number_is_found_however_it_is_written() -> None:
    params = {"tokens": 512.0, "dtype": "auto", "offload": True, "offload-gib": 2}
    assert CHOICES.indices_of(Candidate(params)) == {
        "tokens": 0, "dtype": 0, "offload": 1, "offload-gib": 1, "level": 0
    }  # fmt: skip


def test_a_fixed_flag_is_never_chosen() -> None:
    fixed = Choices(SPACE, {"offload": False})
    indices = fixed.assign(lambda name: 0)
    assert set(indices) == {"tokens", "dtype", "level"}
