"""`doctor`: is this machine fit for a study? Each finding with what to do."""

from __future__ import annotations

import os
import resource
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.cli.console import result, result_json
from autotune.launch.gpus import list_gpus

GIB = 1024**3
LEAST_DISK_GIB = 20.0
LEAST_FILES = 4096
LEAST_PORTS = 10_000
LEAST_CORES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check. `state`: ok, note (a study can run, but know this), or bad."""

    name: str
    state: Literal["ok", "note", "bad"]
    text: str
    hint: str | None = None


def doctor(*, as_json: bool) -> int:
    """Print all findings. Returns 0, or 4 if any is bad."""
    findings = [_docker(), *_gpus(), _cores(), _disk(), _files(), _ports(), _governor()]
    if as_json:
        result_json(
            {
                "findings": [
                    {"name": f.name, "state": f.state, "text": f.text, "hint": f.hint}
                    for f in findings
                ]
            }
        )
    else:
        lines = []
        for finding in findings:
            lines.append(f"{finding.state:<5} {finding.name:<9} {finding.text}")
            if finding.hint:
                lines.append(f"{'':<16}{finding.hint}")
        result("\n".join(lines))
    return 4 if any(finding.state == "bad" for finding in findings) else 0


def _docker() -> Finding:
    import docker
    from docker.errors import DockerException

    try:
        with closing(docker.from_env(timeout=5)) as client:
            version = client.version()["Version"]
    except (DockerException, OSError) as error:  # what requests raises is an OSError
        return Finding(
            name="docker", state="note", text=f"no engine answers ({type(error).__name__})",
            hint="only launcher docker needs one; start it, or set DOCKER_HOST",
        )  # fmt: skip
    return Finding(name="docker", state="ok", text=f"engine {version}")


def _gpus() -> list[Finding]:
    gpus = list_gpus()
    if not gpus:
        return [
            Finding(
                name="gpu", state="note", text="none seen (no NVIDIA driver, or no GPU)",
                hint="engine simulated, or a CPU build of the engine, runs without",
            )
        ]  # fmt: skip
    findings = []
    for gpu in gpus:
        used = gpu.memory_used / GIB
        busy = used > 1.0
        findings.append(
            Finding(
                name=f"gpu {gpu.index}",
                state="note" if busy else "ok",
                text=f"{gpu.name}, {gpu.memory_total / GIB:.0f} GiB ({used:.1f} in use), "
                f"driver {gpu.driver}",
                hint="something else holds its memory: stop it before a study" if busy else None,
            )
        )
    return findings


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    text = f"{count} usable, load {load:.1f}"
    if load > count / 2:
        return Finding(name="cores", state="note", text=text,
                       hint="others are busy here: latencies will show them")  # fmt: skip
    if count < LEAST_CORES:
        return Finding(name="cores", state="note", text=text,
                       hint="client and engine share cores; the report says so")  # fmt: skip
    return Finding(name="cores", state="ok", text=text)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / GIB
    text = f"{free:.0f} GiB free here"
    if free < LEAST_DISK_GIB:
        return Finding(name="disk", state="note", text=text,
                       hint="model weights and compile caches need room")  # fmt: skip
    return Finding(name="disk", state="ok", text=text)


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < LEAST_FILES:
        return Finding(name="files", state="note", text=f"limit {soft} open files (hard {hard})",
                       hint=f"`ulimit -n {LEAST_FILES}`: every stream is one")  # fmt: skip
    return Finding(name="files", state="ok", text=f"limit {soft} open files")


def _ports() -> Finding:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8")
        low, high = (int(word) for word in text.split())
    except (OSError, ValueError):
        return Finding(name="ports", state="note", text="range of local ports unknown")
    if high - low < LEAST_PORTS:
        return Finding(name="ports", state="note", text=f"only {high - low} local ports",
                       hint="widen net.ipv4.ip_local_port_range for many streams")  # fmt: skip
    return Finding(name="ports", state="ok", text=f"{high - low:,} local ports")


def _governor() -> Finding:
    try:
        path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
        governor = path.read_text(encoding="utf-8").strip()
    except OSError:
        return Finding(name="cpu clock", state="ok", text="no frequency governor to watch")
    if governor == "powersave":
        return Finding(name="cpu clock", state="note", text="governor powersave",
                       hint="`cpupower frequency-set -g performance` steadies it")  # fmt: skip
    return Finding(name="cpu clock", state="ok", text=f"governor {governor}")
