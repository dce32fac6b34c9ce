from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from autotune.measure.host_reader import HostReader


class Times(SimpleNamespace):
    """Counters of a machine, as psutil gives them: named and iterable."""

    def __iter__(self) -> Any:
        return iter(vars(self).values())


def test_shares_are_of_the_time_between_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [
        Times(user=10.0, system=5.0, idle=80.0, iowait=3.0, steal=2.0, guest=1.0),
        Times(user=16.0, system=7.0, idle=81.0, iowait=3.0, steal=3.0, guest=2.0),
    ]
    monkeypatch.setattr(psutil, "cpu_times", lambda: readings.pop(0))
    reader = HostReader()
    assert reader.read() is None
    found = reader.read()
    assert found is not None
    assert found.cpu_share == pytest.approx(0.9)  # one of ten seconds was idle
    assert found.steal_share == pytest.approx(0.1)
    assert found.memory_available_bytes > 0


def test_no_time_and_no_steal_are_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [Times(user=1.0, idle=9.0), Times(user=1.0, idle=9.0), Times(user=2.0, idle=9.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda: readings.pop(0))
    reader = HostReader()
    assert reader.read() is None
    assert reader.read() is None
    found = reader.read()
    assert found is not None
    assert (found.cpu_share, found.steal_share) == (1.0, None)
