"""A night in which everything that can be killed is killed: nothing is lost, nothing counted twice,
nothing left running. A restart of the docker daemon is not among it: that would end the containers
of everybody else on the machine.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.e2e

SEED = 20260711
TRIALS = 30
KILLS = 12
RUNS = 40
"""More ends and resumes than this are no progress."""
SEQS = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128]


def write_study(bench: Any, trials: int) -> Path:
    """A study of short trials: half a second of traffic, no start-up to speak of."""
    rows = [{"t": round(i * 0.02, 3), "in": 600 + 10 * i, "out": 4} for i in range(24)]
    (bench.folder / "short.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = {"sim-profile": "quickstart", "sim-startup": 0.05, "sim-seed": 1}
    path: Path = bench.write(
        engine={"kind": "simulated", "args": args},
        space={
            "engine": "simulated",
            "knobs": {
                "max-num-seqs": {"type": "int", "values": SEQS},
                "max-num-batched-tokens": {"type": "int", "values": [1024, 2048, 3072, 4096]},
            },
        },
        workload={"path": "short.jsonl", "warmup": 1},
        objective="minimize ttft_p50",
        budget={"trials": trials},
        search={"seed": SEED, "repeats": 0, "sampler": "random"},
    )
    return path


def victims(tuner: int, kind: str) -> list[psutil.Process]:
    """The tuner itself, its servers, or the worker processes of its replay."""
    try:
        root = psutil.Process(tuner)
        if kind == "tuner":
            return [root]
        below = root.children(recursive=True)
        words = {process: process.cmdline() for process in below}
    except psutil.NoSuchProcess:
        return []
    servers = [p for p, line in words.items() if "autotune.simulator" in line]
    return servers if kind == "server" else [p for p in words if p not in servers]


def strike(dice: random.Random, tuner: int) -> str | None:
    """Kill one process of a kind drawn at random; what was killed, if there was any."""
    kind = dice.choice(["server", "worker", "tuner"])
    there = victims(tuner, kind)
    if not there:
        return None
    try:
        dice.choice(there).kill()
    except psutil.NoSuchProcess:
        return None
    return kind


def kills_so_far(bench: Any) -> int:
    """Kills are spread over the night: so many by now."""
    return min(KILLS, 2 + len(bench.states()) * KILLS // TRIALS)


def night(bench: Any, looks: Any, dice: random.Random) -> list[str]:
    """Tune, kill, resume, until the study ended by its plan. Returns what was killed."""
    killed: list[str] = []
    study = write_study(bench, TRIALS)
    words: tuple[Any, ...] = ("tune", study, "--out", bench.run_folder)
    for _ in range(RUNS):
        tuner = bench.start(*words, "--progress", "none")
        while tuner.poll() is None:
            until = time.monotonic() + dice.uniform(0.4, 3.0)
            while tuner.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            if len(killed) < kills_so_far(bench) and (kind := strike(dice, tuner.pid)) is not None:
                killed.append(kind)
        said = looks.finish(tuner)
        assert "Traceback" not in said.stderr
        assert said.returncode in (0, 3, 4, 5, -signal.SIGKILL), said.stderr
        if said.returncode in (0, 3):
            return killed
        if (bench.run_folder / "study.json").exists():
            words = ("resume", bench.run_folder)
    raise AssertionError(f"no end after {RUNS} runs: {bench.states()}")


def test_a_night_of_random_kills_ends_with_a_complete_directory(bench: Any, looks: Any) -> None:
    killed = night(bench, looks, random.Random(SEED))
    assert set(killed) == {"server", "worker", "tuner"}
    assert looks.marked(bench.study_id()) == []

    folders = sorted(path.name for path in (bench.run_folder / "trials").iterdir())
    assert folders == [f"{number:04d}" for number in range(len(folders))]
    trials = [bench.json(f"trials/{name}/outcome.json") for name in folders]
    assert [trial["number"] for trial in trials] == list(range(len(folders)))
    for name, trial in zip(folders, trials, strict=True):
        has_numbers = (bench.run_folder / "trials" / name / "measurement.json").exists()
        assert has_numbers or trial["state"] != "measured"

    counted = [t for t in trials if t["state"] != "interrupted" and t["role"] != "check"]
    # One that the machine broke is launched once more, also when it was the last one
    assert TRIALS <= len(counted) <= TRIALS + 1
    measured = [json.dumps(t["params"], sort_keys=True) for t in trials
                if t["state"] == "measured" and t["role"] != "check"]  # fmt: skip
    assert len(set(measured)) == len(measured) >= TRIALS - 2 * KILLS
    begun = [e["trial"] for e in events(bench) if e["kind"] == "trial_started"]
    assert sorted(begun) == sorted(set(begun))

    assert not list(bench.run_folder.rglob("replay-*"))
    assert (bench.run_folder / "report.html").is_file()
    shown = json.loads(bench.run("show", bench.run_folder, "--json").stdout)
    assert [t["number"] for t in shown["trials"]] == list(range(len(folders)))
    assert shown["unfinished"] == shown["problems"] == []


def events(bench: Any) -> list[Any]:
    lines = (bench.run_folder / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


@pytest.fixture
def small_disk(bench: Any) -> Iterator[Path]:
    """A disk of a few megabytes, mounted where the study will be."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = bench.folder / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "autotune-test", folder], check=False,
        capture_output=True,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip("this machine lets nobody mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_ends_the_run_cleanly_and_room_lets_it_go_on(
    bench: Any, looks: Any, small_disk: Path
) -> None:
    run = small_disk / "run"
    tuner = bench.start("tune", write_study(bench, 4), "--out", run)
    looks.until((run / "trials" / "0001.partial").exists, "trial 1")
    filler = small_disk / "filler"
    with filler.open("wb") as stream:
        try:
            while True:
                os.write(stream.fileno(), b"\0" * 4096)
        except OSError:
            pass  # full, as meant
    said = looks.finish(tuner)
    assert said.returncode == 4, said.stderr
    assert "no space left on device" in said.stderr.lower()
    assert "Traceback" not in said.stderr
    study_id = json.loads((run / "study.json").read_text())["study_id"]
    assert looks.marked(study_id) == []
    kept = sorted(run.glob("trials/[0-9][0-9][0-9][0-9]/outcome.json"))
    assert kept

    filler.unlink()
    said = bench.run("resume", run)
    assert said.returncode in (0, 3), said.stderr
    states = [
        json.loads(path.read_text())["state"] for path in sorted(run.glob("trials/*/outcome.json"))
    ]
    assert sum(state != "interrupted" for state in states) in (4, 5)
    assert not list(run.glob("trials/*.partial"))
    assert looks.marked(study_id) == []
