"""A trial behind real HTTP and the same in virtual time end alike.

Requests are large, so that what HTTP and timers add on a busy machine is small beside the engine's
own pace: waits must agree to 10 % or 60 ms, the time per token to 10 % or 3 ms, rates to 3 %.
Failures must have the same diagnosis.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import Clock, StopSignal, SystemClock, VirtualClock
from autotune.engines.catalog import engine_for
from autotune.engines.engine import Diagnosis, ExitInfo, LaunchTarget
from autotune.engines.plan import LaunchPlan
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import Measured
from autotune.space.candidate import Candidate
from autotune.space.study_space import open_study
from autotune.study.directory import StudyDirectory
from autotune.study.prepare import PreparedStudy, prepare
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.trial import TrialExecutor
from autotune.study.virtual_executor import VirtualExecutor
from autotune.study.virtual_machine import SimulatedMachine

TASK = TrialTask(
    number=0, role="baseline", candidate=Candidate({"max-num-batched-tokens": 1024})
)  # fmt: skip


def prepared(folder: Path, clock: Clock, stop: StopSignal) -> tuple[PreparedStudy, StudyDirectory]:
    rows: list[dict[str, Any]] = []
    for i in range(26):
        length = 4000 + 61 * i
        own = range(2000 + 50 * i, 2000 + 50 * i - (-length // 256) - 4)
        # Every other one begins like the others of its kind
        first = [1, 2, 3, 4] if i % 2 else [1000 + 50 * i + j for j in range(4)]
        rows.append({"t": 0.35 * i, "in": length, "out": 24, "blocks": [*first, *own]})
    folder.mkdir()
    trace = folder / "trace.jsonl"
    header = {"autotune_trace": 1, "block_size": 256}
    trace.write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
    content = {
        "name": "both",
        "model": "sim",
        "engine": {"kind": "simulated", "args": {"sim-noise": 0}},
        "baseline": {"max-num-batched-tokens": 1024},
        "space": {"engine": "simulated",
                  "knobs": {"max-num-batched-tokens": {"type": "int", "values": [512, 1024]}}},
        "workload": {"path": str(trace), "window": "9s"},
        "objective": "minimize ttft_p95",
        "budget": {"trials": 1},
        "search": {"repeats": 0},
    }  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(json.dumps(content))
    directory = StudyDirectory(folder / "run")
    directory.trials.mkdir(parents=True)
    return prepare(open_study(path), clock=clock, stop=stop), directory


def really(folder: Path) -> Measurement:
    clock, stop = SystemClock(), StopSignal()
    study, directory = prepared(folder, clock, stop)
    executor = TrialExecutor(
        replace(study, target=replace(study.target, gpus=())), directory,
        EventStream(clock, directory), clock=clock, stop=stop,
        render_script=lambda plan, number: "",
    )  # fmt: skip
    record, outcome = executor.run(TASK)
    assert isinstance(outcome, Measured), record.message
    return outcome.measurement


def virtually(folder: Path) -> Measurement:
    clock, stop = VirtualClock(), StopSignal()
    study, directory = prepared(folder, clock, stop)
    executor = VirtualExecutor(study, directory, SimulatedMachine(), clock=clock, stop=stop)
    executor.submit(TASK)
    finished = executor.wait()
    assert isinstance(finished.outcome, Measured), finished.record.message
    return finished.outcome.measurement


def test_a_trial_measures_the_same_behind_http_and_in_virtual_time(tmp_path: Path) -> None:
    real, virtual = really(tmp_path / "real"), virtually(tmp_path / "virtual")
    assert real.planned >= 20
    assert (real.planned, real.ok) == (virtual.planned, virtual.ok)
    assert real.metrics.keys() == virtual.metrics.keys()

    def close(key: str, rel: float, abs_: float = 0.0) -> None:
        assert real.metrics[key] == pytest.approx(virtual.metrics[key], rel=rel, abs=abs_), key

    for key in ("ttft_p50_s", "ttft_p95_s", "e2e_p50_s"):
        close(key, 0.10, 0.06)
    close("tpot_p50_s", 0.10, 0.003)
    close("output_throughput_tps", 0.03)
    close("prefix_hit_rate", 0.0, 0.02)
    known = {key for key, value in virtual.metrics.items() if value is not None}
    assert known == {key for key, value in real.metrics.items() if value is not None}


def in_a_process(plan: LaunchPlan) -> tuple[list[str], ExitInfo]:
    done = subprocess.run(
        [sys.executable, *plan.argv_for("127.0.0.1", 0)[1:], "--sim-startup", "0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return (done.stdout + done.stderr).splitlines(), ExitInfo(code=done.returncode)


def in_virtual_time(plan: LaunchPlan) -> tuple[list[str], ExitInfo]:
    launch = SimulatedMachine().launch(plan, 0)
    assert launch.engine is None
    return launch.log.splitlines(), ExitInfo(code=launch.exit_code)


@pytest.mark.parametrize(
    "params",
    [
        {"max-num-batched-tokens": 64, "max-num-seqs": 128},
        {"gpu-memory-utilization": 0.99},
        {"gpu-memory-utilization": 0.8},
        {"kv-cache-dtype": "nvfp4"},
        {"max-num-batched-tokens": "many"},
        {"no-such-flag": 1},
    ],
    ids=lambda params: " ".join(f"{k}={v}" for k, v in params.items()),
)
def test_what_does_not_start_is_diagnosed_alike(params: dict[str, Any]) -> None:
    engine = engine_for("simulated")
    target = LaunchTarget(model="sim", launcher="process")
    plan = engine.plan(Candidate(params), target)

    def found(start: Callable[[LaunchPlan], tuple[list[str], ExitInfo]]) -> Diagnosis:
        return engine.diagnose(*start(plan), None)

    real, virtual = found(in_a_process), found(in_virtual_time)
    assert (real.fault, real.phase, real.reason) == (virtual.fault, virtual.phase, virtual.reason)
    assert (real.remedy, real.facts) == (virtual.remedy, virtual.facts)
    assert real.fault in ("candidate", "study")
