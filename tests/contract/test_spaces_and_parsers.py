"""Every shipped space against the parsers of the engine versions that it is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from autotune.engines.catalog import engine_for
from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import engine_facts
from autotune.engines.flag_table import flag_table
from autotune.engines.flags import flag_problem
from autotune.search.choices import Choices
from autotune.space.candidate import Candidate
from autotune.space.engines_space import EnginesSpace, across
from autotune.space.search_space import SearchSpace, load_space

FOLDER = Path(__file__).parents[2] / "search_spaces"
VERSIONS = {
    "vllm": ("0.11.0", "0.12.0", "0.20.0", "0.26.0", "0.32.0", "0.33.0"),
    "sglang": ("0.5.3", "0.5.9", "0.5.13", "0.5.18", "0.5.20", "0.5.23"),
}
DRAWS = 60
DENSE: dict[str, Any] = {
    "model.heads": 28, "model.kv_heads": 4, "model.experts": 0, "model.mla": False,
    "model.quantized": False, "model.max_length": 32768,
}  # fmt: skip
MIXTURE = {**DENSE, "model.heads": 128, "model.experts": 256, "model.mla": True}
LONG: dict[str, Any] = {
    "workload.prefix_reuse": 0.4, "workload.input_p50": 6000, "workload.input_p99": 30000,
    "workload.rate_mean": 4.0,
}  # fmt: skip
SHORT = {**LONG, "workload.prefix_reuse": 0.01, "workload.input_p50": 300, "workload.rate_mean": 40}
HOPPER: dict[str, Any] = {
    "gpu.count": 8, "gpu.compute_capability": 9.0, "gpu.memory_gib": 139.8,
}  # fmt: skip
SITUATIONS: Mapping[str, Mapping[str, Any]] = {
    "hopper, dense, long": {**HOPPER, **DENSE, **LONG, "max-model-len": 32768},
    "hopper, experts, short": {**HOPPER, **MIXTURE, **SHORT, "max-model-len": 8192},
    "one ampere, dense, short": {
        **HOPPER, "gpu.count": 1, "gpu.compute_capability": 8.0, **DENSE, **SHORT,
    },
    "no gpu": {"gpu.count": 0, **DENSE, **SHORT, "max-model-len": 2048},
}  # fmt: skip


def cases() -> list[Any]:
    spaces = [load_space(path.stem) for path in sorted(FOLDER.glob("*.yaml"))]
    return [
        pytest.param(space, version, id=f"{space.name} {version}")
        for space in spaces
        for version in VERSIONS.get(str(space.engine), ())
    ]


def test_the_space_across_engines_is_made_of_the_checked_ones() -> None:
    """Its candidates are theirs, and the argv of each is one that its engine's parser accepts."""
    both = load_space("both")
    assert isinstance(both, EnginesSpace)
    assert both.engines == ("vllm", "sglang")
    versions = {"vllm": "0.33.0", "sglang": "0.5.23"}
    bound = across(
        "both",
        [
            replace(part, facts=facts_of(part.space, versions[part.kind], "hopper, dense, long"))
            for part in both.parts
        ],
    )
    seen = set()
    for candidate in candidates(bound, {}):
        part = bound.part(candidate.engine)
        assert part is not None
        assert part.facts is not None
        seen.add(part.kind)
        table = flag_table(part.kind, versions[part.kind])
        assert table is not None
        words = words_of(part.space, candidate, part.facts)
        assert table.check(words) == (), dict(candidate.params)
    assert seen == {"vllm", "sglang"}


def facts_of(space: SearchSpace, version: str, situation: str) -> dict[str, Any]:
    return {**SITUATIONS[situation], "engine.kind": space.engine, "engine.version": version}


def candidates(space: SearchSpace, facts: Mapping[str, Any]) -> Iterator[Candidate]:
    """Each value of each knob at least once where it may be active, and random mixtures."""
    choices, rng = Choices(space, facts), Random(7)
    for knob in space.knobs:
        for position in range(choices.count(knob.name)):
            indices = choices.assign(
                lambda name, own=knob.name, at=position: (
                    at if name == own else rng.randrange(choices.count(name))
                )
            )
            found = choices.candidate(indices)
            if found is not None:
                yield found
    for _ in range(DRAWS):
        found = choices.candidate(choices.assign(lambda name: rng.randrange(choices.count(name))))
        if found is not None:
            yield found
    for first in space.first:
        fitting = first.when is None or first.when.evaluate(facts) is True
        if fitting and not space.violations(first.params, facts):
            yield space.complete(first.params, facts)


