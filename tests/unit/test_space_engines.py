"""A space across engines, and the studies that a study file across engines stands for."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.search.choices import Choices
from autotune.space.candidate import Candidate
from autotune.space.engines_space import EnginePart, across
from autotune.space.search_space import load_space
from autotune.space.study_space import open_study

ONE = load_space({"knobs": {"page": [1, 2], "seqs": [8, 16]}, "rules": ["page < seqs"]})
TWO = load_space(
    {
        "knobs": {
            "page": [16, 32],
            "tier": ["a", "b"],
            "deep": {"values": [1, 2], "when": "page > 16"},
        }
    }
)
SPACE = across(
    "both",
    [
        EnginePart(kind="vllm", space=ONE, facts={}),
        EnginePart(kind="sglang", space=TWO, facts={"tier": "a"}),
    ],
)
CHOICES = Choices(SPACE, {})


@given(seed=st.integers(0, 10_000))
def test_a_candidate_has_its_own_engines_names_and_comes_back_as_it_was_chosen(seed: int) -> None:
    rng = Random(seed)
    indices = CHOICES.assign(lambda name: rng.randrange(CHOICES.count(name)))
    candidate = CHOICES.candidate(indices)
    assert candidate is not None
    own = {"vllm": {"page", "seqs"}, "sglang": {"page", "deep"}}[str(candidate.engine)]
    assert set(candidate.params) <= {"engine"} | own
    assert CHOICES.indices_of(candidate) == indices
    assert {name.partition(":")[0] for name in indices} == {"engine", candidate.engine}


def test_equal_names_keep_their_own_values() -> None:
    assert [CHOICES.value("vllm:page", i) for i in range(2)] == [1, 2]
    assert [CHOICES.value("sglang:page", i) for i in range(2)] == [16, 32]
    assert CHOICES.flag("sglang:page") == "page"


def test_the_size_is_that_of_the_parts() -> None:
    assert SPACE.size({}) == len(list(SPACE.candidates({}))) == 4 + 3


def test_a_fact_of_one_engine_fixes_nothing_of_the_other() -> None:
    names = {knob.name for knob in SPACE.active({"engine": "sglang", "page": 32}, {})}
    assert names == {"engine", "sglang:page", "sglang:deep"}


def test_rules_hold_for_their_engine_alone() -> None:
    assert SPACE.violations({"engine": "vllm", "page": 16, "seqs": 8}, {}) == ["page < seqs"]
    assert SPACE.violations({"engine": "sglang", "page": 16}, {}) == []


def test_on_another_engine_what_is_set_there_has_changed() -> None:
    today = Candidate({"engine": "vllm", "seqs": 8})
    other = Candidate({"engine": "sglang", "page": 16})
    assert set(other.changed_from(today)) == {"engine", "page"}


def test_engine_is_no_name_of_a_knob_and_another_checkpoint_is_lossy() -> None:
    with pytest.raises(InputError, match="choice among engines"):
        load_space({"knobs": {"engine": ["a", "b"]}})
    with pytest.raises(InputError, match="lossy: true"):
        load_space({"knobs": {"model": ["a", "b"]}})


STUDY = """name: two
model: m
engine:
  kind: [simulated, simulated-sglang]
  image: {simulated: one:v1, simulated-sglang: two:v2}
  args: {sim-seed: 1}
  env: {simulated-sglang: {WORD: x}}
baseline: {max-num-seqs: 8}
space: both
workload: {path: quickstart}
objective: minimize ttft_p95
"""


def opened(folder: Path, **changes: str) -> Any:
    text = STUDY
    for old, new in changes.items():
        start = text.index(f"{old}: ")
        text = text.replace(text[start : text.index("\n", start)], f"{old}: {new}")
    path = folder / "study.yaml"
    path.write_text(text)
    return open_study(path)


def test_values_by_kind_go_to_their_engine_and_others_to_all(tmp_path: Path) -> None:
    first = opened(tmp_path)
    (second,) = first.others
    assert (first.study.spec.engine.image, second.study.spec.engine.image) == ("one:v1", "two:v2")
    assert first.study.spec.engine.args == second.study.spec.engine.args == {"sim-seed": 1}
    assert (first.study.spec.engine.env, second.study.spec.engine.env) == ({}, {"WORD": "x"})
    assert (first.study.spec.baseline, second.study.spec.baseline) == ({"max-num-seqs": 8}, {})
    assert (first.space.engine, second.space.engine) == ("vllm", "sglang")


@pytest.mark.parametrize(
    ("key", "value", "words", "line"),
    [
        ("kind", "[simulated, vllm]", "compares with no real one", 4),
        ("kind", "[simulated, simulated]", "named twice", 4),
        ("args", "{simulated: {a_b: 1, a-b: 2}}", "the same flag as `a_b`", 6),
        ("space", "vllm", "a space for vllm; the engine is simulated-sglang", 9),
        ("space", "{simulated: vllm}", "no space for simulated-sglang", 9),
        ("baseline", "{simulated-sglang: {page-size: x}}", "expected a whole number", 8),
    ],
)
def test_what_is_wrong_has_its_place_in_the_file(
    tmp_path: Path, key: str, value: str, words: str, line: int
) -> None:
    with pytest.raises(InputError) as caught:
        opened(tmp_path, **{key: value})
    found = [p for p in caught.value.problems if words in p.message]
    assert found, caught.value.problems
    assert found[0].place is not None
    assert found[0].place.line == line
