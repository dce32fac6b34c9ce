from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autotune.launch.gpus import memory_info
from autotune.measure.gpu_reader import nvml_reader
from autotune.measure.telemetry import GpuReading


class NvmlError(Exception):
    """What the driver's library raises."""


def driver(**broken: bool) -> Any:
    """A stand-in for the driver's library on a host with two GPUs."""
    nvml: Any = ModuleType("pynvml")

    def answer(name: str, value: Any) -> Any:
        def call(*_: Any, **__: Any) -> Any:
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
    nvml.nvmlDeviceGetMemoryInfo = answer("memory", SimpleNamespace(total=10**10, used=10**9))
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


def test_what_the_driver_reserves_is_not_counted_as_used(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = driver()
    idle = SimpleNamespace(total=150_754_820_096, used=0, reserved=644_939_776)
    old = SimpleNamespace(total=150_754_820_096, used=644_939_776)
    nvml.nvmlMemory_v2 = 2
    nvml.nvmlDeviceGetMemoryInfo = lambda _, version=None: old if version is None else idle
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    reader = nvml_reader(("0",))
    assert reader is not None
    reading = reader.read()
    assert reading is not None
    assert reading.memory_bytes == 0.0
    assert memory_info(nvml, "gpu0") == (150_754_820_096, 0, 644_939_776)


def test_a_driver_without_the_newer_call_is_asked_the_older_way() -> None:
    nvml = driver()
    nvml.nvmlMemory_v2 = 2

    def info(_: Any, version: int | None = None) -> Any:
        if version is not None:
            raise NvmlError("function not found")
        return SimpleNamespace(total=80 * 2**30, used=2**30)

    nvml.nvmlDeviceGetMemoryInfo = info
    assert memory_info(nvml, "gpu0") == (80 * 2**30, 2**30, 0)
