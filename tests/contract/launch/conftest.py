"""Plans for the launcher tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.plan import HOST, PORT, LaunchPlan, Mount

TESTS = Path(__file__).parents[2]
FAKE = TESTS / "doubles" / "fake_server.py"

PlanMaker = Callable[..., LaunchPlan]


@pytest.fixture
def process_plan() -> PlanMaker:
    def make(*words: str, **fields: object) -> LaunchPlan:
        argv = (sys.executable, str(FAKE), "--host", HOST, "--port", PORT, *words)
        return LaunchPlan(
            engine="generic", launcher="process", model="fake/model", argv=argv, **fields
        )

    return make


@pytest.fixture
def docker_plan(host_image: dict[str, Any], process_plan: PlanMaker) -> PlanMaker:
    mounts = tuple(Mount(**mount) for mount in host_image["mounts"])

    def make(*words: str, **fields: object) -> LaunchPlan:
        plan = process_plan(*words)
        more = {"gpus": (), "mounts": mounts, "image": host_image["image"], **fields}
        return LaunchPlan(
            engine="generic", launcher="docker", model=plan.model, argv=plan.argv, **more
        )

    return make
