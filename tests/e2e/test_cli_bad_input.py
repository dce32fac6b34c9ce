"""Whatever is wrong with the input: one clear message, the right exit code, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.app import main

pytestmark = pytest.mark.e2e

Change = Callable[[dict[str, Any], Path], None]


def study() -> dict[str, Any]:
    return {
        "name": "bad",
        "model": "sim-model",
        "engine": {"kind": "simulated", "args": {"sim-profile": "quickstart"}},
        "baseline": {"max-num-seqs": 8},
        "space": "quick",
        "workload": {"path": "tiny.jsonl"},
        "objective": "minimize ttft_p95",
        "constraints": ["success_rate >= 0.9"],
        "budget": {"trials": 3},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"t": i * 0.1, "in": 64, "out": 4} for i in range(15)]
    (tmp_path / "tiny.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command line, which must refuse: what it said, once all the rest was checked."""

    def run(*words: str, code: int = 2) -> str:
        before = sorted(folder.rglob("*"))
        ours = children()
        with pytest.raises(SystemExit) as end:
            main([*words])
        said = capsys.readouterr()
        assert end.value.code == code, said.err
        assert said.out == "" or words[0] == "plan"  # which shows what it can, then refuses
        assert said.err.startswith("error: "), said.err
        assert said.err.count("error: ") == 1 or "vllm: error" in said.err, said.err
        assert "Traceback" not in said.err
        first = said.err.splitlines()[0]
        assert not first.endswith(".")
        assert not re.search(r"\b(invalid|please)\b", first, re.I)
        assert sorted(folder.rglob("*")) == before
        assert children() == ours
        return said.err

    return run


def children() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def unknown_knob(study: dict[str, Any], folder: Path) -> None:
    study["baseline"] = {"max-num-sequs": 8}


def unknown_metric(study: dict[str, Any], folder: Path) -> None:
    study["objective"] = "minimize ttft_p59"


def missing_workload(study: dict[str, Any], folder: Path) -> None:
    study["workload"] = {"path": "no-such-trace.jsonl"}


def empty_workload(study: dict[str, Any], folder: Path) -> None:
    (folder / "empty.jsonl").write_text("")
    study["workload"] = {"path": "empty.jsonl"}


def unusable_workload(study: dict[str, Any], folder: Path) -> None:
    (folder / "words.jsonl").write_text("hello\nworld\n")
    study["workload"] = {"path": "words.jsonl"}


def folder_as_workload(study: dict[str, Any], folder: Path) -> None:
    (folder / "traces").mkdir()
    study["workload"] = {"path": "traces"}


def missing_model(study: dict[str, Any], folder: Path) -> None:
    study["model"] = "/no/such/model"


def small_budget(study: dict[str, Any], folder: Path) -> None:
    study["budget"] = {"time": "1s"}


def unknown_engine(study: dict[str, Any], folder: Path) -> None:
    study["engine"] = {"kind": "vlm"}


def flag_of_another_engine(study: dict[str, Any], folder: Path) -> None:
    study["engine"] = {"kind": "sglang", "args": {"max-num-seqs": 8}}
    study["space"] = {"knobs": {"mem-fraction-static": {"type": "float", "values": [0.8, 0.9]}}}
    study["baseline"] = {}


def unknown_space(study: dict[str, Any], folder: Path) -> None:
    study["space"] = "quik"


def missing_secret(study: dict[str, Any], folder: Path) -> None:
    study["engine"]["env"] = {"HF_TOKEN": {"from_env": "NO_SUCH_TOKEN_HERE"}}


def secret_written_out(study: dict[str, Any], folder: Path) -> None:
    study["engine"]["env"] = {"HF_TOKEN": "hf_abcdefghijklmnop"}


def missing_program(study: dict[str, Any], folder: Path) -> None:
    study["engine"] = {"kind": "vllm", "command": ["no-such-vllm", "serve"]}
    study["space"] = "vllm"


def attached(study: dict[str, Any], folder: Path) -> None:
    study["engine"] = {"kind": "simulated", "launcher": "attach", "url": "http://127.0.0.1:9"}


def docker_without_an_image(study: dict[str, Any], folder: Path) -> None:
    study["engine"] = {"kind": "vllm", "launcher": "docker"}
    study["space"] = "vllm"


def broken_rule(study: dict[str, Any], folder: Path) -> None:
    study["baseline"] = {"max-num-seqs": 128, "max-num-batched-tokens": 64}


