"""The orders that learn nothing, what is avoided, and the ranking of parents."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.search import catalog
from autotune.search.catalog import check_installed
from autotune.search.choices import Choices
from autotune.search.evolution import Evolution
from autotune.search.hazard import Hazard
from autotune.search.lesson import Goals, Lesson
from autotune.search.orders import GridOrder, RandomOrder, SobolOrder
from autotune.space.candidate import Candidate
from autotune.space.search_space import load_space
from autotune.spec.expressions import parse_constraint, parse_objective

KNOBS: dict[str, Any] = {
    "tokens": {"type": "int", "values": [512, 1024, 2048, 4096]},
    "offload": {"type": "switch"},
    "offload-gib": {"type": "int", "values": [1, 2, 4, 8], "when": "offload"},
}
CHOICES = Choices(load_space({"knobs": KNOBS, "rules": ["tokens >= 1024 or offload"]}), {})


def listed(order: Any, choices: Choices = CHOICES) -> list[Candidate]:
    found: list[Candidate] = []
    seen: set[Candidate] = set()
    for seed in itertools.count():
        indices = order.suggest(seed, seen.__contains__)
        if indices is None:
            return found
        candidate = choices.candidate(indices)
        assert candidate is not None
        found.append(candidate)
        seen.add(candidate)
    raise AssertionError


def test_the_grid_goes_through_the_values_as_nested_loops_do() -> None:
    found = [tuple(c.params.values()) for c in listed(GridOrder(CHOICES))]
    # names sorted: offload, offload-gib, tokens
    assert found[:5] == [(True, 1, 512), (True, 2, 512), (True, 4, 512), (True, 8, 512),
                         (False, 1024)]  # fmt: skip
    assert len(found) == 4 + 3 * 5


def test_the_grid_comes_back_to_what_was_interrupted() -> None:
    order, seen = GridOrder(CHOICES), set[str]()

    def next_key() -> str:
        indices = order.suggest(0, lambda c: c.key in seen)
        assert indices is not None
        candidate = CHOICES.candidate(indices)
        assert candidate is not None
        return candidate.key

    first = next_key()
    seen.add(first)
    second = next_key()
    seen.add(second)
    seen.discard(first)
    assert next_key() == first
    seen.add(first)
    assert next_key() not in {first, second}


@pytest.mark.parametrize("order", [SobolOrder(CHOICES, seed=3), RandomOrder(CHOICES)])
def test_each_order_finds_every_candidate_once(order: Any) -> None:
    found = listed(order)
    assert len(found) == len(set(found)) == 4 + 3 * 5


def test_a_sobol_order_tries_every_value_of_a_knob_equally_often() -> None:
    knobs = {f"k{i}": {"type": "int", "range": [0, 7]} for i in range(6)}
    choices = Choices(load_space({"knobs": knobs}), {})
    order, seen = SobolOrder(choices, seed=1), set[Candidate]()
    for _ in range(64):
        indices = order.suggest(0, seen.__contains__)
        assert indices is not None
        candidate = choices.candidate(indices)
        assert candidate is not None
        seen.add(candidate)
    for name in knobs:
        assert set(Counter(c.params[name] for c in seen).values()) == {8}


def test_a_value_that_always_fails_is_hopeless_after_a_few_launches() -> None:
    hazard = Hazard()
    safe, deadly = {"tokens": 0, "offload": 0}, {"tokens": 0, "offload": 1, "offload-gib": 0}
    assert not hazard.is_hopeless(deadly)
    for tokens in (1, 2, 3):
        hazard.learn({"tokens": tokens, "offload": 0}, failed=False)
        hazard.learn({"tokens": 0, "offload": 0}, failed=False)
        hazard.learn({"tokens": tokens, "offload": 1, "offload-gib": tokens}, failed=True)
    assert hazard.is_hopeless(deadly)
    assert not hazard.is_hopeless(safe)


def test_where_most_launches_fail_a_few_failures_say_little() -> None:
    hazard = Hazard()
    for at in range(9):
        hazard.learn({"tokens": at % 4, "offload": 1}, failed=True)
    hazard.learn({"tokens": 0, "offload": 0}, failed=False)
    assert not hazard.is_hopeless({"tokens": 3, "offload": 0})


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=30))
def test_a_value_that_ever_served_is_never_hopeless(trials: list[tuple[int, bool, bool]]) -> None:
    hazard = Hazard()
    for tokens, offload, failed in trials:
        hazard.learn({"tokens": tokens, "offload": int(offload)}, failed=failed)
    served = {tokens for tokens, _, failed in trials if not failed}
    assert not any(hazard.is_hopeless({"tokens": tokens}) for tokens in served)


def evolved(lessons: list[Lesson], seeds: int = 60) -> Counter[int]:
    goals = Goals([parse_objective("minimize ttft_p95"), parse_objective("minimize tpot_p95")],
                  [parse_constraint("e2e_p95 <= 1s")])  # fmt: skip
    knobs = {"x": {"type": "int", "range": [0, 30]}, "y": {"type": "int", "range": [0, 30]}}
    choices = Choices(load_space({"knobs": knobs}), {})
    found = Counter[int]()
    for seed in range(seeds):
        child = Evolution(choices, goals).suggest(lessons, [], seed, lambda _: False)
        assert child is not None
        found[child["x"]] += 1
    return found


def lesson(x: int, costs: tuple[float, ...] | None, violation: float = 0.0) -> Lesson:
    return Lesson({"x": x, "y": x}, costs, {"launch": violation})


def test_children_come_from_the_front_more_than_from_the_rest() -> None:
    front = [lesson(x, (x, 10 - x)) for x in range(6)]
    worse = [lesson(25, (50.0 + i, 50.0)) for i in range(6)]
    broken = [lesson(30, (0.0, 0.0), 1.0), lesson(30, None, 1.0)]
    found = evolved([*broken, *worse, *front])
    assert sum(found[x] for x in range(9)) > 0.6 * sum(found.values())
    assert found[30] < 4


def test_without_anything_learned_nothing_is_bred() -> None:
    goals = Goals([parse_objective("minimize ttft_p95")], [])
    assert Evolution(CHOICES, goals).suggest([], [], 0, lambda _: False) is None


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        check_installed("gp")
    assert "autotune[gp]" in str(caught.value.hint)
    check_installed("tpe")
