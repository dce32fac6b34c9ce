"""The figures below the first screen: predictions, traffic, starts, single knobs, edges."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autotune.report.course import MOST_POINTS, starts, timeline
from autotune.report.html import render
from autotune.report.knob_effects import change_rows, edge, importance, one_changes
from autotune.report.predictions import predictions
from autotune.report.traffic_charts import traffic
from autotune.report.trial_facts import trial_facts
from autotune.report.view import StudyView, TrialView, load_view


def predicted(view: StudyView, factor: float) -> StudyView:
    """The same study, each launch predicted at `factor` times what it measured."""

    def told(trial: TrialView) -> TrialView:
        goal = view.goal(trial)
        known = {} if goal is None else {"ttft_p95_s": goal * factor}
        return replace(trial, record=replace(trial.record, predicted=known))

    return replace(view, trials=tuple(told(trial) for trial in view.trials))


def test_predictions_stand_beside_what_was_measured(study: Any) -> None:
    view = predicted(load_view(study(requests=60).search(12).path), 1.25)
    figure = predictions(view)
    assert "within 20 %" in figure.title
    assert len(figure.rows) == len(view.measured)
    assert {row[3] for row in figure.rows} == {"\N{MINUS SIGN}20 %"} or all(
        "20" in row[3] for row in figure.rows
    )


def test_a_study_without_predictions_says_so(study: Any) -> None:
    figure = predictions(load_view(study(requests=60).search(4).path))
    assert figure.missing
    assert not figure.pictures


def test_traffic_that_is_not_there_is_not_drawn(study: Any) -> None:
    assert traffic(load_view(study().path)).missing


def test_a_timeline_is_thinned_and_keeps_its_peaks(study: Any) -> None:
    view = load_view(study(requests=60).search(3).path)
    trial = view.trials[0]
    count = 5000
    columns = {
        "at_s": [0.1 * index for index in range(count)],
        "running": [float(index % 7) for index in range(count)],
        "waiting": [40.0 if index == 3333 else 0.0 for index in range(count)],
        "kv_usage": [None] * count,
    }
    pq.write_table(pa.table(columns), trial.folder / "telemetry.parquet")
    panels = timeline(trial)
    assert len(panels) == 1
    lines = [part for part in str(panels[0]).split("<path") if " L" in part]
    assert all(part.count(" L") <= MOST_POINTS for part in lines)
    assert "highest 40" in panels[0]


def test_a_start_is_parted_by_what_the_log_told(study: Any) -> None:
    made = study(requests=60).search(2)
    told = [("launching", None, 1.0), ("launching", "weights", 2.0), ("launching", "graphs", 5.0),
            ("warming", None, 6.0)]  # fmt: skip
    with (made.path / "events.jsonl").open("a", encoding="utf-8") as file:
        for phase, detail, at in told:
            event = {"kind": "phase", "at": "2026-11-29T00:00:00Z", "elapsed_s": at, "trial": 0,
                     "phase": phase, **({"detail": detail} if detail else {})}  # fmt: skip
            file.write(json.dumps(event) + "\n")
    figure = starts(load_view(made.path))
    assert figure.rows == (
        ("#0", "process", "1.0 s"), ("#0", "weights", "3.0 s"), ("#0", "graphs", "1.0 s"),
    )  # fmt: skip
    assert "weights" in figure.title


def test_a_change_of_one_setting_is_held_against_todays(study: Any) -> None:
    view = load_view(study(requests=60).search(20).path)
    changes = one_changes(view)
    assert changes
    for change in changes:
        first, second = (view.trial(number) for number in change.trials)
        assert first is not None
        assert second is not None
        before, after = view.goal(first), view.goal(second)
        assert before
        assert after
        assert change.ratio == pytest.approx(after / before)
    assert all(
        sum(row[0] == name for row in change_rows(view)) <= 3 for name, *_ in change_rows(view)
    )


def test_knobs_are_ranked_only_where_that_holds(study: Any) -> None:
    few = importance(load_view(study(requests=30).search(12).path))
    assert "too few" in few.missing
    many = importance(load_view(study(requests=30).search(60).path))
    assert many.missing == ""
    assert many.rows[0][0] == "max-num-batched-tokens"


def test_the_edge_is_drawn_where_two_knobs_have_both_sides(study: Any) -> None:
    figure = edge(load_view(study(requests=30).search(24).path))
    assert figure.missing == ""
    assert "gpu-memory-utilization" in figure.title
    assert any(row[-1] != "ran" for row in figure.rows)
    assert edge(load_view(study(requests=30).search(2).path)).missing


def test_what_a_trial_was_tried_for_and_how_its_answers_were(study: Any) -> None:
    view = load_view(study(requests=30).search(2).path)
    record = replace(
        view.trials[1].record,
        why="one step back from trial 0",
        predicted={"ttft_p95_s": 0.5, "unknown": 1.0},
        quality={"verdict": "failed", "loss": 0.031, "loss_low": 0.02, "loss_high": 0.04,
                 "agreement": 0.4, "passages": 40},
        stopped_early={"saved_s": 61.0},
    )  # fmt: skip
    rows = dict(trial_facts(view, replace(view.trials[1], record=record)))
    assert rows["tried because"] == "one step back from trial 0"
    assert "predicted TTFT p95" in rows
    assert "3.1 %" in rows["answers"]
    assert "61 s" in rows["ended early"] or "1 min" in rows["ended early"]


@pytest.mark.parametrize("trials", [0, 1, 2, 40])
def test_the_page_holds_all_figures_in_any_state(study: Any, trials: int) -> None:
    made = study(requests=30)
    if trials:
        made.search(trials)
    page = render(load_view(made.path))
    for anchor in ("predictions", "traffic", "starts", "importance", "edge"):
        assert f'id="{anchor}"' in page
    assert "NaN" not in page
    assert not math.isnan(len(page))
