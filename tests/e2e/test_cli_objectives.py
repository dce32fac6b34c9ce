"""Studies for the capacity, and with several objectives, through the command line and HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

SEQS = {"max-num-seqs": {"type": "int", "values": [2, 32]}}


def shown(bench: Any) -> Any:
    said = bench.run("show", bench.run_folder, "--json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@pytest.fixture(scope="module")
def capacity(tmp_path_factory: pytest.TempPathFactory, bench_in: Any) -> Any:
    """Two running sequences hold less than thirty-two; both limits bind somewhere."""
    bench = bench_in(tmp_path_factory.mktemp("capacity"))
    bench.write(
        name="capacity",
        baseline={"max-num-seqs": 2},
        space={"engine": "simulated", "knobs": SEQS},
        objective="maximize capacity",
        constraints=["ttft_p95 <= 1s", "tpot_p95 <= 9 x baseline"],
        search={"seed": 7, "repeats": 1},
    )
    said = bench.run("tune", "study.yaml", "--out", "run", "--progress", "plain", timeout_s=400)
    assert said.returncode in (0, 3), said.stderr
    bench.said = said
    return bench


def test_each_trial_keeps_its_steps_and_the_measurement_at_its_capacity(capacity: Any) -> None:
    for trial in (0, 1):
        folder = capacity.run_folder / "trials" / f"{trial:04d}"
        steps = capacity.json(f"trials/{trial:04d}/capacity.json")
        measured = capacity.json(f"trials/{trial:04d}/measurement.json")
        outcome = capacity.json(f"trials/{trial:04d}/outcome.json")
        assert outcome["state"] == "measured"
        assert measured["metrics"]["capacity"] == steps["capacity"]
        assert outcome["values"] == {"maximize capacity": steps["capacity"]}
        assert measured["context"]["rate_multiplier"] == steps["capacity"]
        held = [step["multiplier"] for step in steps["steps"] if step["met"]]
        missed = [step["multiplier"] for step in steps["steps"] if step["met"] is False]
        assert steps["capacity"] == max(held) < min(missed)
        assert (folder / "requests.parquet").is_file()
        assert (folder / "telemetry.parquet").is_file()
        assert not (folder / "steps").exists()


def test_the_search_begins_at_what_the_best_holds_and_finds_more(capacity: Any) -> None:
    baseline = capacity.json("trials/0000/capacity.json")
    candidate = capacity.json("trials/0001/capacity.json")
    assert baseline["start"] == 1.0
    assert candidate["start"] == candidate["to_beat"] == baseline["capacity"]
    assert candidate["capacity"] > baseline["capacity"]


def test_relative_limits_refer_to_the_baseline_at_the_recorded_rate(capacity: Any) -> None:
    baseline = capacity.json("trials/0000/measurement.json")
    limit = capacity.json("trials/0001/outcome.json")["limits"]["tpot_p95 <= 9 x baseline"]
    assert limit == pytest.approx(9 * baseline["recorded_rate"]["tpot_p95_s"])
    assert capacity.json("trials/0000/capacity.json")["steps"][0]["multiplier"] == 1.0


def test_capacities_are_shown_as_multiples_of_the_rate(capacity: Any) -> None:
    data = shown(capacity)
    assert data["study"]["objective"] == ["maximize capacity"]
    assert data["verdict"] in ("better", "not_distinguishable")
    assert "at 1x the recorded rate" in capacity.said.stderr
    value = data["trials"][1]["values"]["maximize capacity"]
    assert f"capacity={value:#.3g}x" in capacity.said.stderr


def test_a_capacity_without_limits_is_refused(bench: Any) -> None:
    bench.write(objective="maximize capacity", constraints=[])
    said = bench.run("plan", "study.yaml")
    assert said.returncode == 2
    assert "needs a limit to hold" in said.stderr


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, bench_in: Any) -> Any:
    bench = bench_in(tmp_path_factory.mktemp("several"))
    bench.write(
        name="several",
        baseline={"max-num-seqs": 2},
        space={"engine": "simulated", "knobs": {"max-num-seqs": [2, 8, 32]}},
        objective=["minimize ttft_p95", "minimize tpot_p95"],
        budget={"trials": 3},
        search={"seed": 7, "repeats": 1},
    )
    said = bench.run("tune", "study.yaml", "--out", "run", "--progress", "none", timeout_s=200)
    assert said.returncode == 0, said.stderr
    bench.said = said
    return bench


def test_front_and_finalists_stand_in_the_verdict_and_in_show(several: Any) -> None:
    verdict = several.json("verdict.json")
    data = shown(several)
    goals = ["minimize ttft_p95", "minimize tpot_p95"]
    values = {t["number"]: [t["values"][g] for g in goals] for t in data["trials"][:3]}
    beaten = {
        number
        for number, own in values.items()
        if any(all(a <= b for a, b in zip(o, own, strict=True)) and o != own
               for o in values.values())
    }  # fmt: skip
    assert data["pareto"] == verdict["pareto"]
    assert set(verdict["pareto"]) == set(values) - beaten
    assert data["finalists"] == verdict["finalists"]
    assert {one["trial"] for one in verdict["finalists"]} == set(verdict["pareto"]) - {0}
    for one in verdict["finalists"]:
        assert set(one["changes"]) == set(goals)
    assert several.json("study.json")["spec"]["search"]["finalists"] == 3


def test_the_front_is_told_on_the_terminal(several: Any) -> None:
    assert "Beaten by no other setting in every goal:" in several.said.stderr
    said = several.run("show", several.run_folder)
    assert "TPOT p95" in said.stdout
    assert Path(several.run_folder / "best" / "launch.sh").is_file()
