"""Two studies side by side, where that means something."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autotune.report.two_studies import compare_studies, headline, render, to_json
from autotune.report.view import StudyView, load_view


@pytest.fixture
def views(study: Any) -> tuple[StudyView, StudyView]:
    one = study(requests=60, name="on 0.26").search(6).verdict("better", gain=0.35)
    two = study(requests=60, name="on <b>0.33</b>").search(6, best_gain=0.2).verdict("better")
    return load_view(one.path), load_view(two.path)


def test_the_same_traffic_is_compared_metric_by_metric(views: Any) -> None:
    two = compare_studies(*views)
    assert two.obstacles == ()
    rows = {row.metric.name: row for row in two.today}
    first, second = (view.baseline.metric(rows["ttft_p95"].metric) for view in views)
    assert rows["ttft_p95"].first == pytest.approx(first, rel=0.2)
    assert rows["ttft_p95"].ratio == pytest.approx(rows["ttft_p95"].second / rows["ttft_p95"].first)
    assert second is not None
    json.dumps(to_json(two), allow_nan=False)


def test_overlapping_intervals_are_not_called_different(views: Any) -> None:
    two = compare_studies(views[0], views[0])
    assert {row.word for row in (*two.today, *two.chosen)} <= {
        "not distinguishable", "one measurement each",
    }  # fmt: skip
    assert "differs" not in headline(two)
    assert two.differences == ()


@pytest.mark.parametrize("key", ["digest", "held_out_digest", "window_s"])
def test_other_traffic_is_not_compared(views: Any, key: str) -> None:
    first, second = views
    workload = {**second.workload, key: "something else"}
    other = replace(second, fingerprint={**second.fingerprint, "workload": workload})
    two = compare_studies(first, other)
    assert len(two.obstacles) == 1
    assert two.today == two.chosen == ()
    assert headline(two) == "These two studies cannot be compared"
    assert to_json(two)["comparable"] is False
    assert "something else" in render(two)


def test_a_simulated_study_is_never_held_against_a_measured_one(views: Any) -> None:
    first, second = views
    other = replace(second, fingerprint={**second.fingerprint, "simulated": True})
    assert "simulated" in compare_studies(first, other).obstacles[0]


def test_names_from_outside_stay_text(views: Any) -> None:
    page = render(compare_studies(*views))
    assert "<b>0.33</b>" not in page
    assert "on &lt;b&gt;0.33&lt;/b&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
