"""A hopeless launch of a real study: ended within seconds, shown as such, its server gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

RATE, SECONDS = 8, 15


@pytest.fixture
def hopeless(bench: Any) -> Any:
    """A study of two settings: one that serves the traffic, and one request at a time."""
    study = bench.write(
        baseline={"max-num-seqs": 32},
        space={"engine": "simulated", "knobs": {"max-num-seqs": {"values": [32, 1]}}},
        constraints=["e2e_p95 <= 8s", "success_rate >= 0.5"],
        budget={"trials": 2},
        search={"early_stop": "exact", "seed": 1, "repeats": 0, "baseline_repeats": 0},
    )
    rows = [{"t": i / RATE, "in": 200 + i, "out": 40} for i in range(RATE * SECONDS)]
    (bench.folder / "tiny.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    bench.said = bench.run("tune", study, "--out", bench.run_folder, timeout_s=180)
    return bench


def test_a_hopeless_replay_costs_seconds_and_says_why(hopeless: Any, looks: Any) -> None:
    said = hopeless.said
    assert said.returncode == 0, said.stderr
    baseline = hopeless.json("trials/0000/outcome.json")
    ended = hopeless.json("trials/0001/outcome.json")
    assert (baseline["state"], baseline["stopped_early"]) == ("measured", {})
    assert (ended["state"], ended["reason"], ended["values"]) == (
        "infeasible", "cannot_beat_best", {},
    )  # fmt: skip
    assert ended["stopped_early"]["at_s"] < ended["stopped_early"]["last_due_s"]
    assert ended["stopped_early"]["saved_s"] > 1
    whole = hopeless.json("trials/0000/measurement.json")
    part = hopeless.json("trials/0001/measurement.json")
    assert part["validity"]["verdict"] == "suspect"
    assert part["requests"]["planned"] == whole["requests"]["planned"]
    assert part["requests"]["ok"] < part["requests"]["planned"]
    assert (hopeless.run_folder / "trials/0001/requests.parquet").is_file()
    assert "early     trial=1" in said.stderr
    assert "1 measured, 1 ended early (about" in said.stderr
    shown = json.loads(hopeless.run("show", hopeless.run_folder, "--json").stdout)
    assert shown["early_stops"]["count"] == 1
    assert shown["trials"][1]["word"] == "ended early"
    assert looks.marked(hopeless.study_id()) == []
