"""Slots: who gets which GPUs and cores, and threads that run trials beside each other."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from autotune.errors import EnvironmentFault, InputError
from autotune.measure.outcome import Stopped
from autotune.spec.model import StudySpec
from autotune.study import client, trial
from autotune.study.gpu_slots import gpu_slots, resolved
from autotune.study.record import TrialRecord
from autotune.study.slots import SlotExecutor, share
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.trial import TrialExecutor


def spec(engine: dict[str, Any], **search: Any) -> StudySpec:
    return StudySpec.model_validate(
        {
            "name": "s", "model": "m", "engine": engine, "space": "vllm",
            "workload": {"path": "w"}, "objective": "minimize ttft_p95", "search": search,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "search", "expected"),
    [
        ({}, {}, (None,)),
        ({"gpus": [0, 1]}, {}, (("0", "1"),)),
        ({"gpus": [0, 1, 2, 3], "gpus_per_trial": 1}, {}, (("0",), ("1",), ("2",), ("3",))),
        ({"gpus": [4, 5, 6, 7], "gpus_per_trial": 2}, {}, (("4", "5"), ("6", "7"))),
        ({"gpus": [0, 1, 2], "gpus_per_trial": 2}, {}, (("0", "1"),)),
        ({"gpus": [0, 1, 2, 3], "gpus_per_trial": 1}, {"parallel": 2}, (("0",), ("1",))),
        ({"kind": "simulated"}, {"parallel": 3}, (None, None, None)),
        ({"gpus": []}, {"parallel": 2}, ((), ())),
    ],
)
def test_gpus_are_dealt_out_in_order(
    engine: dict[str, Any], search: dict[str, Any], expected: Any
) -> None:
    assert gpu_slots(spec(engine, **search), []) == expected


def test_gpus_that_are_not_named_are_those_of_the_machine() -> None:
    study = resolved(spec({"gpus_per_trial": 2}), ["0", "1", "2", "3"])
    assert study.engine.gpus == ("0", "1", "2", "3")
    assert gpu_slots(study, []) == (("0", "1"), ("2", "3"))
    assert resolved(spec({}), ["0"]).engine.gpus is None


@pytest.mark.parametrize(
    ("engine", "search", "found", "words"),
    [
        ({"gpus": [0, 1], "gpus_per_trial": 4}, {}, [], "4, but the study has 2"),
        ({"gpus_per_trial": 1}, {}, [], "no GPU was found"),
        ({"gpus": [0, 1], "gpus_per_trial": 1}, {"parallel": 8}, [], "2 GPUs hold 2 launches of 1"),
        ({"gpus": [0, 1]}, {"parallel": 2}, [], "each launch gets all 2 GPUs"),
        ({}, {"parallel": 2}, ["0"], "each launch gets all 1 GPUs"),
        ({"gpus": [0, 1], "gpus_per_trial": 1, "port": 8000}, {}, [], "share port 8000"),
    ],
)
def test_more_launches_than_the_machine_holds_are_refused(
    engine: dict[str, Any], search: dict[str, Any], found: list[str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        gpu_slots(spec(engine, **search), found)


def test_a_slot_launches_on_its_own_gpus_and_sends_from_its_own_cores(
    lab: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "own_cores", lambda: tuple(range(16)))
    engine = {"kind": "simulated", "gpus": [0, 1, 2, 3], "gpus_per_trial": 1}
    study = lab.prepare(engine=engine).study
    assert study.target.gpus == ("0",)
    assert study.facts["gpu.count"] == 0  # of this machine; a rule sees what one launch gets
    assert study.gpus_per_launch == 1
    parts = [share(study, slot) for slot in range(4)]
    plans = [part.engine.plan(make.candidate(16), part.target) for part in parts]
    assert [plan.gpus for plan in plans] == [("0",), ("1",), ("2",), ("3",)]
    assert [part.measure.gpus for part in parts] == [("0",), ("1",), ("2",), ("3",)]
    cores = [part.measure.cores for part in parts]
    assert cores == [tuple(range(at, at + 4)) for at in (0, 4, 8, 12)]


def test_a_single_slot_is_the_study_itself(lab: Any) -> None:
    study = lab.prepare().study
    assert share(study, 0) is study


def test_slots_outlive_a_resume(lab: Any) -> None:
    from autotune.study.snapshot import read_snapshot

    engine = {"kind": "simulated", "gpus": [2, 3], "gpus_per_trial": 1}
    study = lab.prepare(engine=engine).snapshot().study
    again = read_snapshot(lab.directory, clock=lab.clock, stop=lab.stop)
    assert again.slots == study.slots == (("2",), ("3",))
    assert again.target.gpus == ("2",)


def test_fewer_cores_than_slots_pin_nobody_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "own_cores", lambda: (0, 1))
    assert client.shares(4) == [(0,), (1,), (0,), (1,)]
    assert client.shares(1) == [None]


def task(make: Any, number: int, slot: int) -> TrialTask:
    return TrialTask(number=number, role="search", candidate=make.candidate(number), slot=slot)


def ended(task: TrialTask) -> TrialRecord:
    return TrialRecord(number=task.number, role="search", state="interrupted", params={})


def test_trials_of_several_slots_run_at_the_same_time(make: Any) -> None:
    together = threading.Barrier(3, timeout=20)
    ran: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def run_in(slot: int) -> Any:
        def run(task: TrialTask) -> Any:
            ran[slot].append(task.number)
            together.wait()
            return ended(task), Stopped()

        return run

    executor = SlotExecutor([run_in(slot) for slot in range(3)])
    assert executor.slots == 3
    for number in range(3):
        executor.submit(task(make, number, slot=2 - number))
    found = [executor.wait() for _ in range(3)]
    assert sorted(one.record.number for one in found) == [0, 1, 2]
    assert ran == {0: [2], 1: [1], 2: [0]}


def test_a_trials_error_is_raised_where_it_is_waited_for_and_others_go_on(make: Any) -> None:
    def run(task: TrialTask) -> Any:
        if task.number == 0:
            raise EnvironmentFault(message="no disk")
        return ended(task), Stopped()

    executor = SlotExecutor([run, run])
    executor.submit(task(make, 0, 0))
    executor.submit(task(make, 1, 1))
    errors, found = [], []
    for _ in range(2):
        try:
            found.append(executor.wait().record.number)
        except EnvironmentFault as fault:
            errors.append(fault.message)
    assert (found, errors) == ([1], ["no disk"])


def test_a_single_slot_runs_in_the_callers_thread(make: Any) -> None:
    threads = []

    def run(task: TrialTask) -> Any:
        threads.append(threading.current_thread())
        return ended(task), Stopped()

    executor = SlotExecutor([run])
    executor.submit(replace(task(make, 0, 0)))
    assert threads == []
    assert executor.wait().record.number == 0
    assert threads == [threading.current_thread()]


def test_only_the_memory_of_its_own_gpus_has_to_be_back_before_a_launch(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(trial, "memory_used", lambda gpus: asked.append(gpus) or {})
    engine = {"kind": "simulated", "gpus": [0, 1, 2, 3], "gpus_per_trial": 2}
    study = lab.prepare(engine=engine).study
    for slot in range(2):
        TrialExecutor(
            share(study, slot), lab.directory, EventStream(lab.clock, lab.directory),
            clock=lab.clock, stop=lab.stop, render_script=lambda plan, number: "",
        )  # fmt: skip
    assert asked == [("0", "1"), ("2", "3")]
