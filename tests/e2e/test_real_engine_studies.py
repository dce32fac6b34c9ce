"""Whole studies on a real vLLM and a real model: as a process, and in containers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.real_engine]

LAUNCH_S = 240.0
"""A launch of the real engine on two busy cores, at most."""


def given(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} is not set")
    return value


def study_of(bench: Any, engine: dict[str, Any], model: str, trials: int) -> Path:
    return bench.write(
        name="real",
        model=model,
        engine={
            "kind": "vllm",
            "args": {"max-model-len": 512, "enforce-eager": True},
            "env": {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
            **engine,
        },
        baseline={"max-num-seqs": 1, "enable-prefix-caching": "off"},
        space="vllm-cpu",
        workload={"path": "cpu-tiny", "window": "5s", "warmup": 2},
        constraints=["tpot_p95 <= 2s"],
        budget={"trials": trials},
    )


def asked(url: str, model: str, question: str) -> str:
    body = {"model": model, "prompt": question, "max_tokens": 4, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def test_study_by_processes_gives_a_script_whose_server_answers_sensibly(
    bench: Any, looks: Any
) -> None:
    """Three real launches, then the emitted script started as a user would."""
    model = given("AUTOTUNE_TEST_MODEL")
    program = f"{given('AUTOTUNE_TEST_VLLM')}/bin/vllm"
    study = study_of(bench, {"command": [program, "serve"]}, model, trials=2)
    said = bench.run("tune", study, "--out", bench.run_folder, timeout_s=3 * LAUNCH_S)
    assert said.returncode == 0, said.stderr
    assert bench.states() == ["measured", "measured"]
    assert looks.marked(bench.study_id()) == []
    script = bench.run_folder / "best" / "launch.sh"
    port = "18177"
    server = subprocess.Popen(
        ["bash", str(script)],
        env={**os.environ, "PORT": port},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        looks.until(lambda: healthy(url), "the emitted script's server", LAUNCH_S)
        assert "Paris" in asked(url, model, "The capital of France is")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def containers() -> list[str]:
    listed = subprocess.run(
        ["docker", "ps", "-aq", "--filter", "label=autotune.study"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return listed.stdout.split()


@pytest.mark.docker
def test_study_by_containers_survives_kill_and_interrupt_and_leaves_none(
    bench: Any, looks: Any
) -> None:
    """Killed in trial 1, resumed, interrupted in trial 2, resumed to the end."""
    if shutil.which("docker") is None:
        pytest.skip("no docker client")
    engine = {
        "launcher": "docker",
        "image": given("AUTOTUNE_TEST_IMAGE"),
        "command": ["vllm", "serve"],
        "mounts": [f"{given('AUTOTUNE_TEST_MODEL')}:/model"],
        "gpus": [],
        "shm_size": "1g",
    }
    study = study_of(bench, engine, "/model", trials=2)
    before = set(containers())
    tuner = bench.start("tune", study, "--out", bench.run_folder)
    looks.until((bench.run_folder / "events.jsonl").exists, "the study", 60)
    looks.until(lambda: '"trial": 1' in events(bench), "trial 1", LAUNCH_S)
    looks.until(lambda: set(containers()) - before, "its container", 60)
    tuner.kill()
    tuner.communicate()
    assert set(containers()) - before, "a killed tuner cannot have removed its container"

    again = bench.start("resume", bench.run_folder)
    looks.until(lambda: '"trial": 2' in events(bench), "trial 2", LAUNCH_S)
    again.send_signal(signal.SIGINT)
    assert looks.finish(again, 60).returncode == 130
    assert set(containers()) == before
    assert bench.states() == ["measured", "interrupted", "interrupted"]

    said = bench.run("resume", bench.run_folder, timeout_s=2 * LAUNCH_S)
    assert said.returncode == 0, said.stderr
    assert bench.states() == ["measured", "interrupted", "interrupted", "measured"]
    assert set(containers()) == before
    assert "docker" in (bench.run_folder / "best" / "launch.sh").read_text()


def events(bench: Any) -> str:
    return str((bench.run_folder / "events.jsonl").read_text())