def unknown_key(study: dict[str, Any], folder: Path) -> None:
    study["bugdet"] = {"time": "8h"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unknown_knob, ["max-num-sequs", "max-num-seqs"]),
        (unknown_metric, ["ttft_p59", "ttft_p50"]),
        (missing_workload, ["no-such-trace.jsonl"]),
        (empty_workload, ["empty.jsonl"]),
        (unusable_workload, ["words.jsonl"]),
        (folder_as_workload, ["traces"]),
        (missing_model, ["model", "no such folder"]),
        (small_budget, ["too small for one launch", "hint:"]),
        (unknown_engine, ["vlm", "vllm"]),
        (flag_of_another_engine, ["max-num-seqs", "max-running-requests"]),
        (unknown_space, ["quik", "quick"]),
        (missing_secret, ["NO_SUCH_TOKEN_HERE", "export"]),
        (secret_written_out, ["from_env"]),
        (missing_program, ["program not found: no-such-vllm"]),
        (attached, ["a running server", "replay"]),
        (docker_without_an_image, ["image"]),
        (broken_rule, ["max-num-batched-tokens >= max-num-seqs"]),
        (unknown_key, ["bugdet", "budget"]),
    ],
)
@pytest.mark.parametrize("command", ["tune", "plan"])
def test_study_that_cannot_run(
    folder: Path, refused: Callable[..., str], command: str, change: Change, words: list[str]
) -> None:
    content = study()
    change(content, folder)
    (folder / "study.yaml").write_text(json.dumps(content, indent=1))
    said = refused(command, "study.yaml")
    for word in words:
        assert word in said, said
    assert "hf_abcdefghijklmnop" not in said


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        yield port
        socket.create_connection(("127.0.0.1", port)).close()  # the stranger still listens


def test_busy_port(folder: Path, refused: Callable[..., str], busy_port: int) -> None:
    content = study()
    content["engine"]["port"] = busy_port
    (folder / "study.yaml").write_text(json.dumps(content))
    said = refused("tune", "study.yaml")
    assert said.startswith(f"error: port {busy_port} is busy")
    assert f"pid {os.getpid()}" in said


@pytest.mark.docker
def test_image_that_is_not_there(folder: Path, refused: Callable[..., str]) -> None:
    content = study()
    image = "autotune-test/no-such-image:1"
    content["engine"] = {"kind": "vllm", "launcher": "docker", "image": image}
    content["space"] = "vllm"
    (folder / "study.yaml").write_text(json.dumps(content))
    assert image in refused("tune", "study.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [unclosed\n", ["study.yaml"]),
        ("name: a\nname: b\n", ["name", "study.yaml"]),
        ("- a\n- b\n", ["study.yaml"]),
        ("", ["study.yaml"]),
        ("\x00\x01", ["study.yaml"]),
        ("model: \xff\n", ["study.yaml"]),
        ("a: &x [*x]\n", ["study.yaml"]),
    ],
)
def test_file_that_is_no_study(
    folder: Path, refused: Callable[..., str], text: str, words: list[str]
) -> None:
    (folder / "study.yaml").write_bytes(text.encode("latin-1"))
    said = refused("tune", "study.yaml")
    for word in words:
        assert word in said, said


def test_missing_study_file(refused: Callable[..., str]) -> None:
    assert "no-such-study.yaml" in refused("tune", "no-such-study.yaml")


def test_folder_as_study_file(folder: Path, refused: Callable[..., str]) -> None:
    (folder / "study").mkdir()
    assert "study" in refused("tune", "study")


def test_no_study_at_all(refused: Callable[..., str]) -> None:
    said = refused("tune")
    assert "no study" in said
    assert "--workload" in said


def test_flags_that_say_nothing_useful(refused: Callable[..., str]) -> None:
    said = refused(
        "tune", "--engine", "simulated", "--model", "m", "--workload", "tiny.jsonl",
        "--space", "quick", "--slo", "ttft_p95 < fast", "--budget", "soon",
    )  # fmt: skip
    assert "fast" in said
    assert "soon" in said


