"""Whole studies on a fake engine that behaves as a scenario says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.cli.handover import finish, script_of
from autotune.clock import StopSignal, SystemClock
from autotune.engines.plan import LaunchPlan
from autotune.report.view import StudyView, load_view
from autotune.space.study_space import open_study
from autotune.study.directory import StudyDirectory
from autotune.study.events import Event
from autotune.study.prepare import prepare
from autotune.study.record import TrialRecord
from autotune.study.run import run_study
from autotune.study.runner import StudyEnd

FAKE = Path(__file__).parents[2] / "doubles" / "fake_engine.py"
SEQS = {"max-num-seqs": {"type": "int", "values": [8, 64]}}


def script(plan: LaunchPlan, number: int) -> str:
    return script_of(plan, study="case", model="m", number=number, date="", simulated=False)


@dataclass
class Play:
    """A folder, a scenario, a study: how it ended and what it left."""

    folder: Path

    def run(self, scenario: dict[str, Any], **changes: Any) -> StudyEnd:
        """Run a study on the scenario to its end. `changes` replace keys of the study file; those
        of `engine` are added to it.
        """
        file = self.folder / "scenario.json"
        file.write_text(json.dumps(scenario))
        rows = [{"t": round(i * 0.015, 3), "in": 2000 + 10 * i, "out": 4} for i in range(24)]
        (self.folder / "tiny.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        content = {
            "name": "case",
            "model": "fake/model",
            "baseline": {"max-num-seqs": 8},
            "space": {"engine": "vllm", "knobs": SEQS},
            "workload": {"path": str(self.folder / "tiny.jsonl"), "warmup": 2},
            "objective": "minimize ttft_p95",
            "constraints": ["success_rate >= 0.5"],
            "budget": {"trials": 3},
            "search": {"seed": 3, "repeats": 0, "sampler": "random"},
            **changes,
            "engine": {
                "kind": "vllm",
                "command": [sys.executable, str(FAKE), str(file)],
                "startup_timeout": 15,
                **changes.get("engine", {}),
            },
        }
        # So short a replay may end early by chance; what is looked at here needs them whole
        content["search"] = {"early_stop": "off", **content["search"]}
        path = self.folder / "study.yaml"
        path.write_text(json.dumps(content))
        clock, stop = SystemClock(), StopSignal()
        study = prepare(open_study(path), clock=clock, stop=stop)
        self.directory = StudyDirectory(self.folder / "run")
        self.directory.path.mkdir()
        self.study_id = study.study_id
        self.heard: list[Event] = []
        end = run_study(
            study, self.directory, clock=clock, stop=stop, observers=[self.heard.append],
            render_script=script, fresh=True,
        )  # fmt: skip
        assert self.left_behind() == []
        assert self.directory.partial_trials() == []
        finish(self.directory.path)
        return end

    @property
    def records(self) -> list[TrialRecord]:
        return self.directory.records()

    @property
    def last(self) -> TrialRecord:
        return self.records[-1]

    @property
    def view(self) -> StudyView:
        return load_view(self.directory.path)

    @property
    def page(self) -> str:
        return (self.directory.path / "report.html").read_text()

    @property
    def launches(self) -> int:
        return int((self.folder / "scenario.json.count").read_text())

    @property
    def notes(self) -> str:
        return "\n".join(str(e.data["message"]) for e in self.heard if e.kind == "note")

    def left_behind(self) -> list[int]:
        """Processes of the study that still run."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("AUTOTUNE_STUDY") == self.study_id
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process of the same words, which has to outlive every study."""
    words = [sys.executable, "-c", "import time; time.sleep(600)", "vllm", "serve", str(FAKE)]
    with subprocess.Popen(words) as process:
        yield process
        alive = process.poll() is None
        process.kill()
    assert alive
