"""Writes `best/`: the whole hand-over of a study."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from autotune.deploy import bash, compose, docker_run, kubernetes, manifest, readme, systemd
from autotune.deploy.facts import DeployFacts
from autotune.deploy.words import is_container
from autotune.engines.plan import LaunchPlan

Renderer = Callable[[LaunchPlan, DeployFacts], str]

_ALWAYS: dict[str, Renderer] = {"launch.sh": bash.render, "autotune.service": systemd.render}
_CONTAINER: dict[str, Renderer] = {
    "docker-run.sh": docker_run.render,
    "compose.yaml": compose.render,
    "k8s.yaml": kubernetes.render,
}
_ORDER = (
    "launch.sh", "docker-run.sh", "compose.yaml", "k8s.yaml", "autotune.service", "rollback.sh",
    "manifest.json", "README.md",
)  # fmt: skip
_NO_IMAGE = "the study launched the engine as a process, so no container image was measured"
_ATTACHED = "the study measured a server that it did not start"


def write_hand_over(
    directory: Path,
    plan: LaunchPlan,
    baseline_plan: LaunchPlan | None,
    facts: DeployFacts,
    baseline_facts: DeployFacts | None,
) -> list[Path]:
    """Write the files that apply to this plan; returns their paths in a fixed order.

    Files of an earlier hand-over that no longer apply are removed; others are left alone. Raises
    InputError for a variable name that no script can export, OSError as the file system does.
    """
    texts, left_out = _render(plan, facts)
    if baseline_plan is not None and baseline_facts is not None and "launch.sh" in texts:
        texts["rollback.sh"] = bash.render(baseline_plan, baseline_facts)
    else:
        left_out["rollback.sh"] = "there is no baseline launch to go back to"
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    texts["manifest.json"] = manifest.render(plan, facts, files=hashes)
    texts["README.md"] = readme.render(plan, facts, files=tuple(texts), left_out=left_out)
    directory.mkdir(parents=True, exist_ok=True)
    for name in left_out:
        (directory / name).unlink(missing_ok=True)
    names = [name for name in _ORDER if name in texts]
    for name in names:
        _write(directory / name, texts[name])
    return [directory / name for name in names]


def _render(plan: LaunchPlan, facts: DeployFacts) -> tuple[dict[str, str], dict[str, str]]:
    """(name -> text, name -> why it is left out)."""
    if plan.launcher == "attach" or not plan.argv:
        return {}, dict.fromkeys((*_ALWAYS, *_CONTAINER), _ATTACHED)
    texts = {name: render(plan, facts) for name, render in _ALWAYS.items()}
    if not is_container(plan):
        return texts, dict.fromkeys(_CONTAINER, _NO_IMAGE)
    return texts | {name: render(plan, facts) for name, render in _CONTAINER.items()}, {}


def _write(path: Path, text: str) -> None:
    """Write in one step: a reader sees the old or the new file, never a part."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.chmod(0o755 if path.suffix == ".sh" else 0o644)
    scratch.replace(path)
