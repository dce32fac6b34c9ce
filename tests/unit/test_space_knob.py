from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.canonical import canonical_json
from autotune.space import grids
from autotune.space.knob import Knob, KnobError, switch_value


def knob(kind: str, **parts: Any) -> Knob:
    return Knob(name="k", kind=kind, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_knob", "grid"),
    [
        (knob("int", values=(512, 1024)), (512, 1024)),
        (knob("float", values=(0.9, 1)), (0.9, 1.0)),
        (knob("choice", values=("auto", None, {"a": [1]})), ("auto", None, {"a": [1]})),
        (knob("switch"), (False, True)),
        (knob("int", low=8, high=64, step=2, multiply=True), (8, 16, 32, 64)),
        (knob("int", low=8, high=100, step=2, multiply=True), (8, 16, 32, 64)),
        (knob("int", low=1, high=10, step=4), (1, 5, 9)),
        (knob("float", low=0.1, high=0.5, step=0.1), (0.1, 0.2, 0.3, 0.4, 0.5)),
        (knob("float", low=1, high=4, step=1.5, multiply=True), (1.0, 1.5, 2.25, 3.375)),
        (knob("int", low=3, high=6), (3, 4, 5, 6)),
        (knob("int", low=0, high=1600), tuple(range(0, 1601, 100))),
        (knob("int", low=6, high=100, log=True), (6, 8, 16, 32, 64, 100)),
        (knob("float", low=0.0, high=1.0), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
        (knob("float", low=1.0, high=10.0, log=True), (1.0, 2.15443, 4.64159, 10.0)),
    ],
)  # fmt: skip
def test_a_knob_has_a_finite_list_of_values_in_its_own_kind(
    given_knob: Knob, grid: tuple[object, ...]
) -> None:
    assert grid == given_knob.grid()
    assert [type(value) for value in grid] == [type(value) for value in given_knob.grid()]


@pytest.mark.parametrize(
    ("kind", "parts", "key", "index", "message"),
    [
        ("int", {}, "type", None, "needs `values` or a `range`"),
        ("choice", {}, "type", None, "a choice needs `values`"),
        ("choice", {"low": 1, "high": 2}, "type", None, "a choice needs `values`"),
        ("int", {"values": ()}, "values", None, "no values"),
        ("int", {"values": (8, 8)}, "values", 1, "a repeated value"),
        ("float", {"values": (1, 1.0)}, "values", 1, "a repeated value"),
        ("int", {"values": (8, 8.5)}, "values", 1, "expected a whole number"),
        ("int", {"values": (True,)}, "values", 0, "expected a whole number"),
        ("float", {"values": ("a",)}, "values", 0, "expected a number"),
        ("int", {"values": (8,), "low": 1, "high": 2}, "range", None,
         "values or a range, not both"),
        ("int", {"values": (8,), "step": 2}, "step", None, "belongs to a range, not to values"),
        ("int", {"values": (8,), "log": True}, "log", None, "belongs to a range, not to values"),
        ("switch", {"values": (True, False)}, "values", None,
         "a switch is on or off; leave the values out"),
        ("switch", {"low": 0, "high": 1}, "range", None, "a switch has no range"),
        ("int", {"low": 8, "high": 8}, "range", None,
         "the low end comes first, and the ends differ"),
        ("int", {"low": 0.5, "high": 8}, "range", 0, "expected a whole number"),
        ("int", {"low": 0, "high": 8, "log": True}, "range", 0, "ratios need a low end above 0"),
        ("int", {"low": 1, "high": 8, "step": 0}, "step", None, "a step is more than 0"),
        ("int", {"low": 1, "high": 8, "step": 0.5}, "step", None, "expected a whole number"),
        ("int", {"low": 1, "high": 8, "step": 1, "multiply": True}, "step", None,
         "a factor is more than 1"),
        ("float", {"low": 0.0, "high": 1.0, "step": 1e-6}, "step", None,
         "more than 10,000 values; take a larger step"),
        ("switch", {"versions": "0.12"}, "versions", None,
         "expected a version range such as >=0.12 or >=0.12,<0.20"),
    ],
)  # fmt: skip
def test_a_knob_that_cannot_be_is_refused_and_the_part_named(
    kind: str, parts: dict[str, Any], key: str, index: int | None, message: str
) -> None:
    with pytest.raises(KnobError) as caught:
        knob(kind, **parts)
    assert (key, index, message) == (caught.value.key, caught.value.index, caught.value.message)


@pytest.mark.parametrize(
    ("value", "switch"),
    [(True, True), (False, False), ("on", True), ("off", False), ("yes", None), ("no", None),
     (1, None), (None, None)],
)  # fmt: skip
def test_only_on_off_true_and_false_are_switch_values(value: object, switch: bool | None) -> None:
    assert switch is switch_value(value)


def test_values_are_brought_into_the_knobs_kind() -> None:
    assert knob("switch").coerced("off") is False
    assert knob("int", values=(1,)).coerced(8.0) == 8
    assert isinstance(knob("float", values=(1,)).coerced(1), float)
    assert knob("int", values=(1,)).coerced(None) is None
    for kind, value in (("switch", "yes"), ("int", "8"), ("float", True)):
        with pytest.raises(ValueError, match="expected"):
            knob(kind, **({} if kind == "switch" else {"values": (1,)})).coerced(value)


def test_a_knob_exists_in_the_versions_it_names() -> None:
    newer = knob("switch", versions=">=0.24")
    assert newer.exists_in("0.26.0")
    assert not newer.exists_in("0.9.2")
    assert newer.exists_in(None)
    assert newer.exists_in("nightly")


def test_the_domain_is_readable() -> None:
    assert knob("switch").domain() == "on, off"
    assert knob("choice", values=("auto", None, {"a": 1})).domain() == 'auto, (left out), {"a":1}'
    assert knob("int", low=8, high=64, step=2, multiply=True).domain() == "8 to 64 x2"
    assert knob("float", low=0.5, high=1).domain() == "0.5 to 1"


@given(
    st.integers(-1000, 1000),
    st.integers(1, 5000),
    st.one_of(st.none(), st.integers(1, 400)),
    st.booleans(),
)
def test_a_whole_number_grid_rises_inside_its_range(
    low: int, span: int, step: int | None, log: bool
) -> None:
    log = log and low > 0
    grid = knob("int", low=low, high=low + span, step=step, log=log).grid()
    assert low == grid[0]
    assert grid[-1] <= low + span
    assert list(grid) == sorted(set(grid))
    assert all(type(value) is int for value in grid)


@given(st.floats(0.001, 1000), st.floats(0.001, 1000), st.booleans())
def test_a_real_grid_rises_from_end_to_end(low: float, span: float, log: bool) -> None:
    if low + span == low:
        return
    grid = grids.reals(low, low + span, log=log)
    assert (low, low + span) == (grid[0], grid[-1])
    assert list(grid) == sorted(set(grid))
    assert len({canonical_json(value) for value in grid}) == len(grid)
