"""A study with several objectives: its words, its rows, its JSON, its tables on the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.cli.closing import closing_block
from autotune.cli.front_table import front_table
from autotune.report.first_screen import goal_rows
from autotune.report.several_words import front_rows
from autotune.report.show import show_json
from autotune.report.verdict_words import tell
from autotune.report.view import StudyView, load_view
from autotune.space.candidate import Candidate
from autotune.spec.expressions import parse_objective
from autotune.study.conclusion import Conclusion
from autotune.study.record import TrialRecord

TTFT, TPOT = "minimize ttft_p95", "minimize tpot_p95"
GOALS = [TTFT, TPOT]
BASELINE = {"max-num-batched-tokens": 8192}
Point = tuple[float, float]


@pytest.fixture
def several(study: Any) -> Any:
    """Writes a study whose settings have these (TTFT, TPOT), each launched again three times."""

    def make(points: Sequence[Point], *, pairs: int = 3) -> StudyView:
        one = study(simulated=False)
        one.constraints = ()
        one.header()
        data = json.loads((one.path / "study.json").read_text())
        one.json("study.json", {**data, "objective": GOALS, "constraints": []})
        settings = [BASELINE, *({"max-num-seqs": 2**n} for n in range(1, len(points)))]
        roles = ["baseline", *["search"] * (len(points) - 1)]
        launches = [(None, role, s, p) for role, s, p in zip(roles, settings, points, strict=True)]
        launches += [
            (pair, "confirm", s, p)
            for pair in range(pairs)
            for s, p in zip(settings, points, strict=True)
        ]
        records = []
        for number, (pair, role, params, (ttft, tpot)) in enumerate(launches):
            drift = 1 + 0.01 * ((pair or 0) - 1) + 0.001 * (number % 2 - 0.5)
            one.measured(params, ttft=ttft * drift, tpot=tpot / drift, role=role, pair=pair)
            folder = one.path / "trials" / f"{number:04d}"
            outcome = json.loads((folder / "outcome.json").read_text())
            measurement = json.loads((folder / "measurement.json").read_text())
            metrics = {
                **measurement["metrics"],
                "ttft_p95_s": ttft * drift,
                "tpot_p95_s": tpot / drift,
            }
            (folder / "measurement.json").write_text(
                json.dumps({**measurement, "metrics": metrics})
            )
            outcome |= {"values": {TTFT: ttft * drift, TPOT: tpot / drift}, "constraints": {},
                        "limits": {}, "feasible": True}  # fmt: skip
            (folder / "outcome.json").write_text(json.dumps(outcome))
            records.append(TrialRecord.from_json(outcome))
        found = Conclusion(records, [parse_objective(g) for g in GOALS], Candidate(BASELINE))
        one.json("verdict.json", {**found.verdict(3).to_json(), "stopped_because": "done"})
        return load_view(one.path)

    return make


BETTER: list[Point] = [(0.5, 0.050), (0.3, 0.040), (0.25, 0.060)]
TRADES: list[Point] = [(0.5, 0.050), (0.25, 0.090)]


def shown(view: StudyView) -> str:
    console = Console(width=160, no_color=True)
    with console.capture() as caught:
        console.print(closing_block(view, "done"))
    return caught.get()


def test_the_headline_names_what_got_better_in_every_goal(several: Any) -> None:
    view = several(BETTER)
    story = tell(view)
    assert story.headline.startswith("Change the launch settings: ")
    assert view.verdict is not None
    assert view.verdict.best == 1
    text = " ".join(story.sentences)
    assert "TTFT p95: 500 ms today, 300 ms with #1, 40 % shorter (95 % interval" in text
    assert "ms with #1, 20 % shorter" in text
    assert "2 settings are beaten by no other in every goal; 2 of them were launched again." in text


def test_a_trade_keeps_todays_settings_and_says_why(several: Any) -> None:
    view = several(TRADES)
    story = tell(view)
    assert story.headline == "Keep today's settings: what gains in one goal loses in another"
    assert "80 % longer" in " ".join(story.sentences)
    assert view.best is view.baseline


def test_every_goal_has_its_row_with_the_change_of_the_verdict(several: Any) -> None:
    rows = [row for row in goal_rows(several(BETTER)) if row.kind == "goal"]
    assert [row.label for row in rows] == ["TTFT p95", "TPOT p95"]
    assert "40 % shorter" in rows[0].change
    assert "20 % shorter" in rows[1].change


def test_the_front_is_shown_with_todays_settings_first(several: Any) -> None:
    view = several(BETTER)
    rows = front_rows(view)
    assert [(row.trial.number, row.word) for row in rows] == [
        (0, "today"), (2, "a trade"), (1, "better"),
    ]  # fmt: skip
    text = shown(view)
    assert "Beaten by no other setting in every goal:" in text
    assert "max-num-seqs 2" in text


def test_before_a_verdict_the_front_so_far_is_shown(several: Any) -> None:
    view = several(TRADES, pairs=0)
    (view.directory / "verdict.json").unlink()
    view = load_view(view.directory)
    assert [row.word for row in front_rows(view)] == ["today", "one launch only"]
    assert show_json(view)["pareto"] == [1, 0]


def test_show_json_has_front_and_finalists(several: Any) -> None:
    data = show_json(several(BETTER))
    assert data["pareto"] == [2, 1]
    assert [(one["trial"], one["verdict"]) for one in data["finalists"]] == [
        (2, "trade_off"), (1, "better"),
    ]  # fmt: skip
    assert data["nearest"] == []
    json.dumps(data, allow_nan=False)


def test_a_study_with_one_objective_has_no_front(study: Any) -> None:
    view = load_view(study().search(6).path)
    assert front_table(view) is None
    assert show_json(view)["pareto"] == []


def test_a_broken_entry_of_a_finalist_is_left_out(several: Any) -> None:
    view = several(BETTER)
    path: Path = view.directory / "verdict.json"
    data = json.loads(path.read_text())
    data["finalists"] = [{"trial": 1}, 7, *data["finalists"][1:]]
    data["nearest"] = [{"trial": "x"}, {"trial": 3, "violations": {"a <= 1": 0.5}}]
    path.write_text(json.dumps(data))
    again = load_view(view.directory)
    assert again.verdict is not None
    assert [one.trial for one in again.verdict.finalists] == [1]
    assert [(one.trial, one.violations) for one in again.verdict.nearest] == [(3, {"a <= 1": 0.5})]
