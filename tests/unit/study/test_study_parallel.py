"""Several launches at the same time: all slots busy, every rule of the loop as with one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.errors import InputError, Interrupted
from autotune.measure.outcome import Unmeasurable


def parallel(count: int, **more: Any) -> dict[str, Any]:
    return {"seed": 1, "repeats": 0, "parallel": count, **more}


def twenty(make: Any) -> list[Any]:
    return [make.candidate(n) for n in range(16, 36)]


def machine() -> Unmeasurable:
    return Unmeasurable(reason="environment", message="the disk is full")


def faster(make: Any) -> Any:
    return lambda task: make.served(0.1 if task.candidate == make.baseline else 0.05)


def test_four_slots_run_more_than_three_and_a_half_times_the_trials_in_the_same_time(
    lab: Any, make: Any
) -> None:
    every = [make.candidate(n) for n in range(16, 400)]
    lab.prepare(budget={"time": "10m"}, search=parallel(4)).runs(*every)
    assert lab.most_at_once == 4
    assert lab.clock.monotonic() <= 600
    assert len(lab.tasks) >= 3.5 * 60


def test_several_slots_try_the_same_settings_once_each(lab: Any, make: Any) -> None:
    end = lab.prepare(budget={"trials": 21}, search=parallel(4)).runs(*twenty(make))
    assert [t.candidate for t in lab.tasks] == [make.baseline, *twenty(make)]
    assert [r.number for r in lab.directory.records()] == list(range(21))
    assert lab.directory.partial_trials() == []
    assert {t.slot for t in lab.tasks} == {0, 1, 2, 3}
    assert end.stopped_because == "all 21 trials are done"


def test_baseline_runs_alone(lab: Any, make: Any) -> None:
    def script(task: Any) -> Any:
        if task.role == "baseline":
            assert len(lab.tasks) == 1
        return make.served(0.1)

    lab.script = script
    lab.prepare(budget={"trials": 5}, search=parallel(4)).runs(*twenty(make))


def test_running_trials_count_in_the_budget(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 6}, search=parallel(4)).runs(*twenty(make))
    assert len(lab.tasks) == 6


def test_nothing_is_begun_that_cannot_finish_in_any_slot(lab: Any, make: Any) -> None:
    lab.prepare(budget={"time": "45s"}, search=parallel(4)).runs(*twenty(make))
    assert len(lab.tasks) == 1 + 3 * 4
    assert lab.clock.monotonic() <= 45.0


def test_gpu_hours_are_spent_by_all_slots_together(lab: Any, make: Any) -> None:
    engine = {"kind": "simulated", "gpus": [0, 1, 2, 3, 4, 5, 6, 7], "gpus_per_trial": 2}
    lab.prepare(budget={"gpu_hours": 0.05}, engine=engine, search=parallel(4))
    end = lab.runs(*twenty(make))
    # 0.05 h x 3600 = 180 GPU seconds; a launch takes 10 s on two GPUs
    assert len(lab.tasks) == 9
    assert "GPU-hours" in end.stopped_because


def test_gpu_hours_keep_the_confirmation_back(lab: Any, make: Any) -> None:
    lab.script = faster(make)
    search = {"repeats": 3, "extra_repeats": 0}
    lab.prepare(budget={"gpu_hours": 0.05}, search=search).runs(*twenty(make))
    roles = [task.role for task in lab.tasks]
    assert roles.count("confirm") == 6
    assert len(roles) == 18
    assert all(task.deadline_s is not None for task in lab.tasks)


def test_interrupt_closes_every_running_trial_and_a_resumed_run_goes_on(
    lab: Any, make: Any
) -> None:
    def script(task: Any) -> Any:
        if task.number == 6:
            lab.stop.request()
            return Interrupted(message="stopped by the user")
        return make.served(0.1)

    lab.script = script
    end = lab.prepare(budget={"trials": 21}, search=parallel(4)).runs(*twenty(make))
    assert end.exit_code == 130
    assert lab.directory.partial_trials() == []
    ended = [r for r in lab.directory.records() if r.state == "interrupted"]
    assert {r.number for r in ended} == {6, 7, 8, 9}
    assert json.loads((lab.directory.path / "verdict.json").read_text())["interrupted"]

    lab.stop.__init__()
    lab.script = lambda task: make.served(0.1)
    lab.runs(*twenty(make))
    measured = [r.candidate for r in lab.directory.records() if r.state == "measured"]
    assert len(measured) == len(set(measured)) == 21
    assert [r.number for r in lab.directory.records()] == list(range(25))


def test_error_of_one_trial_waits_for_the_others_and_keeps_their_results(
    lab: Any, make: Any
) -> None:
    lab.script = lambda task: (
        make.diagnosis("study", "unknown_flag", flag="max-modl-len")
        if task.number == 2
        else make.served(0.1)
    )
    end = lab.prepare(budget={"trials": 21}, search=parallel(4)).runs(*twenty(make))
    assert isinstance(end.error, InputError)
    assert lab.directory.partial_trials() == []
    states = [r.state for r in lab.directory.records()]
    assert states.count("measured") == len(states) - 1
    assert len(states) >= 5


def test_fault_of_the_machine_is_tried_again_in_the_same_slot(lab: Any, make: Any) -> None:
    lab.script = lambda task: machine() if task.number == 3 else make.served(0.1)
    end = lab.prepare(budget={"trials": 9}, search=parallel(4)).runs(*twenty(make))
    first = lab.tasks[3]
    again = [t for t in lab.tasks if t.candidate == first.candidate]
    assert [t.slot for t in again] == [first.slot, first.slot]
    assert end.error is None


def test_doubted_machine_is_checked_while_others_run(lab: Any, make: Any) -> None:
    broken = {3, 4, 5}
    lab.script = lambda task: (
        make.diagnosis("unknown", "engine_died") if task.number in broken else make.served(0.1)
    )
    end = lab.prepare(budget={"trials": 12}, search=parallel(4)).runs(*twenty(make))
    assert end.error is None
    roles = [r.role for r in lab.directory.records()]
    assert roles.count("check") == 1
    searched = [t.candidate for t in lab.tasks if t.role == "search"]
    assert len(searched) == len(set(searched)) == 11


def test_both_sides_of_a_pair_run_in_one_slot_and_pairs_beside_each_other(
    lab: Any, make: Any
) -> None:
    lab.script = faster(make)
    end = lab.prepare(budget={"trials": 2}, search=parallel(4, repeats=4)).runs(make.candidate(16))
    launched = [t for t in lab.tasks if t.role == "confirm"]
    by_pair = {n: [t for t in launched if t.pair == n] for n in range(4)}
    assert all(len({t.slot for t in pair}) == 1 for pair in by_pair.values())
    assert len({pair[0].slot for pair in by_pair.values()}) == 4
    firsts = [pair[0].candidate == make.baseline for pair in by_pair.values()]
    assert firsts == [True, False, True, False]  # at any time as many of one side as of the other
    assert end.verdict.confirmed
    assert lab.clock.monotonic() == 10 + 10 + 20


def test_relative_limits_of_parallel_pairs_refer_to_the_same_traffic(lab: Any, make: Any) -> None:
    lab.script = faster(make)
    limits = ["tpot_p95 <= 1.1 x baseline"]
    lab.prepare(constraints=limits, budget={"trials": 2}, search=parallel(4, repeats=4))
    lab.runs(make.candidate(16))
    launched = [t for t in lab.tasks if t.role == "confirm"]
    assert [t.candidate == make.baseline for t in launched] == [True] * 4 + [False] * 4


def test_finalist_that_fails_beside_others_is_replaced(lab: Any, make: Any) -> None:
    values = {make.baseline: 0.1, make.candidate(16): 0.04, make.candidate(32): 0.05}
    lab.script = lambda task: (
        make.diagnosis("candidate", "oom_under_load")
        if task.role == "confirm" and task.candidate == make.candidate(16) and task.pair == 1
        else make.served(values[task.candidate])
    )
    lab.prepare(budget={"trials": 3}, search=parallel(2, repeats=3))
    end = lab.runs(make.candidate(16), make.candidate(32))
    assert (end.verdict.verdict, end.verdict.best) == ("better", 2)
    assert len(end.verdict.pairs) == 3
    baselines = [t.pair for t in lab.tasks if t.role == "confirm" and t.candidate == make.baseline]
    assert sorted(baselines) == [0, 1, 2]


def test_time_of_earlier_parallel_runs_counts_once(lab: Any, make: Any) -> None:
    stop_at = iter([True])

    def script(task: Any) -> Any:
        if task.number == 5 and next(stop_at, False):
            return Interrupted(message="stopped by the user")
        return make.served(0.1)

    lab.script = script
    lab.prepare(budget={"time": "45s"}, search=parallel(4)).runs(*twenty(make))
    assert lab.clock.monotonic() == pytest.approx(30.0)
    lab.runs(*twenty(make))
    started = [e for e in lab.heard if e.kind == "study_started"][-1]
    assert started.data["used_s"] == pytest.approx(30.0)
