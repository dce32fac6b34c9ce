"""What a killed run leaves is closed, nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.clock import StopSignal, VirtualClock
from autotune.study.directory import write_json
from autotune.study.phases import PhaseClock, phase_history
from autotune.study.record import TrialRecord
from autotune.study.resume import take_over
from autotune.study.stream import EventStream


def begin(lab: Any, number: int, role: str, params: dict[str, Any]) -> Any:
    folder = lab.directory.open_trial(number)
    EventStream(lab.clock, lab.directory).emit(
        "trial_started", trial=number, role=role, params=params, changed={}
    )
    return folder


def test_broken_trial_is_closed_as_interrupted_with_what_is_known_of_it(lab: Any) -> None:
    lab.prepare()
    begin(lab, 0, "baseline", {"max-num-seqs": 8})
    told = take_over(lab.study, lab.directory)
    (record,) = lab.directory.records()
    assert (record.number, record.role, record.state) == (0, "baseline", "interrupted")
    assert record.params == {"max-num-seqs": 8}
    assert not record.feasible
    assert told == ["trial 0 is closed as interrupted"]


def test_trial_killed_before_its_first_event_is_closed_without_settings(lab: Any) -> None:
    lab.prepare()
    lab.directory.open_trial(5)
    take_over(lab.study, lab.directory)
    assert lab.directory.records()[0].params == {}
    assert lab.directory.next_number() == 6


def test_trial_killed_after_its_outcome_was_written_is_kept(lab: Any, make: Any) -> None:
    lab.prepare()
    folder = begin(lab, 0, "search", {"max-num-seqs": 16})
    done = TrialRecord(
        number=0,
        role="search",
        state="measured",
        params={"max-num-seqs": 16},
        values={"minimize ttft_p95": 0.05},
        feasible=True,
    )
    write_json(folder / "outcome.json", done.to_json())
    told = take_over(lab.study, lab.directory)
    assert lab.directory.records() == [done]
    assert told == ["trial 0 had ended; it is kept"]


def test_shards_of_a_killed_replay_are_removed(lab: Any) -> None:
    lab.prepare()
    folder = begin(lab, 0, "search", {})
    (folder / "replay-x7").mkdir()
    (folder / "replay-x7" / "bodies.bin").write_bytes(b"prompts")
    (folder / "server.log").write_text("kept\n")
    take_over(lab.study, lab.directory)
    assert sorted(p.name for p in lab.directory.trial(0).iterdir()) == [
        "outcome.json",
        "server.log",
    ]


def test_resumed_run_expects_of_a_phase_what_it_took_before(lab: Any, make: Any) -> None:
    lab.prepare()
    for number, launching in enumerate([4.0, 6.0, 8.0]):
        record = TrialRecord(
            number=number,
            role="search",
            state="measured",
            params={},
            seconds={"launching": launching, "total": launching},
        )
        lab.directory.close_trial(lab.directory.open_trial(number), record)
    clock, heard = VirtualClock(), []
    events = EventStream(clock, lab.directory, [heard.append])
    phases = PhaseClock(events, clock, phase_history(lab.directory), 3)
    with phases.phase("launching"):
        clock.sleep(5.0)
    assert heard[0].data["expected_s"] == 6.0
    assert phases.seconds == {"launching": 5.0}


def test_stop_signal_is_not_needed_to_take_over(lab: Any) -> None:
    lab.stop = StopSignal()
    assert take_over(lab.prepare().study, lab.directory) == []


def test_e04_a_run_that_was_killed_in_trial_five_goes_on_as_if_it_had_been_stopped(
    lab: Any, make: Any
) -> None:
    class Killed(BaseException):
        pass

    lab.script = lambda task: Killed() if task.number == 5 else make.served(0.1)
    every = [make.candidate(n) for n in range(16, 30)]
    with pytest.raises(Killed):
        lab.prepare(budget={"trials": 8}).runs(*every)
    assert [number for number, _ in lab.directory.partial_trials()] == [5]
    again = lab.tasks[-1].candidate
    EventStream(lab.clock, lab.directory).emit(
        "trial_started", trial=5, role="search", params=dict(again.params), changed={}
    )

    lab.script = lambda task: make.served(0.1)
    take_over(lab.study, lab.directory)
    end = lab.runs(*every)
    records = lab.directory.records()
    assert [r.number for r in records] == list(range(9))
    assert [r.number for r in records if r.state == "interrupted"] == [5]
    assert [r.number for r in records if r.candidate == again] == [5, 6]  # tried again, once
    assert sum(r.state == "measured" for r in records) == 8  # the budget counts what finished
    assert end.error is None
