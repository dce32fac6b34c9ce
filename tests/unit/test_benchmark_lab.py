"""The lab of the benchmarks: what it computes fast is what the whole pipeline says."""

from __future__ import annotations

import importlib
import math
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import StopSignal, VirtualClock
from autotune.launch.launcher import Ticket
from autotune.study.virtual_server import VirtualServer
from autotune.study.virtual_session import Shelf, VirtualMeasurer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def lab() -> Iterator[Any]:
    """The module `lab`, with its siblings importable."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("lab")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def problems(lab: Any) -> Any:
    return importlib.import_module("lab_problems")


def small(problems: Any, scene: str) -> Any:
    return replace(problems.SCENES[scene], duration_s=24.0)


@pytest.mark.parametrize("scene", ["rag", "agents"])
def test_the_truth_is_what_the_whole_pipeline_measures_without_noise(
    lab: Any, problems: Any, tmp_path: Path, scene: str
) -> None:
    problem = problems.Problem(
        name=scene, scene=small(problems, scene), aim="ttft", limits={"tpot_p95": 0.05}
    )
    one = lab.Lab(problem, tmp_path / "lab")
    truth = lab.Truth(one, tmp_path / "truth")
    machine = lab.HiddenMachine(problem.scene.machine, seed=None)
    measurer = VirtualMeasurer(
        replace(one.study.measure, gpus=()), Shelf(), clock=VirtualClock(), stop=StopSignal()
    )
    every = list(truth.candidates())
    served = 0
    for candidate in random.Random(2).sample(every, 12):
        seen = truth.seen(candidate)
        plan = one.study.engine.plan(candidate, one.study.target)
        launch = machine.launch(plan, 0)
        if launch.engine is None:
            assert seen is None
            continue
        ticket = Ticket(study_id="t", trial=0, directory=tmp_path)
        server = VirtualServer(plan, ticket, launch)
        session = measurer.session(server, one.study.search_trace, tmp_path, None, salt="x")
        session.warm_up()
        result = session.replay(deadline_s=None, on_progress=None)
        if result.aborted == "server_died":
            assert seen is None
            continue
        metrics = session.measurement(result).metrics
        assert seen is not None
        assert seen["ttft_p95"] == pytest.approx(metrics["ttft_p95_s"])
        assert seen["tpot_p95"] == pytest.approx(metrics["tpot_p95_s"])
        served += 1
        assert not truth.too_slow(candidate, seen["ttft_p95"])
    assert served >= 4


def test_a_launch_has_two_percent_noise_and_its_replays_differ_by_less(lab: Any) -> None:
    noise = importlib.import_module("hidden_noise")
    launches = [noise.Blur(seed) for seed in range(3000)]
    pairs = [[blur.next_replay() for _ in range(2)] for blur in launches]
    for which in (0, 1):
        logs = [math.log(pair[0][which]) for pair in pairs]
        within = [math.log(pair[0][which] / pair[1][which]) for pair in pairs]
        assert statistics.stdev(logs) == pytest.approx(noise.NOISE, rel=0.1)
        assert statistics.stdev(within) < 0.8 * noise.NOISE
    speeds = [math.log(noise.Blur(seed, capacity=True).speed) for seed in range(3000)]
    assert statistics.stdev(speeds) == pytest.approx(noise.NOISE, rel=0.1)
    assert noise.Blur(None).next_replay() == (1.0, 1.0)


def test_the_problems_have_today_among_their_settings_and_some_that_fail(
    lab: Any, problems: Any, tmp_path: Path
) -> None:
    for name in problems.SCENES:
        scene = small(problems, name)
        problem = problems.Problem(name=name, scene=scene, aim="ttft", limits={})
        one = lab.Lab(problem, tmp_path / name)
        truth = lab.Truth(one, tmp_path / f"{name}-truth")
        every = list(truth.candidates())
        assert 5 <= len(scene.knobs) <= 8
        assert one.study.baseline in every
        starts = [truth.starts(candidate) for candidate in random.Random(0).sample(every, 60)]
        assert 0 < sum(starts) < len(starts)


def test_a_capacity_is_the_highest_rate_at_which_limits_hold_however_it_is_below(
    lab: Any, problems: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of a space is found by asking for it, and so are others judged."""
    capacity = importlib.import_module("autotune.search.capacity")
    problem = problems.Problem(
        name="rag", scene=small(problems, "rag"), aim="capacity", limits={"tpot_p95": 1.0}
    )
    one = lab.Lab(problem, tmp_path / "lab")
    truth = lab.Truth(one, tmp_path / "truth")
    held = {capacity.rung_of(rate) for rate in (1.0, 1.2, 1.9, 2.0)}
    monkeypatch.setattr(
        type(truth), "holds", lambda self, candidate, rate: capacity.rung_of(rate) in held
    )
    best = capacity.multiplier_of(capacity.rung_of(2.1))
    value, violation = truth.value(one.study.baseline, best=best)
    assert (capacity.rung_of(value), violation) == (max(held), 0.0)


def test_what_would_be_confirmed_is_told_after_each_launch_and_may_end_the_search(
    lab: Any, problems: Any, tmp_path: Path
) -> None:
    problem = problems.Problem(
        name="rag", scene=small(problems, "rag"), aim="ttft", limits={"tpot_p95": 1.0}
    )
    one = lab.Lab(problem, tmp_path)
    asked = []

    def enough(count: int, choice: Any) -> bool:
        asked.append((count, choice))
        return count >= 4

    _, records = one.run("random", 0, trials=9, enough=enough)
    assert [r.number for r in records] == [0, 1, 2, 3]
    assert len(one.choices) == 4
    assert [(n, c) for n, c in asked if n == 4] == [(4, one.choices[-1])]
    measured = [r for r in records if r.values]
    best = min(r.values["minimize ttft_p95"] for r in measured)
    assert one.choices[-1].values["minimize ttft_p95"] <= best * 1.05
