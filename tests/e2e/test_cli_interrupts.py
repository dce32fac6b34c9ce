"""Ctrl-C, SIGTERM and `kill -9` at every moment of a study, and going on afterwards."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

STUBBORN = "trap '' TERM INT; while :; do sleep 0.1; done\n"
POLITE_S = 10.0
"""How long a server may take to end once it was asked to."""


def assert_resumes(bench: Any, looks: Any, kept: dict[str, bytes]) -> None:
    """Resume ends the study, and what had finished is as it was."""
    study_id = bench.study_id()
    answer = bench.run("resume", bench.run_folder)
    assert answer.returncode in (0, 3), answer.stderr
    assert {name: data for name, data in bench.outcomes().items() if name in kept} == kept
    assert looks.marked(study_id) == []
    numbers = [int(p.name) for p in sorted(bench.run_folder.glob("trials/*"))]
    assert numbers == list(range(len(numbers)))
    states = bench.states()
    assert states.count("interrupted") == 1
    assert len(states) == 3
    assert (bench.run_folder / "report.html").is_file()


def test_ctrl_c_during_a_replay_ends_cleanly_and_can_be_resumed(bench: Any, looks: Any) -> None:
    tuner = bench.start("tune", bench.write(), "--out", bench.run_folder)
    bench.await_phase("replaying", 1)
    kept = bench.outcomes()
    tuner.send_signal(signal.SIGINT)
    said = looks.finish(tuner)
    assert said.returncode == 130
    assert said.stdout == f"{bench.run_folder}\n"
    assert "Stopping" in said.stderr
    assert f"autotune resume {bench.run_folder}" in said.stderr
    assert "Traceback" not in said.stderr
    assert bench.states() == ["measured", "interrupted"]
    assert looks.marked(bench.study_id()) == []
    assert (bench.run_folder / "report.html").is_file()
    assert bench.json("verdict.json")["interrupted"] is True
    assert_resumes(bench, looks, kept)


SLOW_START = {
    "engine": {
        "kind": "simulated",
        "args": {"sim-profile": "quickstart", "sim-startup": 30.0},
    }
}


def test_sigterm_during_start_up_removes_the_server(bench: Any, looks: Any) -> None:
    tuner = bench.start("tune", bench.write(**SLOW_START), "--out", bench.run_folder)
    bench.await_phase("launching", 0)
    looks.until(lambda: looks.marked(bench.study_id()), "the server")
    tuner.send_signal(signal.SIGTERM)
    said = looks.finish(tuner)
    assert said.returncode == 130
    assert bench.states() == ["interrupted"]
    assert looks.marked(bench.study_id()) == []
    assert not (bench.run_folder / "best").exists()


@pytest.mark.parametrize("moment", ["launching", "replaying", "between"])
def test_kill_9_then_resume(bench: Any, looks: Any, moment: str) -> None:
    """Whatever the tuner was doing: finished trials stay, its server goes, numbers go on."""
    tuner = bench.start("tune", bench.write(), "--out", bench.run_folder)
    if moment == "between":
        looks.until((bench.run_folder / "trials/0001.partial").exists, "trial 1")
    else:
        bench.await_phase(moment, 1)
    kept = bench.outcomes()
    assert len(kept) >= 7
    study_id = bench.study_id()
    os.kill(tuner.pid, signal.SIGKILL)
    tuner.communicate()
    if moment == "replaying":
        assert looks.marked(study_id)  # its server lives on until somebody resumes
    assert_resumes(bench, looks, kept)
    closed = next(t for t in range(3) if bench.states()[t] == "interrupted")
    assert closed == 1
    assert not list(bench.run_folder.rglob("replay-*"))


def test_two_runs_on_one_directory_are_refused(bench: Any, looks: Any) -> None:
    study = bench.write(**SLOW_START)
    tuner = bench.start("tune", study, "--out", bench.run_folder)
    bench.await_phase("launching", 0)
    second = bench.run("resume", bench.run_folder)
    assert second.returncode == 2
    assert "is being run already" in second.stderr
    assert f"pid {tuner.pid}" in second.stderr
    files = [bench.run_folder / name for name in ("study.json", "study.yaml")]
    before = [path.read_bytes() for path in files]
    longer = bench.run("resume", bench.run_folder, "--trials", "9", "--budget", "8h")
    assert (longer.returncode, longer.stderr) == (2, second.stderr)
    assert [path.read_bytes() for path in files] == before
    third = bench.run("tune", study, "--out", bench.run_folder)
    assert third.returncode == 2
    assert "there is a study in" in third.stderr
    assert tuner.poll() is None
    tuner.send_signal(signal.SIGINT)
    tuner.send_signal(signal.SIGINT)
    assert looks.finish(tuner).returncode == 130


def test_second_ctrl_c_skips_the_polite_wait_but_not_the_removal(bench: Any, looks: Any) -> None:
    (bench.folder / "stubborn.sh").write_text(STUBBORN)
    engine = {"kind": "simulated", "command": ["bash", str(bench.folder / "stubborn.sh")]}
    tuner = bench.start("tune", bench.write(engine=engine), "--out", bench.run_folder)
    bench.await_phase("launching", 0)
    looks.until(lambda: looks.marked(bench.study_id()), "the server")
    time.sleep(0.3)  # until its trap is set
    asked = time.monotonic()
    tuner.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert tuner.poll() is None
    tuner.send_signal(signal.SIGINT)
    said = looks.finish(tuner)
    assert time.monotonic() - asked < POLITE_S
    assert said.returncode == 130
    assert "still removed" in said.stderr
    assert bench.states() == ["interrupted"]
    assert looks.marked(bench.study_id()) == []
