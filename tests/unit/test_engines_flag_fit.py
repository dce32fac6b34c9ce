from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.facts import engine_facts
from autotune.engines.flag_fit import FlagFit, fit_flag, value_problem
from autotune.engines.help_text import parse_help

FACTS = engine_facts("vllm")
LISTED = parse_help((Path(__file__).parent / "help_texts/vllm-0.32.txt").read_text("utf-8"))


def fit(name: str) -> FlagFit:
    return fit_flag(FACTS, name, listed=LISTED, version="0.32.0")


def by_table(name: str, version: str | None) -> FlagFit:
    return fit_flag(FACTS, name, listed=None, version=version)


@pytest.mark.parametrize(
    "name", ["max-num-seqs", "max_num_seqs", "--tp", "O", "cc.mode", "no-enable-prefix-caching",
             "disable-chunked-prefill"],
)  # fmt: skip
def test_a_listed_flag_fits_in_any_spelling(name: str) -> None:
    found = fit(name)
    assert found.name is not None
    assert found.note == ""


def test_a_renamed_flag_gets_its_name_here_in_both_directions() -> None:
    assert fit("cuda-graph-sizes").name == "cudagraph-capture-sizes"
    old = parse_help("  --cuda-graph-sizes N [N ...]\n  --port PORT")
    back = fit_flag(FACTS, "cudagraph-capture-sizes", listed=old, version="0.11.0")
    assert back.name == "cuda-graph-sizes"
    assert "`cudagraph-capture-sizes` is `cuda-graph-sizes` here" in back.note


def test_a_flag_whose_sense_was_turned_is_marked() -> None:
    assert fit("disable-log-requests") == FlagFit(
        name="enable-log-requests",
        inverted=True,
        note="`disable-log-requests` is `enable-log-requests` here",
    )


def test_an_abbreviation_gets_its_whole_name() -> None:
    found = fit("max-num-seq")
    assert found.name == "max-num-seqs"
    assert "short for" in found.note


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("swap-space", "last present in 0.17; instead: kv-offloading-size"),
        ("max-total-tokens", "no version had it"),
        ("max-num-sqes", "nearest: max-num-seqs"),
        ("quite-another-thing", ""),
    ],
)
def test_a_missing_flag_says_what_is_known_of_it(name: str, known: str) -> None:
    found = fit(name)
    assert found.name is None
    assert found.note.startswith(known)


def test_without_a_list_only_what_the_table_knows_to_be_gone_is_missing() -> None:
    assert by_table("swap-space", "0.26.0").name is None
    assert by_table("swap-space", "0.11.0").name == "swap-space"
    assert by_table("a-flag-of-tomorrow", "0.99.0").name == "a-flag-of-tomorrow"
    assert by_table("cuda-graph-sizes", "0.26.0").name == "cudagraph-capture-sizes"
    assert by_table("performance-mode", "0.12.0").note == "first present in 0.17"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("kv-cache-dtype", "fp8", None),
        ("kv-cache-dtype", "fp8_e4m4", "does not take fp8_e4m4; nearest: fp8_e4m3"),
        ("performance-mode", "eager", "it takes balanced, interactivity, throughput"),
        ("max-num-seqs", True, "takes a value, not on or off"),
        ("enforce-eager", 3, "is a switch and takes no value"),
        ("enforce-eager", "off", None),
        ("disable-log-stats", False, "cannot be switched off"),
        ("no-enable-prefix-caching", True, None),
        ("optimization-level", None, None),
        ("compilation-config.mode", 3, None),
        ("max-lora-rank", 8, None),
        ("max-lora-rank", 9, "does not take 9"),
    ],
)
def test_values_against_what_the_list_shows(name: str, value: object, problem: str | None) -> None:
    found = value_problem(LISTED, name, value)
    assert found is None if problem is None else problem in (found or "")
