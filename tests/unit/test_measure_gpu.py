from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autotune.measure.gpu_reader import nvml_reader
from autotune.measure.telemetry import GpuReading


class NvmlError(Exception):
    """What the driver's library raises."""


def driver(**broken: bool) -> Any:
    """A stand-in for the driver's library on a host with two GPUs."""
    nvml: Any = ModuleType("pynvml")

    def answer(name: str, value: Any) -> Any:
        def call(*_: Any) -> Any:
            if broken.get(name):
                raise NvmlError(name)
            return value

        return call

    def by_index(index: int) -> str:
        if index not in (0, 1):
            raise NvmlError("no such GPU")
        return f"gpu{index}"

    nvml.NVMLError = NvmlError
    nvml.nvmlInit = answer("init", None)
    nvml.nvmlDeviceGetCount = answer("count", 2)
    nvml.nvmlDeviceGetHandleByIndex = by_index
    nvml.nvmlDeviceGetHandleByUUID = answer("uuid", "gpu0")
    nvml.nvmlDeviceGetMemoryInfo = answer("memory", SimpleNamespace(used=10**9))
    nvml.nvmlDeviceGetPowerUsage = answer("power", 250_000)
    nvml.nvmlDeviceGetTotalEnergyConsumption = answer("energy", 5_000_000)
    return nvml


@pytest.mark.parametrize(
    ("gpus", "count"), [(None, 2), (("0",), 1), (("0", "1"), 2), (("GPU-1234",), 1)]
)
def test_readings_are_sums_over_the_watched_gpus(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...] | None, count: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    reader = nvml_reader(gpus)
    assert reader is not None
    assert reader.read() == GpuReading(
        memory_bytes=count * 1e9, power_w=count * 250.0, energy_j=count * 5000.0
    )


def test_values_that_a_driver_does_not_tell_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(power=True, energy=True))
    reader = nvml_reader(None)
    assert reader is not None
    assert reader.read() == GpuReading(memory_bytes=2e9, power_w=None, energy_j=None)
    monkeypatch.setitem(sys.modules, "pynvml", driver(memory=True))
    reader = nvml_reader(None)
    assert reader is not None
    assert reader.read() is None


@pytest.mark.parametrize("gpus", [None, ("7",)])
def test_a_machine_without_the_gpu_has_no_reader(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...] | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(init=gpus is None))
    assert nvml_reader(gpus) is None
