from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from autotune.replay import pacer
from autotune.replay.pacer import Pacer, until


async def lateness(dues: list[float]) -> list[float]:
    start = time.monotonic()
    late = []
    with Pacer() as clock:
        for due in dues:
            await clock.until(start + due)
            late.append(time.monotonic() - start - due)
    return late


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_it_never_wakes_early_and_passes_over_what_is_past(factory: object) -> None:
    dues = [0.0, 0.005, 0.0051, 0.02, 0.01, 0.03]
    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        late = runner.run(lateness(dues))
    assert len(late) == len(dues)
    assert min(late) >= 0.0
    assert sorted(late)[2] < 0.05


def test_without_a_timer_of_the_system_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: object, use_errno: bool) -> None:
        raise OSError("no such library")

    monkeypatch.setattr(pacer.ctypes, "CDLL", no_library)
    late = asyncio.run(lateness([0.0, 0.01, 0.02]))
    assert min(late) >= 0.0


def test_a_cancelled_wait_leaves_the_clock_usable() -> None:
    async def go() -> float:
        with Pacer() as clock:
            waiting = asyncio.ensure_future(clock.until(time.monotonic() + 60))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            due = time.monotonic() + 0.01
            await clock.until(due)
            return time.monotonic() - due

    assert asyncio.run(go()) >= 0.0


def test_the_plain_wait_never_returns_early() -> None:
    due = time.monotonic() + 0.0105
    asyncio.run(until(due))
    assert time.monotonic() >= due
