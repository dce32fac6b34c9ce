"""Checks of the machine itself: cores, disk, caches, limits, shared memory, ports, clock."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GIB = 1024**3
LEAST_DISK_GIB = 20.0
LEAST_FILES = 4096
LEAST_PORTS = 10_000
LEAST_CORES = 4
LEAST_SHM_GIB = 1.0
USUAL_PORT = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check. `state`: ok, note (a study can run, but know this), or bad. `hint`: what to type
    next, or what it means for a study.
    """

    name: str
    state: Literal["ok", "note", "bad"]
    text: str
    hint: str | None = None


def cores(*, load: Callable[[], tuple[float, float, float]] = os.getloadavg) -> Finding:
    """Cores for the client and, without a GPU, for the engine."""
    count = len(os.sched_getaffinity(0))
    busy = load()[0]
    text = f"{count} usable, load {busy:.1f}"
    if busy > count / 2:
        hint = "`top` shows who is busy here: latencies will show it too"
    elif count < LEAST_CORES:
        hint = "client and engine share cores; the report says so"
    else:
        return Finding(name="cores", state="ok", text=text)
    return Finding(name="cores", state="note", text=text, hint=hint)


def disk(folder: Path) -> Finding:
    """Room and right to write where studies are written."""
    free = shutil.disk_usage(folder).free / GIB
    text = f"{free:.0f} GiB free in {folder}"
    if not os.access(folder, os.W_OK):
        return Finding(name="disk", state="bad", text=f"{folder} cannot be written",
                       hint="`cd` to a folder of yours, or `autotune tune --out DIR`")  # fmt: skip
    if free < LEAST_DISK_GIB:
        return Finding(name="disk", state="note", text=text,
                       hint="`df -h`; model weights and compile caches need room")  # fmt: skip
    return Finding(name="disk", state="ok", text=text)


def caches(environ: Mapping[str, str]) -> list[Finding]:
    """The model cache and our own: where they are, their size, whether they can be written."""
    home = Path(environ.get("HOME", "/"))
    hub = Path(environ.get("HF_HOME") or home / ".cache/huggingface") / "hub"
    cache = environ.get("XDG_CACHE_HOME", "")
    own = (Path(cache) if cache.startswith("/") else home / ".cache") / "autotune"
    models = [path for path in hub.glob("models--*") if path.is_dir()]
    size = sum(
        blob.stat().st_size for model in models for blob in model.glob("blobs/*") if blob.is_file()
    )
    plural = "model" if len(models) == 1 else "models"
    text = f"{len(models)} {plural}, {size / GIB:.1f} GiB in {hub}"
    return [
        _writable("hub cache", hub, text, "models"),
        _writable("own cache", own, str(own), "flag lists of engines"),
    ]


def _writable(name: str, folder: Path, text: str, what: str) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(there, os.W_OK):
        return Finding(name=name, state="ok", text=text)
    return Finding(name=name, state="note", text=f"{text}: {there} cannot be written",
                   hint=f"`sudo chown -R $USER {there}`; until then {what} are not kept"
                   )  # fmt: skip


def files() -> Finding:
    """How many streams may be open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < LEAST_FILES:
        return Finding(name="files", state="note", text=f"limit {soft} open files (hard {hard})",
                       hint=f"`ulimit -n {LEAST_FILES}`: every stream is one")  # fmt: skip
    return Finding(name="files", state="ok", text=f"limit {soft} open files")


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 - the kernel's own
    """Shared memory, through which the ranks of a tensor-parallel server talk."""
    try:
        size = shutil.disk_usage(folder).total / GIB
    except OSError:
        return Finding(name="shm", state="note", text=f"no {folder}",
                       hint="a server on several GPUs of this machine will fail")  # fmt: skip
    text = f"{size:.1f} GiB in {folder}"
    if size < LEAST_SHM_GIB:
        return Finding(name="shm", state="note", text=text,
                       hint=f"`mount -o remount,size=16g {folder}` before a multi-GPU server; "
                       "for containers the study's `engine: shm_size:` counts")  # fmt: skip
    return Finding(name="shm", state="ok", text=text)


def local_ports(range_file: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> Finding:
    """Ports for the client's connections, and whether one can be had at all."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return Finding(name="ports", state="bad", text=f"no local port: {error.strerror}",
                       hint="`ss -s` counts what is open; `ip link set lo up`")  # fmt: skip
    try:
        low, high = (int(word) for word in range_file.read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return Finding(name="ports", state="note", text="range of local ports unknown",
                       hint="`sysctl net.ipv4.ip_local_port_range`")  # fmt: skip
    if high - low < LEAST_PORTS:
        return Finding(name="ports", state="note", text=f"only {high - low} local ports",
                       hint="`sysctl -w net.ipv4.ip_local_port_range='10240 65000'` gives more"
                       )  # fmt: skip
    return Finding(name="ports", state="ok", text=f"{high - low:,} local ports")


def usual_port(holder: str | None) -> Finding:
    """The port that engines use by default. `holder`: who has it in words, None if it is free."""
    if holder is None:
        return Finding(name=f"port {USUAL_PORT}", state="ok", text="free")
    return Finding(
        name=f"port {USUAL_PORT}", state="note", text=f"held by {holder}",
        hint="studies take another port by themselves, unless `engine: port:` says this one",
    )  # fmt: skip


def governor(
    path: Path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
) -> Finding:
    """Whether the processor's clock is allowed to wander."""
    try:
        name = path.read_text(encoding="utf-8").strip()
    except OSError:
        return Finding(name="cpu clock", state="ok", text="no frequency governor to watch")
    if name == "powersave":
        return Finding(name="cpu clock", state="note", text="governor powersave",
                       hint="`cpupower frequency-set -g performance` steadies it")  # fmt: skip
    return Finding(name="cpu clock", state="ok", text=f"governor {name}")
