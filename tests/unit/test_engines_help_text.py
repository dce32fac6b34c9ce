"""Help texts of real programs and of argparse's and click's variants, read into flags."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.facts import engine_facts
from autotune.engines.flag_table import flag_table
from autotune.engines.flags import flag_problem
from autotune.engines.help_text import EngineHelp, HelpFlag, parse_help
from autotune.simulator.arguments import serve_help

HELPS = Path(__file__).parent / "help_texts"
VLLM = parse_help((HELPS / "vllm-0.32.txt").read_text(encoding="utf-8"))


def flag(listed: EngineHelp, name: str) -> HelpFlag:
    found = listed.find(name)
    assert found is not None, name
    return found


def test_every_flag_of_the_facts_is_in_the_real_help_or_known_to_be_gone() -> None:
    facts = engine_facts("vllm")
    missing = {name for name in facts.flags if VLLM.find(name) is None}
    assert missing == {name for name in facts.flags if flag_problem(facts, name, "0.32.0")}
    assert len(VLLM.flags) > 300


def test_the_help_text_and_the_table_of_a_version_list_the_same_flags() -> None:
    table = flag_table("vllm", "0.32.0")
    assert table is not None
    listed = {flag.name: (flag.kind, flag.several) for flag in VLLM.flags if flag.name != "help"}
    tabled = {flag.name: (flag.kind, flag.several) for flag in table.help().flags}
    assert listed == tabled


def test_the_kinds_of_the_facts_are_those_of_the_real_help() -> None:
    forms = {"switch": "switch", "bare": "bare"}
    odd = {
        known.name: (known.kind, seen.kind)
        for known in engine_facts("vllm").flags.values()
        if (seen := VLLM.find(known.name)) is not None
        and (forms.get(known.kind, "value") != seen.kind or known.several != seen.several)
    }
    assert odd == {}


def test_short_forms_negatives_and_underscores_are_spellings_of_one_flag() -> None:
    parallel = flag(VLLM, "tensor-parallel-size")
    assert flag(VLLM, "tp") == flag(VLLM, "tensor_parallel_size") == parallel
    assert flag(VLLM, "no-enable-prefix-caching").name == "enable-prefix-caching"
    assert flag(VLLM, "compilation-config.mode").name == "compilation-config"


def test_choices_are_read_and_a_list_of_examples_is_not_taken_for_them() -> None:
    assert "fp8_e5m2" in flag(VLLM, "kv-cache-dtype").choices
    assert flag(VLLM, "performance-mode").choices == ("balanced", "interactivity", "throughput")
    open_list = flag(VLLM, "tokenizer-mode")  # ['auto', 'hf', ...]: others are taken as well
    assert (open_list.kind, open_list.choices) == ("value", ())


def test_flags_that_only_an_explanation_mentions_are_not_listed() -> None:
    assert VLLM.find("json-arg") is None
    assert VLLM.find("port") is not None


def test_the_list_of_groups_is_not_the_list_of_flags() -> None:
    groups = parse_help((HELPS / "vllm-0.32-groups.txt").read_text(encoding="utf-8"))
    proof = engine_facts("vllm").help_proof
    assert not all(groups.find(name) for name in proof)
    assert all(VLLM.find(name) for name in proof)


def test_the_simulator_lists_its_own_flags_without_a_process() -> None:
    listed = parse_help(serve_help())
    assert flag(listed, "enable-prefix-caching").kind == "switch"
    assert flag(listed, "sim-profile").kind == "value"
    assert flag(listed, "O").name == "optimization-level"
    assert flag(listed, "attention-backend").choices[0] == "auto"


def test_a_program_of_argparse_is_read_as_it_was_written() -> None:
    parser = argparse.ArgumentParser(prog="p", description="--not-a-flag in words")
    parser.add_argument("--size", "-s", type=int, help="a size; see --other-words")
    parser.add_argument("--on", action=argparse.BooleanOptionalAction)
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--many", nargs="+")
    parser.add_argument("--pick", choices=["a", "b-c"])
    parser.add_argument("--long-name-of-a-flag-that-fills-its-line", metavar="N")
    parser.add_argument("-x")
    listed = parse_help(parser.format_help())
    kinds = {f.name: f.kind for f in listed.flags if f.name != "help"}
    assert kinds == {
        "size": "value", "on": "switch", "bare": "bare", "many": "value", "pick": "value",
        "long-name-of-a-flag-that-fills-its-line": "value",
    }  # fmt: skip
    assert flag(listed, "many").several
    assert not flag(listed, "size").several
    assert flag(listed, "pick").choices == ("a", "b-c")
    assert flag(listed, "s").name == "size"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  -s, --size SIZE       newer argparse names the value once", ("size", "value", ())),
        ("  --mode [fast|slow]    click", ("mode", "value", ("fast", "slow"))),
        ("  --on / --no-on        click", ("on", "switch", ())),
        ("  -n, --count INTEGER RANGE", ("count", "value", ())),
        ("  \x1b[1;36m--size\x1b[0m \x1b[33mSIZE\x1b[0m  in colour", ("size", "value", ())),
        ("  --kind {a,None}", ("kind", "value", ("a", "None"))),
    ],
)
def test_other_layouts(line: str, expected: tuple[str, str, tuple[str, ...]]) -> None:
    (found,) = parse_help(line).flags
    assert (found.name, found.kind, found.choices) == expected


def test_only_an_unambiguous_beginning_stands_for_a_flag() -> None:
    def abbreviated(name: str) -> str | None:
        found = VLLM.abbreviated(name)
        return None if found is None else found.name

    assert abbreviated("max-num-seq") == "max-num-seqs"
    assert abbreviated("kv-cache-mem") == "kv-cache-memory-bytes"
    assert abbreviated("max-num") is None
    assert abbreviated("max-num-sqes") is None


def test_a_list_survives_its_file() -> None:
    assert EngineHelp.from_json(VLLM.to_json()) == VLLM


@given(st.text())
def test_no_text_makes_the_reader_fall_over(text: str) -> None:
    for found in parse_help(text).flags:
        assert found.name in found.spellings


@given(
    st.lists(
        st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,6}){0,3}", fullmatch=True),
        unique=True,
        max_size=12,
    )
)
def test_all_flags_of_a_parser_are_found(names: list[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for number, name in enumerate(names):
        if number % 2:
            parser.add_argument(f"--{name}", help="text " * number)
        else:
            parser.add_argument(f"--{name}", action="store_true")
    listed = parse_help(parser.format_help())
    assert [f.name for f in listed.flags] == names
    assert [f.kind for f in listed.flags] == [
        "value" if n % 2 else "bare" for n in range(len(names))
    ]
    assert re.match(r"usage", parser.format_help())
