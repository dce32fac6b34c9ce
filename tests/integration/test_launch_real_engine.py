"""A real vLLM (CPU build) through both launchers; tests/real_engine/README.md tells the set-up."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.engines.plan import HOST, PORT, LaunchPlan, Mount
from autotune.launch.catalog import launcher_for
from autotune.launch.launcher import Ticket
from autotune.launch.lineage import is_running
from autotune.launch.pid_record import read_record
from autotune.launch.readiness import NotReady, wait_ready
from autotune.launch.server_log import log_tail

pytestmark = pytest.mark.real_engine


def given(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} is not set")
    return value


def vllm_plan(launcher: str, *words: str, model: str, **fields: object) -> LaunchPlan:
    program = "vllm" if launcher == "docker" else f"{given('AUTOTUNE_TEST_VLLM')}/bin/vllm"
    more = ("--max-model-len", "2048", "--enforce-eager", *words)
    return LaunchPlan(
        engine="vllm",
        launcher=launcher,
        model=model,
        argv=(program, "serve", model, "--host", HOST, "--port", PORT, *more),
        env={"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
        **fields,
    )


def measure(plan: LaunchPlan, folder: Path) -> tuple[str, list[str]]:
    """Start, ask a question, stop; returns the answer and the log. Nothing of it is left."""
    clock, stop = SystemClock(), StopSignal()
    launcher = launcher_for(plan.launcher, clock=clock, stop=stop)
    launcher.check(plan)
    server = launcher.start(plan, Ticket(study_id="real-engine", trial=0, directory=folder))
    try:
        wait_ready(server, timeout_s=300, clock=clock, stop=stop)
        body = {"model": plan.model, "prompt": "The capital of France is", "max_tokens": 2}
        answer = httpx.post(
            f"{server.url}/v1/completions",
            json={**body, "temperature": 0},
            trust_env=False,
            timeout=60,
        )
        text = answer.json()["choices"][0]["text"]
        record = read_record(folder / "server.pid.json")
    finally:
        server.stop()
    if plan.launcher == "process":
        assert record is not None
        assert len(record.family) >= 3  # API server, engine, worker
        assert not any(is_running(process) for process in record.family)
    assert launcher.sweep("real-engine", folder) == []
    return text, log_tail(server.log_path, 1000)


def test_vllm_as_a_process_answers_sensibly_and_leaves_no_process(tmp_path: Path) -> None:
    text, log = measure(vllm_plan("process", model=given("AUTOTUNE_TEST_MODEL")), tmp_path)
    assert "Paris" in text
    assert any("Application startup complete" in line for line in log)


def test_vllm_with_an_unknown_flag_exits_early_with_argparses_code(tmp_path: Path) -> None:
    plan = vllm_plan("process", "--no-such-flag", "1", model=given("AUTOTUNE_TEST_MODEL"))
    with pytest.raises(NotReady) as caught:
        measure(plan, tmp_path)
    assert caught.value.kind == "exited"
    assert caught.value.exit_info is not None
    assert caught.value.exit_info.code == 2
    assert any("unrecognized arguments" in line for line in log_tail(tmp_path / "server.log"))


@pytest.mark.docker
def test_vllm_as_a_container_answers_sensibly(tmp_path: Path) -> None:
    plan = vllm_plan(
        "docker",
        model="/model",
        image=given("AUTOTUNE_TEST_IMAGE"),
        gpus=(),
        shm_size="1g",
        mounts=(Mount(source=given("AUTOTUNE_TEST_MODEL"), target="/model"),),
    )
    text, log = measure(plan, tmp_path)
    assert "Paris" in text
    assert any("Application startup complete" in line for line in log)
