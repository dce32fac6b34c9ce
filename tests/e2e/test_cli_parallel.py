"""Several launches at a time: real servers, stopped or killed in the middle, and resumed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from autotune.launch.container_options import LABEL_STUDY

pytestmark = pytest.mark.e2e

TWO = {
    "engine": {"kind": "simulated", "args": {"sim-profile": "quickstart", "sim-startup": 3.0}},
    "budget": {"trials": 4},
    # No model: its calibration may take longer than the first of two launches
    "search": {"sampler": "qmc", "seed": 7, "repeats": 0, "parallel": 2},
}


def assert_ends_well(bench: Any, looks: Any, kept: dict[str, bytes]) -> None:
    """Resume ends the study; nothing was lost, and no settings were measured twice."""
    answer = bench.run("resume", bench.run_folder, timeout_s=180)
    assert answer.returncode in (0, 3), answer.stderr
    assert "Traceback" not in answer.stderr
    assert {name: data for name, data in bench.outcomes().items() if name in kept} == kept
    assert looks.marked(bench.study_id()) == []
    records = [
        json.loads(path.read_text())
        for path in sorted(bench.run_folder.glob("trials/[0-9]???/outcome.json"))
    ]
    assert [record["number"] for record in records] == list(range(len(records)))
    ended = [record["candidate"] for record in records if record["state"] != "interrupted"]
    assert len(ended) == len(set(ended)) == 4
    assert (bench.run_folder / "report.html").is_file()


def both_running(bench: Any, looks: Any) -> None:
    bench.await_phase("launching", 1)
    bench.await_phase("launching", 2)
    looks.until(lambda: len(looks.marked(bench.study_id())) >= 2, "two servers")


def test_two_slots_measure_at_the_same_time(bench: Any, looks: Any) -> None:
    said = bench.run("tune", bench.write(**TWO), "--out", bench.run_folder, timeout_s=90)
    assert said.returncode == 0, said.stderr
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    for line in (bench.run_folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "trial_started":
            began[event["trial"]] = event["elapsed_s"]
        elif event["kind"] == "trial_finished":
            ended[event["number"]] = event["elapsed_s"]
    assert sorted(ended) == [0, 1, 2, 3]
    assert began[1] >= ended[0]  # the baseline alone
    assert began[2] < ended[1]
    plans = [bench.json(f"trials/{number:04d}/plan.json") for number in range(4)]
    assert len({json.dumps(plan) for plan in plans}) == 4


def test_ctrl_c_with_two_servers_up_ends_both_and_can_be_resumed(bench: Any, looks: Any) -> None:
    tuner = bench.start("tune", bench.write(**TWO), "--out", bench.run_folder)
    both_running(bench, looks)
    tuner.send_signal(signal.SIGINT)
    said = looks.finish(tuner)
    assert said.returncode == 130
    assert "Traceback" not in said.stderr
    assert looks.marked(bench.study_id()) == []
    assert bench.states() == ["measured", "interrupted", "interrupted"]
    assert list(bench.run_folder.glob("trials/*.partial")) == []
    assert_ends_well(bench, looks, bench.outcomes())


def test_kill_9_with_two_servers_up_then_resume(bench: Any, looks: Any) -> None:
    tuner = bench.start("tune", bench.write(**TWO), "--out", bench.run_folder)
    both_running(bench, looks)
    kept = bench.outcomes()
    os.kill(tuner.pid, signal.SIGKILL)
    looks.finish(tuner)
    assert len(list(bench.run_folder.glob("trials/*.partial"))) == 2
    assert_ends_well(bench, looks, kept)


@pytest.fixture
def names() -> Iterator[Callable[[str], list[str]]]:
    """Names of a study's containers, running or not."""
    client = docker.from_env()

    def listed(study_id: str) -> list[str]:
        found = client.api.containers(all=True, filters={"label": f"{LABEL_STUDY}={study_id}"})
        return [entry["Names"][0] for entry in found]

    yield listed
    client.close()


@pytest.mark.docker
def test_two_containers_at_the_same_time_end_with_ctrl_c_and_the_study_goes_on(
    bench: Any, looks: Any, containers: dict[str, Any], names: Callable[[str], list[str]]
) -> None:
    study = {**TWO, "engine": {**TWO["engine"], **containers}}
    tuner = bench.start("tune", bench.write(**study), "--out", bench.run_folder)
    looks.until(lambda: len(names(bench.study_id())) == 2, "two containers", 90)
    tuner.send_signal(signal.SIGINT)
    said = looks.finish(tuner)
    assert said.returncode == 130, said.stderr
    assert names(bench.study_id()) == []
    assert_ends_well(bench, looks, bench.outcomes())
    assert names(bench.study_id()) == []
