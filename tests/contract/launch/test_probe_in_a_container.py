"""An image is asked for its flags in a container that leaves nothing behind."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import engine_facts
from autotune.engines.plan import Mount
from autotune.launch.probe import LABEL_PROBE, read_help

FAKE = Path(__file__).parents[2] / "doubles" / "fake_server.py"
FACTS = replace(engine_facts("vllm"), help=(("--help",),), help_proof=("port", "host"))


@pytest.fixture
def target(host_image: dict[str, Any]) -> LaunchTarget:
    return LaunchTarget(
        model="m", launcher="docker", image=host_image["image"],
        mounts=tuple(Mount(**mount) for mount in host_image["mounts"]),
        command=(sys.executable, str(FAKE)),
    )  # fmt: skip


def left() -> list[str]:
    client = docker.from_env()
    try:
        found = client.api.containers(all=True, filters={"label": LABEL_PROBE})
        return [entry["Id"] for entry in found]
    finally:
        client.close()


def test_an_image_is_asked_once_by_its_id(target: LaunchTarget, tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    reading = read_help(target, FACTS, None, environ=environ)
    assert reading is not None
    assert reading.note is None
    assert reading.help is not None
    assert reading.help.find("port") is not None
    assert "of the image autotune-test-host:1 (sha256:" in reading.where
    assert len(list(tmp_path.rglob("*.json"))) == 1
    assert read_help(target, FACTS, None, environ=environ) == reading
    assert left() == []


@pytest.mark.parametrize(
    ("command", "image", "words"),
    [
        (("/no/such/program",), None, "ended with code 127"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), None, "no answer within 1 s"),
        (None, "no-such-image:1", "was not asked"),
    ],
)
def test_an_image_that_does_not_tell_is_a_note(
    target: LaunchTarget, tmp_path: Path,
    command: tuple[str, ...] | None, image: str | None, words: str,
) -> None:  # fmt: skip
    asked = replace(target, command=command or target.command, image=image or target.image)
    reading = read_help(asked, FACTS, None, environ={"XDG_CACHE_HOME": str(tmp_path)}, timeout_s=1)
    assert reading is not None
    assert reading.help is None
    assert words in (reading.note or "")
    assert left() == []
