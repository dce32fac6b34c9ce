"""Nights that one trial must not eat: E08. All requests stall, the study's own limit is short."""

from __future__ import annotations

import json
from typing import Any

LIMIT_S = 8.0
ENOUGH_S = 45.0
"""The limit, the last trial's grace, ending the server, verdict and report, on a busy machine."""


def elapsed_s(play: Any) -> float:
    lines = (play.directory.path / "events.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["elapsed_s"])


def test_e08_a_baseline_that_stalls_ends_with_the_study(play: Any) -> None:
    end = play.run({"stall_after": 6}, budget={"time": LIMIT_S})
    assert end.exit_code == 5
    assert "nothing else was tried" in (end.error.so or "")
    assert play.launches == 1
    assert elapsed_s(play) < ENOUGH_S


def test_e08_a_candidate_that_stalls_ends_with_the_study(play: Any) -> None:
    end = play.run({"cases": [{"first": 2, "stall_after": 6}]}, budget={"time": LIMIT_S})
    assert end.exit_code == 0
    states = [record.state for record in play.records]
    assert states[0] == "measured"
    assert set(states[1:]) <= {"infeasible", "unmeasurable"}
    assert len(states) > 1
    assert elapsed_s(play) < ENOUGH_S
    assert end.verdict.best == 0
