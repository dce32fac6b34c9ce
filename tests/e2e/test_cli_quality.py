"""Whole studies with a lossy knob: what is fast because its answers got worse does not win."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

import autotune.simulator.profile as profiles

pytestmark = pytest.mark.e2e

GARBAGE, WORSE, GOOD = "fp8_e5m2", "fp8_e4m3", "bfloat16"


def profile(folder: Path) -> Path:
    """The quickstart machine with three more KV formats: each faster than the one before, one with
    answers as good, one with worse ones, one that gives garbage.
    """
    shipped = Path(profiles.__file__).parent / "profiles" / "quickstart.yaml"
    data = yaml.safe_load(shipped.read_text())
    # Today's format cannot keep up with the traffic: a faster one is faster on a busy machine, too
    data["step"]["b_us_per_token"] = 150.0
    cache = data["kv_cache"]["auto"]["bytes_per_token"]
    for name, loss, factor in ((GOOD, 0.001, 0.7), (WORSE, 0.03, 0.4), (GARBAGE, 3.0, 0.05)):
        data["kv_cache"][name] = {"bytes_per_token": cache, "loss": loss, "a": factor, "b": factor}
    # The simulated SGLang calls this format by vLLM's name
    data["kv_cache"]["fp8"] = data["kv_cache"][GARBAGE]
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def study(bench: Any, kind: str = "simulated", **changes: Any) -> Path:
    args = {"sim-profile": str(profile(bench.folder)), "sim-startup": 0.2, "sim-seed": 1}
    values = ["auto", GOOD, WORSE, GARBAGE]
    knob = {"type": "choice", "values": values, "lossy": True}
    return bench.write(
        **{
            "engine": {"kind": kind, "args": args},
            "baseline": {"kv-cache-dtype": "auto"},
            "space": {"engine": kind, "knobs": {"kv-cache-dtype": knob}},
            "budget": {"trials": 4},
            "search": {"seed": 7, "repeats": 0, "early_stop": "off"},
            **changes,
        }
    )


def trials(bench: Any) -> dict[str, Any]:
    """KV format -> its trial's record."""
    found = {}
    for path in sorted(bench.run_folder.glob("trials/[0-9]???/outcome.json")):
        record = json.loads(path.read_text())
        found[record["params"]["kv-cache-dtype"]] = record
    return found


@pytest.mark.parametrize("kind", ["simulated", "simulated-sglang"])
def test_fastest_candidate_that_talks_nonsense_is_refused_and_a_sound_one_wins(
    bench: Any, kind: str
) -> None:
    said = bench.run("tune", study(bench, kind), "--out", bench.run_folder)
    assert said.returncode == 0, said.stderr
    found = trials(bench)
    assert found["auto"]["quality"]["verdict"] == "reference"
    for name, words in ((GARBAGE, "garbage"), (WORSE, "rise in perplexity")):
        record = found[name]
        assert (record["state"], record["reason"]) == ("infeasible", "quality"), record
        assert (record["fault"], record["phase"]) == ("candidate", "load")
        assert words in record["message"]
        assert record["quality"]["verdict"] == "failed"
        assert record["values"] == {}
    assert found[WORSE]["quality"]["loss"] == pytest.approx(0.03, rel=0.1)
    passed = found[GOOD]["quality"]
    assert passed["verdict"] == "passed"
    assert passed["loss_low"] <= passed["loss"] <= passed["loss_high"] <= 0.01
    assert passed["passages"] >= 40
    # It was measured all the same, and was faster: that is what had to be refused
    speed = {
        name: bench.json(f"trials/{record['number']:04d}/measurement.json")["metrics"]["ttft_p95_s"]
        for name, record in found.items()
    }
    assert speed[GARBAGE] < speed["auto"]
    verdict = bench.json("verdict.json")
    assert verdict["best"] in (found[GOOD]["number"], found["auto"]["number"])
    shown = json.loads(bench.run("show", bench.run_folder, "--json").stdout)
    assert {c["code"] for c in shown["caveats"]} & {"answers-checked", "answers-unchecked"}


def test_no_text_of_an_answer_lies_in_the_directory(bench: Any) -> None:
    said = bench.run("tune", study(bench, budget={"trials": 2}), "--out", bench.run_folder)
    assert said.returncode == 0, said.stderr
    for path in bench.run_folder.rglob("*.json"):
        text = path.read_text()
        assert "Call me Ishmael" not in text
        assert " the a time of server" not in text
        assert '" the"' not in text


def test_check_that_was_interrupted_goes_on_with_the_reference_of_before(
    bench: Any, looks: Any
) -> None:
    # Slow enough that the check is still running when it is interrupted
    process = bench.start("tune", study(bench), "--out", bench.run_folder)
    bench.await_phase("checking answers", 1)
    process.send_signal(signal.SIGINT)
    looks.finish(process)
    before = (bench.run_folder / "trials/0000/quality.json").read_bytes()
    said = bench.run("resume", bench.run_folder)
    assert said.returncode == 0, said.stderr
    assert (bench.run_folder / "trials/0000/quality.json").read_bytes() == before
    assert trials(bench)[GARBAGE]["reason"] == "quality"
    assert looks.marked(bench.study_id()) == []


def test_waived_check_is_said_in_plan_verdict_and_hand_over(bench: Any) -> None:
    waived = study(bench, quality={"check": "none"}, search={"seed": 7, "repeats": 3})
    planned = bench.run("plan", waived)
    assert "NOT CHECKED: kv-cache-dtype can change answers" in planned.stdout
    said = bench.run("tune", waived, "--out", bench.run_folder, timeout_s=120)
    assert said.returncode == 0, said.stderr
    assert "NOT CHECKED" in said.stderr
    assert bench.json("verdict.json")["verdict"] == "better"
    assert "Answer quality was not checked, and kv-cache-dtype is lossy." in said.stderr
    assert "not checked" in (bench.run_folder / "best/README.md").read_text()
    assert trials(bench)[GARBAGE]["quality"] == {}


def test_likelihood_of_an_engine_that_gives_none_is_refused_before_any_launch(bench: Any) -> None:
    command = ["python3", "-m", "http.server", "{port}"]
    path = study(
        bench,
        engine={"kind": "generic", "command": command},
        space={"knobs": {"kv-cache-dtype": {"values": ["auto", "fp8"], "lossy": True}}},
        quality={"check": "likelihood"},
    )
    said = bench.run("plan", path)
    assert said.returncode == 2
    assert "gives no log-probabilities of a prompt" in said.stderr
    assert "agreement" in said.stderr
