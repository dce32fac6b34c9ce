"""The page's numbers as data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.report.html import build_report
from autotune.report.report_json import report_json
from autotune.report.view import load_view


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_file_beside_the_page_holds_every_metric_of_both_sides(study: Any) -> None:
    made = study(requests=60).search(8).verdict("better")
    build_report(made.path)
    value = strict((made.path / "report.json").read_text())
    rows = {row["metric"]: row for row in value["compare"]}
    goal = rows["ttft_p95"]
    assert goal["group"] == "goal"
    assert goal["candidate"] < goal["baseline"]
    assert goal["change"]["ratio"] == pytest.approx(goal["candidate"] / goal["baseline"])
    low, high = goal["baseline_interval"]
    assert low is None or low <= goal["baseline"]
    assert high is None or high >= low
    assert rows["tpot_p95"]["limits"][0]["standing"] in {"holds", "not_shown", "broken"}
    assert value["verdict"] == "better"
    assert len(value["compared_trials"]["baseline"]) == 3
    assert {len(knob["values"]) for knob in value["knobs"]} <= set(range(1, 9))


@pytest.mark.parametrize("trials", [0, 1, 3])
def test_a_torn_night_has_numbers_too(study: Any, trials: int) -> None:
    made = study(requests=30)
    if trials:
        made.search(trials)
    value = report_json(load_view(made.path))
    json.dumps(value, allow_nan=False)
    assert len(value["trials"]) == len(value["measurements"])
    assert value["verdict"] is None
