"""Tiny studies through the command line: fifteen requests in two seconds, a few trials.

The prompts are long enough to make answers slow: the client may then be late by a tenth of that
(`measure/validity.py`), which a busy machine needs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0


def until(true: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something, for a bounded time."""
    end = time.monotonic() + patience_s
    while not (found := true()):
        assert time.monotonic() < end, f"{what}: not within {patience_s} s"
        time.sleep(0.02)
    return found


def marked(study_id: str) -> list[int]:
    """Processes that a study started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                block = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"AUTOTUNE_STUDY={study_id}".encode() in block.split(b"\0") and state != "Z":
                found.append(int(entry.name))
    return found


@dataclass
class Bench:
    """A folder to work in, the command line as a subprocess, and looks at what it left."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    said: subprocess.CompletedProcess[str] | None = None

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def write(self, **changes: Any) -> Path:
        """Write the workload and a study file; `changes` replace top-level keys, None removes."""
        rows = [{"t": round(i * 0.08, 3), "in": 1000 + 10 * i, "out": 8} for i in range(15)]
        (self.folder / "tiny.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        args = {"sim-profile": "quickstart", "sim-startup": 0.3, "sim-seed": 1}
        study = {
            "name": "tiny",
            "model": "sim-model",
            "engine": {"kind": "simulated", "args": args},
            "baseline": {"max-num-seqs": 8},
            "space": {
                "engine": "simulated",
                "knobs": {
                    "max-num-seqs": {"type": "int", "values": [8, 16, 32, 64]},
                    "max-num-batched-tokens": {"type": "int", "values": [1024, 2048]},
                },
            },
            "workload": {"path": "tiny.jsonl", "warmup": 2},
            "objective": "minimize ttft_p95",
            "constraints": ["success_rate >= 0.5"],
            "budget": {"trials": 2},
            "search": {"seed": 7, "repeats": 0},
            **changes,
        }
        # So short a replay may end early by chance; what is looked at here needs them whole
        study["search"] = {"early_stop": "off", **study["search"]}
        path = self.folder / "study.yaml"
        path.write_text(json.dumps({k: v for k, v in study.items() if v is not None}))
        return path

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """Start the command line in the bench's folder."""
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune", *map(str, words)],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *words: str | Path, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        return finish(self.start(*words), timeout_s)

    def json(self, name: str) -> Any:
        """A strict JSON file of the study directory."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{name} holds {word}")

        return json.loads((self.run_folder / name).read_text(), parse_constant=refuse)

    def study_id(self) -> str:
        until((self.run_folder / "study.json").exists, "study.json")
        return str(self.json("study.json")["study_id"])

    def await_phase(self, phase: str, trial: int) -> None:
        """Wait until the event log says that a trial is in a phase."""

        def reached() -> bool:
            path = self.run_folder / "events.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            events = [json.loads(line) for line in lines if line.endswith("}")]
            return any(e.get("phase") == phase and e.get("trial") == trial for e in events)

        until(reached, f"trial {trial} {phase}")

    def outcomes(self) -> dict[str, bytes]:
        """Every finished trial's files, byte for byte."""
        return {
            str(path.relative_to(self.run_folder)): path.read_bytes()
            for path in sorted(self.run_folder.glob("trials/[0-9]???/*"))
            if path.is_file()
        }

    def states(self) -> list[str]:
        return [
            json.loads(path.read_text())["state"]
            for path in sorted(self.run_folder.glob("trials/[0-9]???/outcome.json"))
        ]


def finish(
    process: subprocess.Popen[str], timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for process in bench.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One finished study with a confirmation, and what its command said."""
    for _ in range(3):  # on a machine that is busy for seconds the baseline has no verdict
        bench = Bench(tmp_path_factory.mktemp("done"))
        study = bench.write(budget={"trials": 3}, search={"seed": 7, "repeats": 1})
        bench.said = bench.run("tune", study, "--out", bench.run_folder)
        if bench.said.returncode != 5:
            break
    return bench


@pytest.fixture(scope="session")
def bench_in() -> Callable[[Path], Bench]:
    """Makes a bench in a folder, for studies that several tests look at."""
    return Bench


@pytest.fixture(scope="session")
def containers(host_image: dict[str, Any]) -> dict[str, Any]:
    """What `engine:` of a study takes to run the simulated engine in containers."""
    return {
        "launcher": "docker",
        "image": host_image["image"],
        "command": [host_image["python"], "-m", "autotune.simulator", "serve"],
        "gpus": [],
        "mounts": [f"{mount['source']}:{mount['target']}" for mount in host_image["mounts"]],
    }


@pytest.fixture
def looks() -> Any:
    """The looks and waits of this module, for tests."""

    class Looks:
        until = staticmethod(until)
        marked = staticmethod(marked)
        finish = staticmethod(finish)

    return Looks
