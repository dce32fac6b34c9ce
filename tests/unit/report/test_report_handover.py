"""What the files of a hand-over compare: launches on the same traffic, and nothing with itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.cli.handover import facts_of
from autotune.deploy.facts import DeployFacts, MetricFact
from autotune.report.view import StudyView, TrialView, load_view

Make = Callable[..., Any]


def goal(facts: DeployFacts) -> MetricFact:
    return next(fact for fact in facts.metrics if fact.name == "ttft_p95")


def pairs(view: StudyView, side: str) -> list[float]:
    assert view.verdict is not None
    return [getattr(pair, f"{side}_value") for pair in view.verdict.pairs]


def trial(view: StudyView, number: int | None) -> TrialView:
    found = None if number is None else view.trial(number)
    assert found is not None
    return found


@pytest.mark.parametrize("role", ["best", "baseline"])
def test_todays_settings_are_told_by_their_confirm_launches_and_beside_nothing(
    study: Make, role: Any
) -> None:
    view = load_view(study(requests=60).search(4).verdict("not_distinguishable", gain=0.98).path)
    told = goal(facts_of(view, trial(view, 0), role=role))
    assert told.value is not None
    assert min(pairs(view, "baseline")) <= told.value <= max(pairs(view, "baseline"))
    assert told.baseline is None


def test_the_finalist_is_told_by_its_pairs_under_any_role(study: Make) -> None:
    view = load_view(study(requests=60).search(4).verdict("better").path)
    assert view.verdict is not None
    best = trial(view, view.verdict.best)
    for role in ("best", "trial"):
        told = goal(facts_of(view, best, role=role))  # type: ignore[arg-type]
        assert told.value is not None
        assert told.baseline is not None
        assert min(pairs(view, "best")) <= told.value <= max(pairs(view, "best"))
        assert min(pairs(view, "baseline")) <= told.baseline <= max(pairs(view, "baseline"))


def test_another_trial_of_the_search_stands_beside_the_baseline_of_the_search(study: Make) -> None:
    view = load_view(study(requests=60).search(4).verdict("better").path)
    other = next(
        t for t in view.searched if t.number not in {0, view.verdict and view.verdict.best}
    )
    told = goal(facts_of(view, other, role="trial"))
    assert told.value == view.goal(other)
    assert told.baseline == view.goal(trial(view, 0))