def words_of(space: SearchSpace, candidate: Candidate, facts: Mapping[str, Any]) -> list[str]:
    length = "context-length" if space.engine == "sglang" else "max-model-len"
    args = {length: facts["max-model-len"]} if "max-model-len" in facts else {}
    target = LaunchTarget(
        model="acme/tiny", launcher="process", command=("server",), args=args,
        knob_flags={k.name: k.flag for k in space.knobs if k.flag is not None},
        knob_env={k.name: k.env for k in space.knobs if k.env is not None},
    )  # fmt: skip
    plan = engine_for(str(space.engine), facts["engine.version"]).plan(candidate, target)
    return list(plan.argv_for("127.0.0.1", 8000))[1:]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("space", "version"), cases())
def test_the_parser_of_the_version_accepts_what_the_space_can_produce(
    space: SearchSpace, version: str, situation: str
) -> None:
    facts = facts_of(space, version, situation)
    table = flag_table(str(space.engine), version)
    assert table is not None
    seen = set()
    for candidate in candidates(space, facts):
        seen |= set(candidate.params)
        problems = table.check(words_of(space, candidate, facts))
        assert problems == (), f"{dict(candidate.params)}: {problems}"
    assert seen or facts["gpu.count"] == 0, "no candidate at all"


def divides(params: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    return int(facts["model.heads"]) % int(params.get("tensor-parallel-size") or 1) == 0


def fits_the_host(params: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    used = 1
    for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
        used *= int(params.get(name) or 1)
    return used <= max(1, int(facts["gpu.count"]))


def vllm_rules(params: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """What vLLM refuses by its own documentation and source, said once more and independently."""
    tokens, seqs = params.get("max-num-batched-tokens"), params.get("max-num-seqs")
    length = facts.get("max-model-len")
    if tokens and seqs:
        yield "tokens of a step >= sequences", tokens >= seqs
    if params.get("enable-chunked-prefill") is False and tokens and length:
        yield "whole prompts fit a step", tokens >= length
    threshold = params.get("long-prefill-token-threshold")
    if threshold and length:
        yield "threshold <= length", threshold <= length
    yield "heads divide", divides(params, facts)
    yield "GPUs suffice", fits_the_host(params, facts)
    if params.get("enable-expert-parallel"):
        yield "experts exist", facts["model.experts"] > 0
    context = params.get("decode-context-parallel-size") or 1
    yield "context parallel divides", (params.get("tensor-parallel-size") or 1) % context == 0
    if context > 1:
        yield "context parallel needs one latent head or more GPUs than heads", facts["model.mla"]
    if params.get("kv-cache-dtype", "auto") != "auto" or params.get("quantization") == "fp8":
        yield "fp8 needs Ada or newer", facts.get("gpu.compute_capability", 0) >= 8.9
    if params.get("attention-backend") == "FLASHINFER":
        yield "block size of FlashInfer", params.get("block-size") in (None, 16, 32, 64)
    if params.get("enable-dbo"):
        yield "half batches need DeepEP", str(params.get("all2all-backend")).startswith("deepep")


def sglang_rules(params: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The same for SGLang."""
    chunk, page = params.get("chunked-prefill-size"), params.get("page-size") or 1
    if chunk and chunk > 0:
        yield "chunk holds whole pages", chunk % page == 0
    if params.get("enable-hierarchical-cache"):
        yield "no tiers without a tree", not params.get("disable-radix-cache")
    yield "heads divide", divides(params, facts)
    yield "GPUs suffice", fits_the_host(params, facts)
    if params.get("kv-cache-dtype", "auto") != "auto" or params.get("quantization") == "fp8":
        yield "fp8 needs Ada or newer", facts.get("gpu.compute_capability", 0) >= 8.9
    if "hicache-ratio" in params:
        yield "tiers only with tiers", bool(params.get("enable-hierarchical-cache"))


RULES = {"vllm": vllm_rules, "sglang": sglang_rules}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("space", "version"), cases())
def test_no_candidate_breaks_a_documented_rule(
    space: SearchSpace, version: str, situation: str
) -> None:
    facts = facts_of(space, version, situation)
    for candidate in candidates(space, facts):
        for name, holds in RULES[str(space.engine)](candidate.params, facts):
            assert holds, f"{name}: {dict(candidate.params)}"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_knob_says_why_and_every_preset_where_it_is_from(path: Path) -> None:
    space = load_space(path.stem)
    assert [knob.name for knob in space.knobs if not knob.why] == []
    assert [first.params for first in space.first if not first.why] == []


@pytest.mark.parametrize("kind", VERSIONS)
def test_what_a_version_lacks_is_known_beforehand(kind: str) -> None:
    """A knob outside its `versions` is not active, one inside is no known problem."""
    facts = engine_facts(kind)
    for path in FOLDER.glob("*.yaml"):
        space = load_space(path.stem)
        if space.engine != kind:
            continue
        for version in VERSIONS[kind]:
            situation = facts_of(space, version, "hopper, experts, short")
            for knob in space.active(space.first_values(), situation):
                assert flag_problem(facts, knob.flag or knob.name, version) is None
