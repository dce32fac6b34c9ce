"""Kinds of fault that users reported for tuners: switches, forbidden combinations, small spaces."""

from __future__ import annotations

from typing import Any

from autotune.space.search_space import SearchSpace, load_space
from autotune.spec.yaml_source import parse_yaml


def read(text: str) -> SearchSpace:
    document = parse_yaml(text, "space.yaml")
    return load_space(document.data, document=document)


def test_a12_off_and_false_stay_a_decision_and_yes_stays_a_text() -> None:
    text = "chunked: off\nprefix_caching: false\ntrust_remote_code: true\nx: yes\n"
    fixed: dict[str, Any] = parse_yaml(text, "study.yaml").data
    assert {"off", False, True, "yes"} == set(fixed.values())
    switch = read("enable-chunked-prefill: {type: switch}\n")
    for written in ("off", False):
        assert switch.complete({"enable-chunked-prefill": written}, {}).params == {
            "enable-chunked-prefill": False
        }


def test_a12_a_number_read_as_text_and_a_repeated_key_are_named_with_their_line() -> None:
    document = parse_yaml("lr: 1e-3\nseqs: 8\nseqs: 16\n", "study.yaml")
    assert [
        (problem.place.line, problem.place.label) for problem in document.problems if problem.place
    ] == [(1, "text, not a number: YAML 1.1 reads 1e-3 as text; write 0.001"),
            (3, "repeated key; first on line 2")]  # fmt: skip


CROSSED = """\
knobs:
  max-num-batched-tokens: [2048, 65536]
  enable-chunked-prefill: {type: switch}
rules:
  - enable-chunked-prefill or max-num-batched-tokens >= max-model-len
"""


def test_b05_only_the_forbidden_corner_is_refused_before_launch() -> None:
    space, facts = read(CROSSED), {"max-model-len": 40960}
    tried = {
        (tokens, chunked): not space.violations(
            {"max-num-batched-tokens": tokens, "enable-chunked-prefill": chunked}, facts
        )
        for tokens in (2048, 65536)
        for chunked in (False, True)
    }
    assert {(2048, False)} == {corner for corner, allowed in tried.items() if not allowed}
    assert space.size(facts) == 3
    assert space.size({}) == 4


def test_b05_a_switch_fixed_as_off_in_the_study_counts_as_off() -> None:
    facts = {"max-model-len": 40960, "enable-chunked-prefill": "off"}
    assert read(CROSSED).size(facts) == 1


def test_b05_the_shipped_space_knows_the_combination() -> None:
    space = load_space("vllm")
    params = {"max-num-batched-tokens": 2048, "max-num-seqs": 8}
    off = {"enable-chunked-prefill": False, "max-model-len": 40960}
    assert space.violations(params, off)
    assert space.violations(params, {**off, "enable-chunked-prefill": True}) == []
    assert space.violations(params, {"max-model-len": 40960}) == []


def test_b10_more_gpus_than_there_are_and_heads_that_do_not_divide_cost_no_launch() -> None:
    facts = {"gpu.count": 4, "model.heads": 28}
    allowed = {
        dict(candidate.params)["tensor-parallel-size"]
        for candidate in load_space("vllm").candidates(facts)
    }
    assert {1, 2, 4} == allowed
    facts = {"gpu.count": 8, "model.heads": 28}
    sizes = (1, 2, 4, 8)
    space = load_space("vllm")
    refused = [size for size in sizes if space.violations({"tensor-parallel-size": size}, facts)]
    assert refused == [8]


def test_e06_a_small_space_has_a_known_end() -> None:
    space = read("enforce-eager: {type: switch}\nenable-prefix-caching: {type: switch}\n")
    assert space.size({}) == 4
    assert len({candidate.fingerprint for candidate in space.candidates({})}) == 4
