"""Plans and cleared-up servers for the launcher tests; the image is made once per session."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.engines.plan import HOST, PORT, LaunchPlan, Mount

TESTS = Path(__file__).parents[2]
FAKE = TESTS / "doubles" / "fake_server.py"
IMAGE = "autotune-test-host:1"

PlanMaker = Callable[..., LaunchPlan]


@pytest.fixture
def process_plan() -> PlanMaker:
    def make(*words: str, **fields: object) -> LaunchPlan:
        argv = (sys.executable, str(FAKE), "--host", HOST, "--port", PORT, *words)
        return LaunchPlan(
            engine="generic", launcher="process", model="fake/model", argv=argv, **fields
        )

    return make


@pytest.fixture(scope="session")
def host_image(docker_daemon: None) -> tuple[Mount, ...]:
    """The mounts of the test image; skips where no daemon answers."""
    spec = importlib.util.spec_from_file_location(
        "host_image", TESTS / "real_engine" / "host_image.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build(IMAGE)
    return tuple(Mount(**mount) for mount in module.mounts(TESTS))


@pytest.fixture
def docker_plan(host_image: tuple[Mount, ...], process_plan: PlanMaker) -> PlanMaker:
    def make(*words: str, **fields: object) -> LaunchPlan:
        plan = process_plan(*words)
        more = {"gpus": (), "mounts": host_image, "image": IMAGE, **fields}
        return LaunchPlan(
            engine="generic", launcher="docker", model=plan.model, argv=plan.argv, **more
        )

    return make
