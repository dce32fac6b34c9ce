"""The flag table of the installed vLLM against its own parser; see tests/real_engine/README.md."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.engines import flag_update
from autotune.engines.facts import engine_facts
from autotune.engines.flag_table import FlagTable, TableFlag, table_from_json, table_versions
from autotune.engines.flag_table import read_table as read
from autotune.engines.flags import flag_problem

pytestmark = pytest.mark.real_engine

DUMP = Path(flag_update.__file__).parent / "flag_dump.py"
ASK = f"""
import argparse, contextlib, importlib.util, io, json, sys
spec = importlib.util.spec_from_file_location("flag_dump", {str(DUMP)!r})
dump = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dump)
asked = json.load(sys.stdin)
with contextlib.redirect_stdout(sys.stderr):
    import vllm
    parser = dump.parser_of("vllm")
    taken = []
    for words in asked:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parser.parse_args(words)
            taken.append(True)
        except (SystemExit, ValueError, argparse.ArgumentTypeError):
            taken.append(False)
    table = dump.table_of("vllm")
json.dump({{"version": vllm.__version__, "table": table, "taken": taken}}, sys.stdout)
"""
SLACK = {"lora-dtype"}
"""Choices that the engine works out from torch, for which the table takes any text."""
APART = {*SLACK, "config", "lora-modules"}
"""And flags whose value is a file to read, or a form that only their action knows."""


def ask(commands: list[list[str]]) -> dict[str, Any]:
    """The real parser's own table, and which of the commands it takes."""
    folder = os.environ.get("AUTOTUNE_TEST_VLLM")
    if not folder:
        pytest.skip("AUTOTUNE_TEST_VLLM is not set")
    answer = subprocess.run(
        [f"{folder}/bin/python", "-I", "-c", ASK], input=json.dumps(commands),
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    found = json.loads(answer.stdout)
    assert isinstance(found, dict)
    return found


def installed(found: dict[str, Any]) -> FlagTable:
    version = found["version"].partition("+")[0]
    if version not in table_versions("vllm"):
        pytest.skip(f"there is no table of {version}")
    return read("vllm", version)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the installed engine says of itself."""
    return ask([])


def test_the_table_is_what_the_installed_parser_says_of_itself(found: dict[str, Any]) -> None:
    table = installed(found)
    real = table_from_json({"engine": "vllm", "version": table.versions[0], **found["table"]})
    assert (real.positional, real.flexible) == (table.positional, table.flexible)
    differing = {
        name
        for name in real.flags.keys() | table.flags.keys()
        if real.flags.get(name) != table.flags.get(name)
    }
    assert differing <= SLACK


def test_every_flag_of_the_facts_is_one_of_the_installed_parser_or_known_to_be_gone(
    found: dict[str, Any],
) -> None:
    table, facts = installed(found), engine_facts("vllm")
    version = table.versions[0]
    there = set(found["table"]["flags"])
    known = {name for name in facts.flags if flag_problem(facts, name, version) is None}
    assert known <= there
    assert there - known <= {*facts.managed, *facts.secrets}


def value(flag: TableFlag, draw: random.Random) -> list[str]:
    """Words behind a flag, right ones and wrong ones."""
    pool = ["7", "-1", "0.5", "8k", "8K", "auto", "text", "{}", "None", '{"a": 1}', "true", ""]
    pool += list(flag.choices[:2])
    return [draw.choice(pool) for _ in range(draw.choice([0, 1, 1, 1, 1, 2]))]


def test_the_check_agrees_with_the_installed_parser() -> None:
    """Two thousand command lines, right and wrong ones."""
    draw = random.Random(11)
    table = installed(ask([]))
    # Their values are checked by a configuration class, of which the table holds the keys alone
    plain = [f for f in table.flags.values() if f.type != "json" and f.name not in APART]
    commands = []
    for _ in range(2000):
        flag = draw.choice(plain)
        spelling = draw.choice([*flag.on, *flag.off])
        words = [] if flag.type == "switch" and draw.random() < 0.8 else value(flag, draw)
        commands.append(["model", spelling, *words])
    taken = ask(commands)["taken"]
    bare = FlagTable(
        engine="vllm", versions=table.versions, positional=True, flexible=True,
        # What only the configuration refuses, the parser takes
        flags={n: TableFlag(**{**fields(f), "known": ()}) for n, f in table.flags.items()},
    )  # fmt: skip
    wrong = [
        (words, real, bare.check(words))
        for words, real in zip(commands, taken, strict=True)
        if real != (bare.check(words) == ())
    ]
    assert wrong == []
    assert 0.2 < sum(taken) / len(taken) < 0.9


def fields(flag: TableFlag) -> dict[str, Any]:
    return {name: getattr(flag, name) for name in TableFlag.__dataclass_fields__}
