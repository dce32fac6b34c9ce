"""Which GPUs the handed-over launch names when several launches ran at the same time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.cli.handover import plan_to_run
from autotune.engines.plan import Deployment, LaunchPlan


def trial(gpus: tuple[str, ...] | None) -> Any:
    plan = LaunchPlan(engine="vllm", launcher="process", argv=("vllm",), model="m", gpus=gpus)
    return SimpleNamespace(plan=Deployment(members=(plan,)).to_json())


@pytest.mark.parametrize(
    ("today", "measured", "handed_over"),
    [
        (("0",), ("3",), ("0",)),
        (("4", "5"), ("6", "7"), ("4", "5")),
        (None, None, None),
        ((), (), ()),
    ],
)
def test_the_best_launch_is_handed_over_on_the_gpus_of_the_baseline(
    today: Any, measured: Any, handed_over: Any
) -> None:
    plan = plan_to_run(SimpleNamespace(baseline=trial(today)), trial(measured))  # type: ignore[arg-type]
    assert plan is not None
    assert plan.gpus == handed_over


def test_without_a_baseline_the_plan_stays_as_it_was_launched() -> None:
    plan = plan_to_run(SimpleNamespace(baseline=None), trial(("3",)))  # type: ignore[arg-type]
    assert plan is not None
    assert plan.gpus == ("3",)
