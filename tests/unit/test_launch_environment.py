"""A launch and its script see the same variables of those that shape an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from autotune.cli.handover import script_of
from autotune.clock import StopSignal, SystemClock
from autotune.engines.facts import engine_facts
from autotune.engines.plan import HOST, PORT, LaunchPlan
from autotune.launch.launcher import Ticket
from autotune.launch.process import ProcessLauncher

DUMP = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


def shaping(file: Path) -> dict[str, str]:
    facts = engine_facts("vllm")
    return {k: v for k, v in json.loads(file.read_text()).items() if facts.shapes_launch(k)}


def test_a_launch_sees_what_its_plan_says_and_so_does_its_script(tmp_path: Path) -> None:
    plan = LaunchPlan(
        engine="vllm", launcher="process", model="m",
        argv=(sys.executable, "-c", DUMP, str(tmp_path / "seen.json"), HOST, PORT),
        env={"VLLM_USE_V1": "1"}, secrets={"HF_TOKEN": "HF_TOKEN"}, gpus=("2",),
    )  # fmt: skip
    shell = {
        "PATH": os.environ["PATH"], "HF_TOKEN": "hf_abcdefghijklmnop",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "CUDA_VISIBLE_DEVICES": "7", "OMP_NUM_THREADS": "3",
    }  # fmt: skip
    launcher = ProcessLauncher(clock=SystemClock(), stop=StopSignal(), environ=shell)
    server = launcher.start(plan, Ticket(study_id="s", trial=0, directory=tmp_path / "trial"))
    end = time.monotonic() + 20
    while server.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    server.stop()
    launched = shaping(tmp_path / "seen.json")
    assert launched == {
        "VLLM_USE_V1": "1", "HF_TOKEN": "hf_abcdefghijklmnop", "CUDA_VISIBLE_DEVICES": "2",
    }  # fmt: skip
    script = tmp_path / "launch.sh"
    script.write_text(
        script_of(plan, study="s", model="m", number=0, date="2026-01-01", simulated=False)
    )
    own = {"PATH": os.environ["PATH"], "HF_TOKEN": "hf_abcdefghijklmnop"}
    subprocess.run(["bash", str(script)], env=own, check=True, timeout=20)
    assert shaping(tmp_path / "seen.json") == launched
