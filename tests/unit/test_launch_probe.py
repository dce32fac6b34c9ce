"""Asking a program for its flags: small programs stand for engines."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import EngineFacts, engine_facts
from autotune.launch.probe import HelpReading, read_help

FACTS = replace(
    engine_facts("vllm"), help=(("--help=all",), ("--help",)), help_proof=("port", "size")
)
WHOLE = "  --port PORT\n  --size {1,2}\n  --on, --no-on\n"


class Bench:
    """A folder with one program, and the cache beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "engine"
        self.calls = folder / "calls"
        self.environ = {
            "PATH": os.environ["PATH"], "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }  # fmt: skip

    def write(self, body: str) -> None:
        self.program.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\n{body}\n')
        self.program.chmod(0o755)

    def ask(
        self,
        *,
        facts: EngineFacts = FACTS,
        version: str | None = "1.0",
        timeout_s: float = 10,
        **target: object,
    ) -> HelpReading | None:
        wanted = LaunchTarget(model="m", launcher="process", command=(str(self.program), "serve"))
        return read_help(
            replace(wanted, **target),  # type: ignore[arg-type]
            facts, version, environ=self.environ, timeout_s=timeout_s,
        )  # fmt: skip

    @property
    def asked(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_program_is_asked_once_and_then_remembered(bench: Bench) -> None:
    bench.write(f"printf '%s' '{WHOLE}'")
    first, again = bench.ask(), bench.ask()
    assert first is not None
    assert first.help is not None
    assert [flag.name for flag in first.help.flags] == ["port", "size", "on"]
    assert first.where == f"`engine serve --help=all` of {bench.program}"
    assert again == first
    assert bench.asked == ["serve --help=all"]


@pytest.mark.parametrize("change", ["program", "version", "command"])
def test_another_program_version_or_command_is_asked_anew(bench: Bench, change: str) -> None:
    bench.write(f"printf '%s' '{WHOLE}'")
    bench.ask()
    if change == "program":
        os.utime(bench.program, ns=(1, 1))
        bench.ask()
    elif change == "version":
        bench.ask(version="1.1")
    else:
        bench.ask(command=(str(bench.program), "start"))
    assert len(bench.asked) == 2


def test_a_short_list_is_not_believed_and_the_older_way_is_tried(bench: Bench) -> None:
    bench.write(f"""[ "$2" = --help ] && printf '%s' '{WHOLE}' || echo '  --port PORT'""")
    reading = bench.ask()
    assert reading is not None
    assert reading.help is not None
    assert bench.asked == ["serve --help=all", "serve --help"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 3", "it ended with code 3"),
        ("echo nothing of use", "does not list its flags"),
        ("kill -9 $$", "it ended with code -9"),
    ],
)
def test_a_program_that_does_not_tell_is_a_note_and_is_asked_again(
    bench: Bench, body: str, words: str
) -> None:
    bench.write(body)
    reading = bench.ask()
    assert reading is not None
    assert reading.help is None
    assert words in (reading.note or "")
    bench.ask()
    assert len(bench.asked) == 4  # two ways each time: a failure is not remembered


def test_a_program_that_hangs_is_ended_with_its_children(bench: Bench) -> None:
    pids = bench.folder / "pids"
    bench.write(f"sleep 60 & echo $! $$ > {pids}; wait")
    began = time.monotonic()
    reading = bench.ask(timeout_s=0.4)
    assert reading is not None
    assert "no answer within 0.4 s" in (reading.note or "")
    assert time.monotonic() - began < 5
    assert len(bench.asked) == 1
    for pid in pids.read_text().split():
        state = Path(f"/proc/{pid}/stat")
        deadline = time.monotonic() + 2
        while _runs(state) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not _runs(state)


def _runs(state: Path) -> bool:
    try:
        return state.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_program_sees_the_studys_variables(bench: Bench) -> None:
    bench.write(f"""[ "$MODE" = x ] && printf '%s' '{WHOLE}'""")
    reading = bench.ask(env={"MODE": "x"})
    assert reading is not None
    assert reading.help is not None


def test_what_is_not_there_or_not_to_be_asked(bench: Bench) -> None:
    missing = bench.ask()
    assert missing is not None
    assert "program not found" in (missing.note or "")
    assert bench.ask(launcher="attach", url="http://127.0.0.1:1") is None
    assert bench.ask(facts=engine_facts("generic")) is None


def test_a_cache_that_cannot_be_written_or_read_is_no_loss(bench: Bench) -> None:
    bench.write(f"printf '%s' '{WHOLE}'")
    (bench.folder / "cache").write_text("a file where a folder should be")
    reading = bench.ask()
    assert reading is not None
    assert reading.help is not None
    (bench.folder / "cache").unlink()
    bench.ask()
    (kept,) = (bench.folder / "cache").rglob("*.json")
    assert not stat.S_IMODE(kept.stat().st_mode) & 0o022
    kept.write_text('{"flags": [{"name": 3}]}')
    assert bench.ask() == reading
    assert len(bench.asked) == 3
