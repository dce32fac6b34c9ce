from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InputError, Place
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace, load_space
from autotune.space.study_space import open_study
from autotune.spec.render import render_error
from autotune.spec.resources import find_shipped, shipped, shipped_names
from autotune.spec.yaml_source import parse_yaml

DESIGN = """\
engine: vllm
knobs:
  max-num-batched-tokens: {type: int, values: [512, 2048], why: prefill chunk}
  max-num-seqs: {type: int, range: [8, 1024], log: true, step: x2}
  kv-cache-dtype: {type: choice, values: [auto, fp8], when: gpu.compute_capability >= 8.9,
    lossy: true}
  enable-chunked-prefill: {type: switch}
rules:
  - max-num-batched-tokens >= max-num-seqs
  - enable-chunked-prefill or max-num-batched-tokens >= max-model-len
"""


def read(text: str) -> SearchSpace:
    document = parse_yaml(text, "space.yaml")
    assert document.problems == ()
    return load_space(document.data, document=document)


def names(space: SearchSpace, params: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    return [knob.name for knob in space.active(params, facts)]


def test_the_design_example_is_read() -> None:
    space = read(DESIGN)
    assert space.engine == "vllm"
    seqs = space.knob("max-num-seqs")
    assert seqs is not None
    assert seqs.grid() == (8, 16, 32, 64, 128, 256, 512, 1024)
    dtype = space.knob("kv-cache-dtype")
    assert dtype is not None
    assert dtype.lossy
    assert space.knobs[0].why == "prefill chunk"
    assert space.knob("swap-space") is None


def test_a_knob_is_active_only_where_its_condition_is_true() -> None:
    space = read(DESIGN)
    assert "kv-cache-dtype" in names(space, {}, {"gpu.compute_capability": 9.0})
    assert "kv-cache-dtype" not in names(space, {}, {"gpu.compute_capability": 8.0})
    assert "kv-cache-dtype" not in names(space, {}, {})


def test_a_fixed_flag_takes_its_knob_out() -> None:
    space = read(DESIGN)
    assert "max-num-seqs" not in names(space, {}, {"max-num-seqs": 64})
    assert space.complete(
        {"max-num-seqs": 8, "max-num-batched-tokens": 512}, {"max-num-seqs": 64}
    ).params == {"max-num-batched-tokens": 512}
    assert space.violations({"max-num-batched-tokens": 512}, {"max-num-seqs": 1024}) == [
        "max-num-batched-tokens >= max-num-seqs"
    ]


def test_what_hangs_on_an_inactive_knob_is_inactive_too() -> None:
    space = read(
        "a: {type: switch, when: gpu.count > 1}\n"
        "b: {type: switch, when: a}\n"
        "c: {type: switch, when: b}\n"
    )
    on = {"a": True, "b": True, "c": True}
    assert names(space, on, {"gpu.count": 2}) == ["a", "b", "c"]
    assert names(space, on, {"gpu.count": 1}) == []
    assert names(space, {"a": True, "b": False, "c": True}, {"gpu.count": 2}) == ["a", "b"]
    assert space.complete({"a": False, "b": True, "c": True}, {"gpu.count": 2}).params == {
        "a": False
    }


def test_a_knob_of_another_engine_version_is_inactive() -> None:
    space = read('a: {type: switch, versions: ">=0.24"}\n')
    assert names(space, {}, {"engine.version": "0.26.0"}) == ["a"]
    assert names(space, {}, {"engine.version": "0.20.1"}) == []
    assert names(space, {}, {}) == ["a"]


def test_completing_drops_what_is_left_out_and_reads_switch_words() -> None:
    space = read("a: [null, 8]\nb: {type: switch}\n")
    assert Candidate({"b": False, "other": 3}) == space.complete(
        {"a": None, "b": "off", "other": 3}, {}
    )
    with pytest.raises(ValueError, match="b: expected true or false"):
        space.complete({"b": "yes"}, {})


def test_an_undecided_rule_forbids_nothing() -> None:
    space = read(DESIGN)
    off = {"enable-chunked-prefill": False, "max-num-batched-tokens": 2048, "max-num-seqs": 8}
    assert space.violations(off, {}) == []
    broken = ["enable-chunked-prefill or max-num-batched-tokens >= max-model-len"]
    assert broken == space.violations(off, {"max-model-len": 4096})
    assert space.violations({**off, "enable-chunked-prefill": True}, {"max-model-len": 4096}) == []
    assert space.violations({"max-num-seqs": 8}, {"max-model-len": 4096}) == []


def test_the_size_counts_distinct_allowed_candidates() -> None:
    assert read("a: {type: switch}\nb: {type: switch}\n").size({}) == 4
    tied = read("knobs: {a: [1, 2, 3], b: [1, 2, 3]}\nrules: [a >= b]\n")
    assert tied.size({}) == 6
    nested = read("a: {type: switch}\nb: {values: [1, 2, 3], when: a}\n")
    assert nested.size({}) == 4
    assert (
        read("x: [1, 2, 3]\na: {type: switch}\nb: {values: [1, 2, 3], when: a}\n").size({}) == 3 * 4
    )
    assert read("knobs: {a: [1, 2]}\nrules: [gpu.count > 1]\n").size({"gpu.count": 0}) == 0
    assert read("knobs: {a: [1, 2]}\nrules: [gpu.count > 1]\n").size({}) == 2
    assert read("a: {type: switch, when: gpu.count > 1}\n").size({}) == 1


def test_a_space_too_large_to_count_has_no_size() -> None:
    many = "".join(f"k{n}: {{type: int, range: [1, 33]}}\n" for n in range(8))
    assert read(many).size({}) is None
    assert read("".join(many.splitlines(True)[:4])).size({}, limit=33**4) == 33**4
    assert read("".join(many.splitlines(True)[:4])).size({}) is None
    tied = "knobs:\n" + "".join(f"  {line}\n" for line in many.splitlines()) + "rules: ['"
    tied += " + ".join(f"k{n}" for n in range(8)) + " > 9']\n"
    assert read(tied).size({}) is None


def test_candidates_are_listed_lazily_and_once() -> None:
    space = read("a: {type: switch}\nb: {values: [1, 2], when: a}\n")
    assert [dict(candidate.params) for candidate in space.candidates({})] == [
        {"a": False},
        {"a": True, "b": 1},
        {"a": True, "b": 2},
    ]
    huge = read("".join(f"k{n}: {{type: int, range: [1, 33]}}\n" for n in range(20)))
    assert len(list(itertools.islice(huge.candidates({}), 3))) == 3


def test_a_baseline_may_lie_outside_the_grid_but_not_outside_the_kind() -> None:
    space = read(DESIGN)
    assert space.check_params({"max-num-seqs": 200, "swap-space": 8}) == []
    refused = space.check_params({"max-num-sqs": 8, "max-num-seqs": "many"}, refuse_unknown=True)
    assert [p.message for p in refused] == ["`max-num-sqs`: unknown knob; nearest: max-num-seqs",
            "`max-num-seqs`: expected a whole number"]  # fmt: skip
    place = Place(file="s.yaml", line=3, column=1)
    placed = space.check_params({"max-num-seqs": "many"}, locate=lambda name: place)[0].place
    assert placed is not None
    assert (placed.line, placed.label) == (3, "expected a whole number")


@pytest.mark.parametrize(
    ("text", "kind", "grid"),
    [
        ("[8, 16]", "int", (8, 16)),
        ("[0.9, 1]", "float", (0.9, 1.0)),
        ("[auto, fp8]", "choice", ("auto", "fp8")),
        ("[on, off]", "switch", (False, True)),
        ("[true, false]", "switch", (False, True)),
        ("[null, 4]", "int", (None, 4)),
        ("{values: [4, 8]}", "int", (4, 8)),
        ("{range: [0.5, 1.0], step: 0.25}", "float", (0.5, 0.75, 1.0)),
        ("{type: choice, values: [yes, no]}", "choice", ("yes", "no")),
        ("{type: int, range: [1, 8], step: x2}", "int", (1, 2, 4, 8)),
    ],
)
def test_a_knob_may_be_written_short(text: str, kind: str, grid: tuple[object, ...]) -> None:
    knob = read(f"k: {text}\n").knobs[0]
    assert (kind, grid) == (knob.kind, knob.grid())


def test_names_have_one_spelling_unless_they_are_variables_or_generic() -> None:
    space = read("max_num_seqs: [1]\n--block-size: [16]\nVLLM_X: {values: [a], env: VLLM_X}\n")
    assert [knob.name for knob in space.knobs] == ["max-num-seqs", "block-size", "VLLM_X"]
    generic = read("engine: generic\nknobs: {max_batch_size: [1]}\n")
    assert [knob.name for knob in generic.knobs] == ["max_batch_size"]
    freed = read("tokens: {values: [1], flag: --max-tokens}\n").knobs[0]
    assert (freed.name, freed.flag) == ("tokens", "max-tokens")


BAD = """\
engine: vlm
knobs:
  max-num-seqs: [8, 16]
  max_num_seqs: [8, 16]
  enable-chunked-prefill: {type: switch, vales: [3]}
  a: [yes, no]
  b: 3
  c: {type: int, range: [8, 1], step: x2}
  d: {type: int, values: [8, 8.5]}
  e: [1, 1]
  f: {type: int, range: [1, 8], step: twice}
  g: {type: choice, values: [auto, fp8], when: gpu.compute_capabilty >= 8.9}
  h: {type: integer, values: [1]}
  i: {type: switch, versions: "0.12"}
  j: {type: switch, lossy: yes}
  k: {type: int, range: [1, 2, 3]}
rules:
  - g == fp8
  - max-num-seq > 3
  - max-num-seqs >
"""


def test_every_fault_of_a_space_is_told_at_once_with_its_place() -> None:
    document = parse_yaml(BAD, "space.yaml")
    with pytest.raises(InputError) as caught:
        load_space(document.data, document=document)
    places = [problem.place for problem in caught.value.problems]
    assert [(p.line, p.column, p.length, p.label) for p in places if p is not None] == [
        (
            1,
            9,
            3,
            (
                "expected `vllm`, `sglang`, `simulated`, `simulated-sglang` or `generic`; "
                "nearest: vllm"
            ),
        ),
        (4, 3, 12, "the same flag as `max-num-seqs`"),
        (5, 42, 5, "unknown key; nearest: values"),
        (6, 6, 9, "yes and no are texts; a switch is {type: switch}, or [on, off]"),
        (7, 6, 1, "expected a list of values or a mapping; a fixed value belongs to engine.args"),
        (8, 25, 6, "the low end comes first, and the ends differ"),
        (9, 30, 3, "expected a whole number"),
        (10, 10, 1, "a repeated value"),
        (11, 39, 5, "expected a number, or a factor such as x2"),
        (12, 48, 21, "unknown fact; nearest: gpu.compute_capability"),
        (13, 13, 7, "expected `int`, `float`, `choice` or `switch`"),
        (14, 31, 6, "expected a version range such as >=0.12 or >=0.12,<0.20"),
        (15, 28, 3, "expected true or false"),
        (16, 25, 9, "expected at most 2 of them"),
        (18, 10, 3, 'a text goes in quotes: "fp8"'),
        (19, 5, 11, "no such knob; nearest: max-num-seqs"),
        (20, 18, 1, "ends too early"),
    ]


def test_a_space_file_is_found_beside_the_study_and_named_in_errors(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: [1, 2]\n")
    assert load_space("mine.yaml", folder=tmp_path).name == "mine"
    (tmp_path / "bad.yaml").write_text("knobs: {}\n")
    with pytest.raises(InputError) as caught:
        load_space("bad.yaml", folder=tmp_path)
    assert render_error(caught.value).splitlines()[:4] == [
        "error: bad.yaml: `knobs`: expected at least 1 of them",
        "  --> bad.yaml:1:8",
        " 1 | knobs: {}",
        "   |        ^^ expected at least 1 of them",
    ]


def test_an_unknown_shipped_name_offers_the_nearest() -> None:
    with pytest.raises(InputError, match="no search space `vlm` is shipped; nearest: vllm"):
        load_space("vlm")
    assert shipped("search_spaces", "vllm.yaml") == shipped("search_spaces", "search_spaces/vllm")
    assert find_shipped("search_spaces", "../pyproject") is None


@pytest.mark.parametrize("name", shipped_names("search_spaces"))
def test_every_shipped_space_loads_and_says_why_for_each_knob(name: str) -> None:
    space = load_space(name)
    assert all(knob.why for knob in space.knobs)
    size = space.size({"gpu.count": 1, "gpu.compute_capability": 9.0, "engine.version": "0.26.0"})
    assert size is None or size > 1
    assert next(space.candidates({})).params


def test_only_the_quantization_space_has_lossy_knobs() -> None:
    lossy = {
        name: [knob.name for knob in load_space(name).knobs if knob.lossy]
        for name in ("vllm", "long-context", "quantization")
    }
    assert lossy == {
        "vllm": [],
        "long-context": [],
        "quantization": ["quantization", "kv-cache-dtype"],
    }


STUDY = """\
name: n
model: m
baseline: {max_num_seqs: lots, enable-chunked-prefill: off}
objective: minimize tttf_p95
workload: {path: w.jsonl}
space:
  knobs:
    max-num-seqs: [8, 1e3]
    enable-chunked-prefill: {typ: switch}
    b: [on, off]
"""


@pytest.fixture
def study(tmp_path: Path) -> Callable[[str], Path]:
    def _study(text: str) -> Path:
        (tmp_path / "w.jsonl").write_text("{}\n")
        (tmp_path / "study.yaml").write_text(text)
        return tmp_path / "study.yaml"

    return _study


def test_a_study_and_its_inline_space_are_checked_together(study: Callable[[str], Path]) -> None:
    with pytest.raises(InputError) as caught:
        open_study(study(STUDY))
    places = [problem.place for problem in caught.value.problems]
    assert [(p.line, p.column, p.label.partition(";")[0]) for p in places if p is not None] == [
        (3, 26, "expected a whole number"),
        (4, 21, "unknown metric"),
        (8, 23, "text, not a number: YAML 1.1 reads 1e3 as text"),
        (9, 30, "unknown key"),
    ]


def test_a_study_for_another_engine_than_its_space_is_refused(study: Callable[[str], Path]) -> None:
    text = STUDY.replace("tttf", "ttft").partition("space:")[0].replace("lots", "8")
    path = study(text + "space: vllm\nengine: {kind: generic, command: [serve]}\n")
    with pytest.raises(InputError) as caught:
        open_study(path)
    assert [problem.message for problem in caught.value.problems] == [
        "`space`: a space for vllm; the engine is generic"
    ]
    opened = open_study(path, {"engine.kind": "simulated"})
    assert opened.study.spec.baseline == {"max-num-seqs": 8, "enable-chunked-prefill": "off"}


def test_baseline_switches_come_out_as_booleans(study: Callable[[str], Path]) -> None:
    text = STUDY.replace("tttf", "ttft").replace("lots", "8").replace("1e3", "9")
    opened = open_study(study(text.replace("typ:", "type:")))
    assert opened.study.spec.baseline == {"max-num-seqs": 8, "enable-chunked-prefill": False}
    assert [k.name for k in opened.space.knobs] == ["max-num-seqs", "enable-chunked-prefill", "b"]


small_spaces = st.builds(
    lambda grid_a, grid_b, when, rule: {
        "knobs": {
            "a": {"type": "int", "values": grid_a},
            "b": {"type": "int", "values": grid_b, **({"when": when} if when else {})},
            "c": {"type": "switch"},
        },
        "rules": [rule] if rule else [],
    },
    st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True),
    st.sampled_from(["", "a > 2", "c", "gpu.count > 1"]),
    st.sampled_from(["", "a >= b", "c or a > 1", "a + b != 3", "not c"]),
)


@settings(max_examples=60)
@given(small_spaces, st.sampled_from([{}, {"gpu.count": 2}, {"a": 3}]))
def test_listing_counting_and_completing_agree(data: dict[str, Any], facts: dict[str, Any]) -> None:
    space = load_space(data)
    listed = list(space.candidates(facts))
    assert len(listed) == len({candidate.key for candidate in listed}) == space.size(facts)
    for candidate in listed:
        assert space.violations(candidate.params, facts) == []
        assert candidate == space.complete(candidate.params, facts)
        active = {knob.name for knob in space.active(candidate.params, facts)}
        assert active == set(candidate.params)
