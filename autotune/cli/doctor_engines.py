"""Checks of what engines need: Docker, GPUs, the engine itself, and nothing left over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import which
from typing import Any

from autotune.cli.doctor_machine import GIB, Finding
from autotune.engines.catalog import engine_for, is_simulated, probe_version
from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import engine_facts
from autotune.launch.gpus import Gpu, holders, list_gpus, nvml_problem
from autotune.launch.leftovers import Leftover

BUSY_GIB = 1.0
_SHOWN = 8


def docker_daemon(*, has_gpu: bool, connect: Callable[[], Any] | None = None) -> list[Finding]:
    """Whether the daemon answers us, and can give GPUs to containers where there are any."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = _connect() if connect is None else connect()
        version, info = client.version()["Version"], client.info()
        client.close()
    except (DockerException, RequestException, OSError) as error:
        return [_no_docker(error)]
    found = [Finding(name="docker", state="ok", text=f"engine {version}")]
    if has_gpu:
        found.append(_gpu_runtime(info))
    return found


def _connect() -> Any:
    import docker

    return docker.from_env(timeout=5)


def _no_docker(error: Exception) -> Finding:
    text = str(error)
    if "Permission denied" in text or "PermissionError" in text:
        return Finding(
            name="docker", state="note", text="its socket may not be used by you",
            hint="`sudo usermod -aG docker $USER`, then log in anew; or use launcher process",
        )  # fmt: skip
    return Finding(
        name="docker", state="note", text=f"no daemon answers ({type(error).__name__})",
        hint="`systemctl start docker`, or set DOCKER_HOST; launcher process needs no Docker",
    )  # fmt: skip


def _gpu_runtime(info: dict[str, Any]) -> Finding:
    runtimes = info.get("Runtimes") or {}
    devices = info.get("DiscoveredDevices") or []
    by_cdi = any("nvidia.com/gpu" in str(device) for device in devices)
    if "nvidia" in runtimes or by_cdi:
        return Finding(name="docker gpu", state="ok",
                       text="NVIDIA runtime" if "nvidia" in runtimes else "NVIDIA devices by CDI"
                       )  # fmt: skip
    return Finding(
        name="docker gpu", state="note", text="no NVIDIA runtime: containers get no GPU",
        hint="`nvidia-ctk runtime configure --runtime=docker`, then `systemctl restart docker`",
    )  # fmt: skip


def graphics(
    gpus: Sequence[Gpu] | None = None, held_by: Callable[[str], Sequence[str]] = holders
) -> list[Finding]:
    """Each GPU with its memory in use and by whom; else why there is none."""
    found = list_gpus() if gpus is None else gpus
    if not found:
        return [_no_gpu()]
    findings = []
    for gpu in found:
        used = gpu.memory_used / GIB
        text = (
            f"{gpu.name}, {gpu.memory_usable / GIB:.0f} GiB ({used:.1f} in use), "
            f"driver {gpu.driver}"
        )
        if used <= BUSY_GIB:
            findings.append(Finding(name=f"gpu {gpu.index}", state="ok", text=text))
            continue
        by = ", ".join(held_by(gpu.uuid)) or "no process that the driver names"
        findings.append(
            Finding(
                name=f"gpu {gpu.index}",
                state="note",
                text=f"{text}, held by {by}",
                hint="`nvidia-smi`; end what holds it, or name other GPUs in `engine: gpus:`",
            )
        )
    return findings


def _no_gpu() -> Finding:
    problem = nvml_problem()
    driver = Path("/proc/driver/nvidia/version").exists() or which("nvidia-smi") is not None
    if problem is not None and driver:
        return Finding(
            name="gpu", state="bad", text=f"there is a driver, but it does not answer: {problem}",
            hint="`nvidia-smi` says more; after a driver update the machine needs a restart",
        )  # fmt: skip
    return Finding(
        name="gpu", state="note", text=f"none seen ({problem or 'the driver lists none'})",
        hint="`autotune tune examples/quickstart.yaml` needs none, nor does an engine's CPU build",
    )  # fmt: skip


def engine(kind: str, command: Sequence[str] | None) -> Finding:
    """The engine that launcher process would start, and its version. Raises InputError for a kind
    that there is not.
    """
    engine_for(kind)
    if is_simulated(kind):
        return Finding(name="engine", state="ok", text=f"{kind}: part of autotune")
    words = tuple(command or engine_facts(kind).command)
    if not words:
        return Finding(name="engine", state="note", text=f"kind {kind} has no command of its own",
                       hint=f"`autotune doctor --engine {kind} --command PROGRAM`")  # fmt: skip
    program = which(words[0])
    if program is None:
        return Finding(
            name="engine", state="bad", text=f"program not found: {words[0]}",
            hint=f"`autotune doctor --engine {kind} --command /path/to/{Path(words[0]).name}`; "
            "in a study it is `engine: command:`",
        )  # fmt: skip
    version = probe_version(LaunchTarget(model="", launcher="process", command=words), kind)
    if version is None:
        return Finding(name="engine", state="note", text=f"{program} does not tell its version",
                       hint=f"`{program} --version`")  # fmt: skip
    return Finding(name="engine", state="ok", text=f"{kind} {version}, {program}")


def leftovers(processes: Sequence[Leftover], containers: Sequence[Leftover]) -> list[Finding]:
    """What killed runs left, with the command that ends it."""
    if not processes and not containers:
        return [Finding(name="leftovers", state="ok", text="none of earlier studies")]
    found = []
    for kind, items, command in (
        ("process", processes, "kill"),
        ("container", containers, "docker rm -f"),
    ):
        if not items:
            continue
        named = "; ".join(f"{item.name} ({item.what})" for item in items[:_SHOWN])
        more = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
        ending = f"`{command} {' '.join(item.name for item in items)}`"
        hint = f"{ending}, or `autotune resume DIR` of that study ends them and goes on"
        if kind == "container":
            hint = f"unless that study is running now: {hint}"
        found.append(
            Finding(name="leftovers", state="note", text=f"{kind} {named}{more}", hint=hint)
        )
    return found
