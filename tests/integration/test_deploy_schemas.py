"""Container files, read by the tools that will read them: Kubernetes' schemas, Compose itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from autotune.deploy.facts import DeployFacts
from autotune.deploy.formats import FORMATS
from autotune.engines.plan import HOST, PORT, LaunchPlan, Mount

FACTS = DeployFacts(
    study="night run", trial=7, verdict="v", metrics=(), engine="vllm", model="acme/tiny 14b",
    date="2026-11-29", tool_version="0", startup_seconds=88.0, host_memory_peak_bytes=3.2e9,
)  # fmt: skip
PLAN = LaunchPlan(
    engine="vllm",
    launcher="docker",
    argv=("vllm", "serve", "acme/tiny 14b", "--host", HOST, "--port", PORT,
          '{"method": "ngram", "n": 4}', "it's-tuned", "$HOME $(id) `id`", "", "é 🙂 %h"),
    model="acme/tiny 14b",
    env={"PLAIN": "a $b", "EMPTY": ""},
    secrets={"HF_TOKEN": "OUR_TOKEN"},
    image="registry.example:5000/vllm/vllm-openai:v0.26.0",
    gpus=("0", "1"),
    shm_size="16g",
    mounts=(
        Mount(source="hf-cache", target="/root/.cache", read_only=False),
        Mount(source="/srv/models", target="/models"),
    ),
)  # fmt: skip
PLANS = {
    "full": PLAN,
    "host ipc": replace(PLAN, ipc_host=True, shm_size=None),
    "no gpu": replace(PLAN, gpus=(), mounts=(), secrets={}, env={}),
    "all gpus": replace(PLAN, gpus=None),
}


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> LaunchPlan:
    return PLANS[request.param]


def test_kubernetes_knows_every_field(plan: LaunchPlan) -> None:
    kinds = []
    for manifest in yaml.safe_load_all(FORMATS["k8s"](plan, FACTS)):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
        kinds.append(manifest["kind"])
    assert kinds == ["Deployment", "Service"]


def compose_command() -> list[str] | None:
    """The Compose of this machine: docker's plugin, or the program of its own."""
    if shutil.which("docker") is not None:
        plugin = ["docker", "compose"]
        if subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0:
            return plugin
    return ["docker-compose"] if shutil.which("docker-compose") is not None else None


def compose_file(plan: LaunchPlan, folder: Path) -> Path:
    """The file as this machine's Compose can read it: version 1 does not know a project's name."""
    text = FORMATS["compose"](plan, FACTS)
    if compose_command() == ["docker-compose"]:
        text = re.sub(r"(?m)^name: .*\n", "", text)
    file = folder / "compose.yaml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.skipif(compose_command() is None, reason="no Compose on this machine")
def test_compose_reads_the_file_as_the_measured_container(plan: LaunchPlan, tmp_path: Path) -> None:
    file = compose_file(plan, tmp_path)
    command = compose_command()
    assert command is not None
    read = subprocess.run(
        [*command, "-f", file, "config"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OUR_TOKEN": "from outside"},
    )  # fmt: skip
    assert read.returncode == 0, read.stderr
    service: dict[str, Any] = yaml.safe_load(read.stdout)["services"]["engine"]
    # What it prints is a Compose file again, with its dollars doubled
    words = [word.replace("$$", "$") for word in [*service["entrypoint"], *service["command"]]]
    assert tuple(words) == plan.argv_for("0.0.0.0", 8000)
    given = {k: str(v).replace("$$", "$") for k, v in service.get("environment", {}).items()}
    assert given == {**plan.env, **({"HF_TOKEN": "from outside"} if plan.secrets else {})}
    targets = [v["target"] if isinstance(v, dict) else v for v in service.get("volumes", [])]
    assert len(targets) == len(plan.mounts)


@pytest.mark.skipif(compose_command() is None, reason="no Compose on this machine")
def test_compose_refuses_to_start_without_the_secret(tmp_path: Path) -> None:
    file = compose_file(PLAN, tmp_path)
    command = compose_command()
    assert command is not None
    read = subprocess.run(
        [*command, "-f", file, "config"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )  # fmt: skip
    assert read.returncode != 0
    assert "set OUR_TOKEN" in read.stderr
