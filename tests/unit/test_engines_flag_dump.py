"""A parser is read from sources whose libraries are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.engines import flag_update
from autotune.engines.flag_table import table_from_json

DUMP = Path(flag_update.__file__).parent / "flag_dump.py"
ARGS = """
import argparse
import torch
import torch.nn.functional as functional
from sglang.kernels import _compiled
from sglang.broken import BACKENDS, missing
try:
    import fast_library
    FAST = True
except ImportError:
    FAST = False

class Module(torch.nn.Module):
    pass

@torch.no_grad()
def human(text):
    return int(text[:-2]) * 1024 if text.endswith("Ki") else int(text[:-1]) * 1000 if text[-1:] == "k" else int(text)

class Refuse(argparse.Action):
    def __init__(self, option_strings, dest, nargs=0, **kwargs):
        super().__init__(option_strings, dest, nargs=0, **kwargs)
    def __call__(self, parser, namespace, values, option_string=None):
        parser.error("use --new instead")

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--tokens", type=human, default=16384)
        parser.add_argument("--backend", choices=BACKENDS, default="a")
        parser.add_argument("--share", type=float)
        parser.add_argument("--sizes", type=int, nargs="+")
        parser.add_argument("--fast", action="store_true", default=FAST)
        parser.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True)
        parser.add_argument("--old", action=Refuse)
        CHANGES
"""  # noqa: E501


def dumped(tmp_path: Path, changes: str = "") -> subprocess.CompletedProcess[str]:
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "kernels").mkdir()
    for folder in (package, package / "srt", package / "kernels"):
        (folder / "__init__.py").write_text("")
    (package / "broken.py").write_text("BACKENDS = ['a', 'b']\nimport torch\nraise ValueError\n")
    (package / "srt" / "server_args.py").write_text(ARGS.replace("CHANGES", changes or "pass"))
    return subprocess.run(
        [sys.executable, "-I", "-S", str(DUMP), "sglang", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    answer = dumped(tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert isinstance(found, dict)
    return found


def test_kinds_are_found_by_trying_the_parsers_own_conversions(table: dict[str, Any]) -> None:
    flags = table["flags"]
    assert {name: flag["type"] for name, flag in flags.items()} == {
        "model-path": "str", "tokens": "si-size", "backend": "str", "share": "float",
        "sizes": "int", "fast": "switch", "overlap": "switch", "old": "switch",
    }  # fmt: skip
    assert flags["model-path"]["also"] == ["--model"]
    assert flags["tokens"]["default"] == 16384
    assert flags["backend"]["choices"] == ["a", "b"]
    assert flags["sizes"]["many"] == "+"
    assert (table["positional"], table["flexible"]) == (False, False)


def test_a_flag_that_is_only_refused_keeps_the_parsers_words(table: dict[str, Any]) -> None:
    assert table["flags"]["old"]["refused"] == "use --new instead"


def test_what_switches_off_is_found_by_trying(table: dict[str, Any]) -> None:
    assert table["flags"]["overlap"] == {"off": ["--no-overlap"], "type": "switch", "default": True}
    # An optional library stays missing
    assert table["flags"]["fast"] == {"type": "switch"}


def test_a_stand_in_never_becomes_part_of_a_table(tmp_path: Path) -> None:
    answer = dumped(tmp_path, "parser.add_argument('--dtype', choices=[torch.float16])")
    assert answer.returncode != 0
    assert "a stand-in has become part of ['--dtype']" in answer.stderr


def test_the_text_of_a_table_is_one_line_per_flag_and_reads_back(table: dict[str, Any]) -> None:
    data = {"engine": "sglang", "version": "9.1", **table}
    text = flag_update.render(data)
    assert json.loads(text) == data
    assert sum(line.startswith('    "') for line in text.splitlines()) == len(table["flags"])


def test_the_difference_of_two_versions_is_told_flag_by_flag(table: dict[str, Any]) -> None:
    old = table_from_json({"engine": "sglang", "version": "9.1", **table})
    flags = {**table["flags"], "new": {"type": "int"}}
    del flags["share"]
    flags["backend"] = {"type": "str", "choices": ["a", "c"], "default": "c"}
    new = table_from_json({"engine": "sglang", "version": "9.2", "flags": flags})
    assert list(flag_update.difference(old, new)) == [
        "+ new (int)",
        "- share",
        "~ backend: default a -> c; choices + c; choices - b",
    ]


def test_a_wheel_of_something_else_is_refused(tmp_path: Path, capsys: Any) -> None:
    import zipfile

    wheel = tmp_path / "other-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/__init__.py", "")
    assert flag_update.main(["sglang", "9.1", "--wheel", str(wheel), "--out", str(tmp_path)]) == 2
    assert "this is no wheel of sglang" in capsys.readouterr().err
