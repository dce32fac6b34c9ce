"""GPU memory that comes back late, in virtual time with a double of NVML's readings."""

from __future__ import annotations

import pytest

from autotune.clock import StopSignal, VirtualClock
from autotune.errors import EnvironmentFault
from autotune.launch.gpus import list_gpus, memory_used, wait_memory_back

GIB = 2**30


def test_the_next_launch_waits_until_memory_is_back() -> None:
    clock = VirtualClock()
    waited = wait_memory_back(
        {"GPU-1": GIB},
        timeout_s=30,
        clock=clock,
        stop=StopSignal(),
        used=lambda: {"GPU-1": 40 * GIB if clock.monotonic() < 8 else GIB + 2**20},
    )
    assert waited == pytest.approx(8.0, abs=0.3)


def test_memory_that_stays_away_is_an_environment_fault_naming_the_holder() -> None:
    clock = VirtualClock()
    with pytest.raises(EnvironmentFault, match="did not return") as caught:
        wait_memory_back(
            {"GPU-1": GIB, "GPU-2": GIB},
            timeout_s=20,
            clock=clock,
            stop=StopSignal(),
            used=lambda: {"GPU-1": 40 * GIB, "GPU-2": GIB},
            held_by=lambda uuid: [f"pid 77 on {uuid}"],
        )
    assert "pid 77 on GPU-1" in (caught.value.seen or "")
    assert "39.0 GiB" in (caught.value.seen or "")
    assert "GPU-2" not in (caught.value.seen or "")
    assert clock.monotonic() == pytest.approx(20.0, abs=0.01)


def test_without_gpus_there_is_nothing_to_wait_for() -> None:
    assert wait_memory_back({}, timeout_s=1, clock=VirtualClock(), stop=StopSignal()) == 0.0


def test_readings_agree_with_the_list_of_gpus() -> None:
    assert set(memory_used()) == {gpu.uuid for gpu in list_gpus()}
