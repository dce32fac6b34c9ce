"""A study that has begun gets another budget by `resume`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.e2e


def told(folder: Path) -> list[Any]:
    """Trials that the files of a study grant: each copy."""
    data = json.loads((folder / "study.json").read_text())
    spec = yaml.safe_load((folder / "study.yaml").read_text())
    return [one["budget"]["trials"] for one in (data, data["spec"], spec)]


def test_a_larger_budget_is_used_up_and_no_more(bench: Any) -> None:
    study = bench.write(search={"seed": 7, "sampler": "qmc"})
    rows = (bench.folder / "tiny.jsonl").read_text().splitlines(keepends=True)
    (bench.folder / "tiny.jsonl").write_text("".join(rows[:6]))  # how well it serves is not asked
    said = bench.run("tune", study, "--trials", "2", "--repeats", "0", "--out", bench.run_folder)
    assert said.returncode in (0, 3), said.stderr
    kept = bench.outcomes()
    assert told(bench.run_folder) == [2, 2, 2]

    said = bench.run("resume", bench.run_folder, "--trials", "3")
    assert said.returncode in (0, 3), said.stderr
    assert "budget.trials: 2 then, 3 now" in said.stderr
    outcomes = sorted(name for name in bench.outcomes() if name.endswith("outcome.json"))
    roles = [bench.json(name)["role"] for name in outcomes]
    assert roles == ["baseline", "search", "search"]
    assert told(bench.run_folder) == [3, 3, 3]
    assert (bench.run_folder / "study.yaml").read_text().startswith("# tiny as resolved on ")
    events = [json.loads(x) for x in (bench.run_folder / "events.jsonl").read_text().splitlines()]
    notes = [e["message"] for e in events if e["kind"] == "note"]
    assert notes.count("budget.trials: 2 then, 3 now") == 1
    assert [e["budget_trials"] for e in events if e["kind"] == "study_started"] == [2, 3]

    after = bench.outcomes()
    assert {name: data for name, data in after.items() if name in kept} == kept
    said = bench.run("resume", bench.run_folder)
    assert said.returncode in (0, 3), said.stderr
    assert bench.outcomes() == after
