from __future__ import annotations

import pytest

from autotune.spec.resources import shipped
from autotune.workload.reader import read_trace
from autotune.workload.scenarios import SCENARIOS, make
from autotune.workload.writer import digest


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_each_shipped_file_is_what_its_scenario_makes(name: str) -> None:
    trace = read_trace(shipped("workloads", name), strict=True)
    assert digest(trace) == digest(make(name))
    assert trace.meta["scenario"] == name
