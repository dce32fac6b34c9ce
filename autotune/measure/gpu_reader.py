"""NVIDIA GPUs as `telemetry` sees them, through the driver's management library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.launch.gpus import memory_info
from autotune.measure.telemetry import GpuReading


class NvmlReader:
    """Reads memory, power and energy of some GPUs. Get one by `nvml_reader`."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = tuple(handles)

    def read(self) -> GpuReading | None:
        nvml = self._nvml
        try:
            memory = sum(memory_info(nvml, handle)[1] for handle in self._handles)
        except nvml.NVMLError:
            return None
        return GpuReading(
            memory_bytes=float(memory),
            power_w=self._total(nvml.nvmlDeviceGetPowerUsage),
            energy_j=self._total(nvml.nvmlDeviceGetTotalEnergyConsumption),
        )

    def _total(self, read: Any) -> float | None:
        """The sum over GPUs of a value in thousandths; None where the driver does not tell."""
        try:
            return float(sum(read(handle) for handle in self._handles)) / 1000
        except self._nvml.NVMLError:
            return None


def nvml_reader(gpus: Sequence[str] | None) -> NvmlReader | None:
    """A reader of these GPUs (index or UUID; None: all), or None where there is no NVIDIA driver,
    no GPU, or one of them is not there.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        if gpus is None:
            count = pynvml.nvmlDeviceGetCount()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        else:
            handles = [_handle(pynvml, gpu) for gpu in gpus]
    except (pynvml.NVMLError, ValueError):
        return None
    return NvmlReader(pynvml, handles) if handles else None


def _handle(nvml: Any, gpu: str) -> Any:
    if gpu.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(gpu))
    return nvml.nvmlDeviceGetHandleByUUID(gpu)
