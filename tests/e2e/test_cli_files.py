"""Commands on files and on the machine: workload, space, doctor, help. No study is run."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.cli.app import main

pytestmark = pytest.mark.e2e


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    rows = [{"t": i * 0.1, "in": 64 + i, "out": 4} for i in range(15)]
    (tmp_path / "tiny.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "bad\n")

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*words])
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


def test_inspect_tells_the_contract_of_a_workload(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("workload", "inspect", "tiny.jsonl", "--json")
    about = json.loads(out)
    assert code == 0
    assert {
        "format", "requests", "skipped", "skipped_by_reason", "duration_s", "rate_mean",
        "rate_peak_1s", "input_tokens", "output_tokens", "prefix_reuse", "sessions",
        "first_offsets_s",
    } <= about.keys()  # fmt: skip
    assert about["requests"] == 15
    assert about["skipped"][0]["line"] == 16
    assert len(about["first_offsets_s"]) == 10


def test_inspect_for_people(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("workload", "inspect", "tiny.jsonl")
    assert code == 0
    assert "15 in 1.4s" in out
    assert "line 16" in out


def test_strict_reading_refuses_a_bad_line(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("workload", "inspect", "tiny.jsonl", "--strict")
    assert (code, out) == (2, "")
    assert "16" in err


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.zst"])
def test_convert_keeps_what_is_replayed(
    run: Callable[..., tuple[int, str, str]], name: str
) -> None:
    code, out, err = run("workload", "convert", "tiny.jsonl", "-o", name)
    assert (code, out) == (0, f"{name}\n")
    assert "skipped 1 lines" in err
    first = json.loads(run("workload", "inspect", "tiny.jsonl", "--json")[1])
    again = json.loads(run("workload", "inspect", name, "--json")[1])
    assert again["skipped"] == []
    for key in ("requests", "duration_s", "input_tokens", "output_tokens", "first_offsets_s"):
        assert again[key] == first[key]


def test_synth_makes_the_same_workload_from_the_same_seed(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        assert run("workload", "synth", "cpu-tiny", "-o", name, "--seed", "5")[0] == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


@pytest.mark.parametrize("space", ["vllm", "quick", "long-context", "quantization"])
def test_shipped_spaces_can_be_shown_and_checked(
    run: Callable[..., tuple[int, str, str]], space: str
) -> None:
    code, out, _ = run("space", "show", space, "--json")
    assert code == 0
    assert json.loads(out)["knobs"]
    assert run("space", "show", space)[0] == 0
    code, out, err = run("space", "check", space, "--engine-version", "0.26.0")
    assert code == 0, err
    assert "fit" in out


def test_check_names_flags_that_a_version_does_not_have(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "old.yaml").write_text(
        "engine: vllm\nknobs:\n  swap-space: {type: int, values: [1, 4]}\n"
    )
    code, out, err = run("space", "check", "old.yaml", "--engine-version", "0.26.0")
    assert (code, out) == (2, "")
    assert "swap-space" in err


# The client library leaves the socket of its first failed connection to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"]])
def test_doctor_finds_what_it_finds(
    run: Callable[..., tuple[int, str, str]], words: list[str]
) -> None:
    code, out, err = run(*words)
    gc.collect()
    assert code in (0, 4)
    assert err == ""
    for name in ("docker", "gpu", "cores", "disk", "files", "ports"):
        assert name in out


# The client library leaves the socket of its first failed connection to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_doctor_without_a_docker_engine(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    code, out, _ = run("doctor", "--json")
    gc.collect()
    docker = next(f for f in json.loads(out)["findings"] if f["name"] == "docker")
    assert code in (0, 4)
    assert docker["state"] == "note"
    assert docker["hint"]


def test_diagnose_for_people(run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("ValueError: No available memory for the cache blocks.\n")
    code, out, _ = run("diagnose", "x.log", "--exit-code", "1")
    assert code == 0
    assert "fault    candidate" in out
    assert "remedy   raise_memory" in out


@pytest.mark.parametrize(
    "words",
    [[], ["tune"], ["plan"], ["resume"], ["report"], ["script"], ["show"], ["verify"], ["replay"],
     ["diagnose"], ["doctor"], ["workload"], ["workload", "inspect"], ["space"]],
    ids=lambda words: " ".join(words) or "autotune",
)  # fmt: skip
def test_every_command_has_help(run: Callable[..., tuple[int, str, str]], words: list[str]) -> None:
    code, out, _ = run(*words, "--help")
    assert code == 0
    assert "Usage:" in out


def test_version(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("autotune ")


def test_usage_errors_exit_2_without_a_traceback(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run("tune", "--no-such-option")
    assert (code, out) == (2, "")
    assert "no-such-option" in err
    assert "Traceback" not in err


def test_results_reach_a_pipe_that_takes_only_ascii() -> None:
    """A log collector's locale is no reason to end a study with a fault of our own."""
    answer = subprocess.run(
        [sys.executable, "-m", "autotune", "space", "show", "vllm"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert b"max-num-seqs" in answer.stdout


def test_pipe_that_is_closed_early_is_no_fault() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "space", "show", "vllm"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
    assert b"Traceback" not in said
    assert b"fault" not in said
