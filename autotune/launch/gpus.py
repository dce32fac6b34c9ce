"""GPUs as NVML sees them; a machine without any is a normal case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.clock import Clock, StopSignal
from autotune.errors import EnvironmentFault
from autotune.launch.lineage import command_line

TOLERANCE_BYTES = 512 * 1024**2
"""How far above its level before the study a GPU's memory may stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. Memory in bytes; `compute_capability` such as 9.0. `memory_reserved` is the driver's
    own: part of `memory_total`, never of `memory_used`, and no program can have it.
    """

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_used: int
    driver: str
    compute_capability: float
    memory_reserved: int = 0

    @property
    def memory_usable(self) -> int:
        """Bytes that programs can have: the total that CUDA tells them."""
        return self.memory_total - self.memory_reserved


def list_gpus() -> list[Gpu]:
    """All GPUs of this machine; empty without NVML, a driver or a GPU."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        driver = str(nvml.nvmlSystemGetDriverVersion())
        return [_gpu(nvml, index, driver) for index in range(nvml.nvmlDeviceGetCount())]


def among(gpus: Iterable[Gpu], wanted: Sequence[str] | None) -> list[Gpu]:
    """Those of `gpus` that are named in `wanted`, by index or UUID; None names all."""
    return [gpu for gpu in gpus if wanted is None or str(gpu.index) in wanted or gpu.uuid in wanted]


def nvml_problem() -> str | None:
    """Why GPUs cannot be asked for, in words; None if they can (there may still be none)."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    pynvml.nvmlShutdown()
    return None


def memory_used(gpus: Sequence[str] | None = None) -> dict[str, int]:
    """UUID -> bytes in use, for the named GPUs (index or UUID) or for all; empty without NVML."""
    return {gpu.uuid: gpu.memory_used for gpu in among(list_gpus(), gpus)}


def holders(uuid: str) -> list[str]:
    """Processes that hold memory of a GPU, in words, as far as NVML tells."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        try:
            found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError:
            return []
    return [_holder(entry.pid, entry.usedGpuMemory) for entry in found]


def wait_memory_back(
    baseline: Mapping[str, int],
    *,
    timeout_s: float,
    clock: Clock,
    stop: StopSignal,
    used: Callable[[], Mapping[str, int]] | None = None,
    held_by: Callable[[str], Sequence[str]] = holders,
) -> float:
    """Wait until each GPU uses no more than before the study (`baseline`, of `memory_used`).

    Memory of an ended process is freed late, and is charged to the next launch. Returns the seconds
    waited. Raises EnvironmentFault naming the holders when time is up, Interrupted.
    """
    read = used or (lambda: memory_used(list(baseline)))
    started = clock.monotonic()
    while True:
        now = read() if baseline else {}
        grown = {uuid: held - baseline.get(uuid, held) for uuid, held in now.items()}
        above = {uuid: extra for uuid, extra in grown.items() if extra > TOLERANCE_BYTES}
        waited = clock.monotonic() - started
        if not above:
            return waited
        stop.check()
        if waited >= timeout_s:
            raise _memory_held(above, timeout_s, held_by)
        clock.sleep(min(0.2, timeout_s - waited))


def _memory_held(
    above: Mapping[str, int], timeout_s: float, held_by: Callable[[str], Sequence[str]]
) -> EnvironmentFault:
    levels = ", ".join(
        f"{uuid} by {extra / 2**30:.1f} GiB" for uuid, extra in sorted(above.items())
    )
    names = [name for uuid in sorted(above) for name in held_by(uuid)]
    return EnvironmentFault(
        message="GPU memory did not return to its level before the study",
        seen=f"after {timeout_s:g} s still above it: {levels}; held by "
        + (", ".join(names) or "no process that the driver names"),
        so="nothing is launched, since the next server would be charged for it",
        hint="nvidia-smi",
    )


def _holder(pid: int, used: int | None) -> str:
    size = f", {used / 2**30:.1f} GiB" if used else ""
    return f"pid {pid} ({command_line(pid)[:60] or 'not visible here'}{size})"


def _gpu(nvml: Any, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    total, used, reserved = memory_info(nvml, handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(nvml.nvmlDeviceGetName(handle)),
        memory_total=total,
        memory_used=used,
        driver=driver,
        compute_capability=float(f"{major}.{minor}"),
        memory_reserved=reserved,
    )


def memory_info(nvml: Any, handle: Any) -> tuple[int, int, int]:
    """(total, used, reserved) bytes of a GPU. An idle GPU uses 0, as in nvidia-smi: what the driver
    reserves (0.6 GiB of an H200) is counted as used by the first version of NVML's call only.
    """
    version = getattr(nvml, "nvmlMemory_v2", None)
    if version is not None:
        with contextlib.suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=version)
            return int(memory.total), int(memory.used), int(memory.reserved)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.total), int(memory.used), 0


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """The initialised library, or None where it or a driver is missing."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