@pytest.mark.parametrize(
    ("made", "words"),
    [("study", "already"), ("full", "not empty"), ("file", "a file"), ("shut", "cannot make")],
)
def test_directory_that_cannot_take_a_study(
    folder: Path, refused: Callable[..., str], made: str, words: str
) -> None:
    (folder / "study.yaml").write_text(json.dumps(study()))
    out = folder / "out"
    if made == "file":
        out.write_text("mine\n")
    elif made == "shut":
        (folder / "blocker").write_text("")
        out = folder / "blocker" / "run"
    else:
        out.mkdir()
        (out / ("study.json" if made == "study" else "notes.txt")).write_text("{}\n")
    if made == "shut":
        with pytest.raises(SystemExit) as end:
            main(["tune", "study.yaml", "--out", str(out), "--progress", "none"])
        assert end.value.code == 2
    else:
        assert words in refused("tune", "study.yaml", "--out", str(out))


@pytest.mark.parametrize(
    "words",
    [
        ["resume", "nowhere"],
        ["report", "nowhere"],
        ["show", "nowhere"],
        ["script", "nowhere"],
        ["verify", "nowhere"],
        ["diagnose", "nowhere.log"],
        ["diagnose", "/"],
        ["diagnose", "tiny.jsonl", "--engine", "vlm"],
        ["workload", "inspect", "nowhere.jsonl"],
        ["workload", "inspect", "tiny.jsonl", "--format", "nonsense"],
        ["workload", "convert", "tiny.jsonl", "-o", "no/such/folder/x.jsonl"],
        ["workload", "synth", "nonsense", "-o", "x.jsonl"],
        ["space", "show", "nonsense"],
        ["space", "check", "vllm", "--engine", "nonsense"],
        ["replay", "--url", "http://127.0.0.1:9", "--workload", "nowhere.jsonl"],
        ["replay", "--url", "http://127.0.0.1:9", "--workload", "tiny.jsonl", "--window", "soon"],
        ["replay", "--url", "http://127.0.0.1:9", "--workload", "tiny.jsonl", "--slo", "x < 1s"],
        ["replay", "--url", "127.0.0.1:9", "--workload", "tiny.jsonl"],
        ["replay", "--url", "http://127.0.0.1:9", "--workload", "tiny.jsonl", "--time-scale", "0"],
    ],
    ids=" ".join,
)
def test_other_commands_refuse_in_the_same_way(
    refused: Callable[..., str], words: list[str]
) -> None:
    assert len(refused(*words)) > 20


def test_study_directory_of_a_torn_start(folder: Path, refused: Callable[..., str]) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "study.json").write_text('{"schema": 1, "study_id"')
    for command in ("resume", "verify"):
        assert "study.json" in refused(command, "run") or command == "verify"


@pytest.fixture
def begun(folder: Path) -> Path:
    """A study directory, as far as it is looked at before anything is read of the study itself."""
    (folder / "run").mkdir()
    (folder / "run" / "study.json").write_text(json.dumps({"schema": 1, "spec": study()}))
    (folder / "run" / "study.yaml").write_text("# bad\n" + json.dumps(study()))
    return folder / "run"


@pytest.mark.parametrize("words", [[], ["--trials", "5"], ["--budget", "8h"]], ids=" ".join)
def test_a_study_whose_file_was_edited_is_not_resumed(
    begun: Path, refused: Callable[..., str], words: list[str]
) -> None:
    (begun / "study.yaml").write_text(json.dumps({**study(), "budget": {"trials": 4}}))
    before = {path: path.read_bytes() for path in begun.iterdir()}
    said = refused("resume", "run", *words)
    assert "run/study.yaml was changed after the study had begun" in said
    assert "budget.trials: 3 then, 4 now" in said
    assert "undo the change, or say it: `autotune resume run --trials 4`" in said
    (begun / "study.yaml").write_text(json.dumps({**study(), "objective": "minimize tpot_p95"}))
    said = refused("resume", "run", *words)
    assert "objective: minimize ttft_p95 then, minimize tpot_p95 now" in said
    assert "`autotune tune run/study.yaml --out ANOTHER_FOLDER`" in " ".join(said.split())
    before.pop(begun / "study.yaml")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("value", ["soon", "0", "-1h", "9999d", "8hours"])
def test_a_budget_that_tune_would_not_take_is_not_taken_by_resume(
    begun: Path, refused: Callable[..., str], value: str
) -> None:
    before = {path: path.read_bytes() for path in begun.iterdir()}
    assert "the flags: `budget.time`" in refused("resume", "run", f"--budget={value}")
    assert {path: path.read_bytes() for path in begun.iterdir()} == before
