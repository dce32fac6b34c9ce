"""What the parsers of engine versions accept, by their tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.flag_table import FlagTable, TableFlag, flag_table, table_from_json


def table(engine: str, version: str | None = None) -> FlagTable:
    found = flag_table(engine, version)
    assert found is not None
    return found


VLLM = table("vllm", "0.33.0")
SGLANG = table("sglang", "0.5.23")


def small(**flags: Mapping[str, Any]) -> FlagTable:
    named = {name.replace("_", "-"): entry for name, entry in flags.items()}
    return table_from_json({"engine": "vllm", "version": "9.0", "flags": named})


@pytest.mark.parametrize(
    "words",
    [
        ["acme/tiny", "--max-num-seqs", "64", "--enable-prefix-caching"],
        ["acme/tiny", "--no-enable-prefix-caching", "--disable-chunked-prefill"],
        ["--max_num_seqs=64", "-tp", "2", "-O3", "-O", "2", "-cc.mode=3"],
        ["--max-model-len", "8k", "--kv-cache-memory-bytes", "1.5g", "--max-model-len", "auto"],
        ["--cudagraph-capture-sizes", "1", "2", "4", "--seed", "1"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'],
        ["--speculative-config.method", "ngram", "--attention-backend", "flash_attn"],
        ["--kv-cache-dtype", "fp8_e4m3", "--quantization", "fp8_per_tensor"],
        ["--served-model-name", "a", "b", "--stream-interv", "4"],
        ["--seed", "1", "acme/tiny"],
    ],
)
def test_what_vllm_takes_passes(words: list[str]) -> None:
    assert VLLM.check(words) == ()


@pytest.mark.parametrize(
    "words",
    [
        ["--model-path", "acme/tiny", "--tp-size", "2", "--tp", "2", "--ep", "4"],
        ["--chunked-prefill-size", "-1", "--max-prefill-tokens", "16Ki", "--disable-radix-cache"],
        ["--mem-fraction-static=0.85", "--schedule-policy", "lpm", "--kv-cache-dtype", "fp8_e5m2"],
        ["--speculative-algorithm", "nextn", "--cuda-graph-bs-decode", "1", "2", "4"],
    ],
)
def test_what_sglang_takes_passes(words: list[str]) -> None:
    assert SGLANG.check(words) == ()


@pytest.mark.parametrize(
    ("engine", "words", "said"),
    [
        (VLLM, ["--max-num-seqs", "8.5"], "`--max-num-seqs` takes a whole number, not 8.5"),
        (VLLM, ["--max-num-batched-tokens", "1.5K"], "takes a size such as 8k, not 1.5K"),
        (VLLM, ["--gpu-memory-utilization", "much"], "takes a number, not much"),
        (VLLM, ["--performance-mode", "fast"], "it takes balanced, interactivity, throughput"),
        (VLLM, ["--kv-cache-dtype", "fp9"], "does not take fp9; it takes auto, float16"),
        (VLLM, ["--quantization", "bitsandbytes"], "does not take bitsandbytes"),
        (VLLM, ["--speculative-config", "ngram"], "takes JSON, not ngram"),
        (VLLM, ["-sc", '{"methd": "ngram"}'], "has no key `methd`; nearest: method"),
        (VLLM, ["-sc", '{"method": "medusa"}'], "key `method` does not take medusa"),
        (VLLM, ["-cc.mod=3"], "has no key `mod`; nearest: mode"),
        (VLLM, ["--enforce-eager=1"], "`--enforce-eager` takes no value"),
        (VLLM, ["--max-num-seqs"], "`--max-num-seqs` needs a value"),
        (VLLM, ["--swap-space", "4"], "`--swap-space` is no flag of vllm 0.33.0"),
        (VLLM, ["a", "b"], "`b` belongs to no flag"),
        (VLLM, ["--enable-e"], "could mean"),
        (SGLANG, ["acme/tiny"], "`acme/tiny` belongs to no flag"),
        (SGLANG, ["--max_running_requests", "8"], "nearest: max-running-requests"),
        (SGLANG, ["--cuda-graph-max-bs", "8"], "could mean --cuda-graph-max-bs-decode"),
        (SGLANG, ["--max-prefill-tokens", "16K"], "takes a size such as 8k or 8Ki, not 16K"),
        (SGLANG, ["--disable-radix-cache", "true"], "`true` belongs to no flag"),
        (table("sglang", "0.5.3"), ["--enable-ep-moe"], "`--enable-ep-moe` is refused: NOTE"),
    ],
)  # fmt: skip
def test_what_a_parser_refuses_is_told(engine: FlagTable, words: list[str], said: str) -> None:
    problems = engine.check(words)
    assert len(problems) == 1
    assert said in problems[0]


def test_every_problem_of_a_command_line_is_told() -> None:
    problems = VLLM.check(["m", "--max-num-seqs", "x", "--nope", "1", "--block-size", "y"])
    assert [problem.split("`")[1] for problem in problems] == [
        "--max-num-seqs", "--nope", "--block-size",
    ]  # fmt: skip


def test_a_patch_release_has_the_flags_of_its_minor_version() -> None:
    assert table("vllm", "v0.26.1+cu129").versions == ("0.26.0",)
    assert table("vllm", "0.26").versions == ("0.26.0",)
    assert table("sglang", "0.5.13.post1").versions == ("0.5.13",)
    assert table("vllm").versions == ("0.33.0",)


def test_a_version_between_two_tables_gets_the_flags_of_both() -> None:
    between = table("vllm", "0.16.0")
    assert between.versions == ("0.15.0", "0.18.0")
    assert between.where == "the flag table of vllm 0.15.0 and 0.18.0"
    assert between.check(["--swap-space", "4", "--performance-mode", "throughput"]) == ()
    assert between.check(["--num-scheduler-steps", "4"]) != ()


@pytest.mark.parametrize("version", ["0.9.2", "0.34.0", "nightly"])
def test_nothing_is_claimed_of_versions_before_and_after_the_tables(version: str) -> None:
    assert flag_table("vllm", version) is None


def test_of_two_neighbours_the_wider_values_hold() -> None:
    from autotune.engines.flag_table import _both

    old = small(
        size={"type": "int"}, mode={"type": "str", "choices": ["a"]}, on={"type": "switch"},
        free={"type": "str", "choices": ["a"]},
    )  # fmt: skip
    new = small(
        size={"type": "str"}, mode={"type": "str", "choices": ["b"]}, free={"type": "str"},
        on={"type": "switch", "off": ["--no-on"]}, late={"type": "int"},
    )  # fmt: skip
    both = _both(old, new)
    assert (
        both.check(["--size", "text", "--mode", "a", "--mode", "b", "--no-on", "--free", "z"]) == ()
    )
    assert both.check(["--late", "1"]) == ()
    assert both.check(["--mode", "c"]) != ()


def test_a_table_reads_like_a_help_text() -> None:
    listed = SGLANG.help()
    flag = listed.find("tensor-parallel-size")
    assert flag is not None
    assert (flag.name, flag.kind) == ("tp-size", "value")
    cache = listed.find("disable-radix-cache")
    assert cache is not None
    assert cache.kind == "bare"
    policy = listed.find("schedule-policy")
    assert policy is not None
    assert "lpm" in policy.choices
    refused = table("sglang", "0.5.3").help()
    assert refused.find("enable-ep-moe") is None


ARGPARSE: Mapping[str, Any] = {"int": int, "float": float, "str": str, "json": json.loads}


def parser_of(flags: list[TableFlag]) -> argparse.ArgumentParser:
    """The same flags in a real parser."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag in flags:
        if flag.type == "switch":
            parser.add_argument(*flag.on, action="store_true")
            if flag.off:
                parser.add_argument(*flag.off, action="store_true")
        else:
            parser.add_argument(*flag.on, type=ARGPARSE[flag.type], nargs=flag.many, choices=None)
    return parser


WORDS = st.one_of(
    st.sampled_from(["--size", "--size=3", "--share", "--on", "--no-on", "-s", "--names"]),
    st.sampled_from(["1", "-1", "1.5", "-1.5", "text", "{}", "[1]", "--conf"]),
    st.sampled_from(["--nope", "--na", "--s", "--no"]),
)  # fmt: skip


@given(st.lists(WORDS, max_size=5))
def test_the_check_agrees_with_argparse(words: list[str]) -> None:
    flags = {
        "size": {"type": "int", "also": ["-s"]},
        "share": {"type": "float"},
        "on": {"type": "switch", "off": ["--no-on"]},
        "names": {"type": "str", "many": "+"},
        "conf": {"type": "json"},
    }
    made = small(**flags)
    parser = parser_of(list(made.flags.values()))
    try:
        _, rest = parser.parse_known_args(words)
        taken = not rest
    except (argparse.ArgumentError, SystemExit):
        taken = False
    assert (made.check(words) == ()) == taken
