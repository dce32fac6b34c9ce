"""The loop of a study: what is launched, in which order, and when it ends."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.errors import InputError, Interrupted

RELATIVE = ["tpot_p95 <= 1.1 x baseline"]


def is_baseline(task: Any) -> bool:
    return bool(task.role == "baseline")


def test_trial_zero_is_the_baseline_and_the_search_follows(lab: Any, make: Any) -> None:
    end = lab.prepare().runs(make.candidate(16), make.candidate(32))
    assert lab.states() == ["baseline measured", "search measured", "search measured"]
    assert [t.candidate for t in lab.tasks] == [
        make.baseline,
        make.candidate(16),
        make.candidate(32),
    ]
    assert end.stopped_because == "every setting of the space was tried"
    assert end.exit_code == 0


def test_baseline_that_cannot_start_ends_a_study_whose_limits_refer_to_it(
    lab: Any, make: Any
) -> None:
    lab.script = lambda task: make.diagnosis("candidate", "no_room_for_kv_cache")
    end = lab.prepare(constraints=RELATIVE).runs(make.candidate(16))
    assert lab.states() == ["baseline infeasible"]
    assert isinstance(end.error, InputError)
    assert end.exit_code == 2
    assert "the baseline does not work" in end.error.message


def test_baseline_that_cannot_start_is_no_obstacle_to_absolute_limits(lab: Any, make: Any) -> None:
    lab.script = lambda task: (
        make.diagnosis("candidate", "no_room_for_kv_cache")
        if is_baseline(task)
        else make.served(0.1)
    )
    end = lab.prepare().runs(make.candidate(16))
    assert lab.states() == ["baseline infeasible", "search measured"]
    assert end.exit_code == 0
    assert end.verdict.best == 1
    assert any("goes on without" in e.data.get("message", "") for e in lab.heard)


class JumpingClock(VirtualClock):
    """A wall clock that is set by hours at every look, back and forth."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def utcnow(self) -> datetime:
        self._looks += 1
        return super().utcnow() + timedelta(hours=(-7) ** (self._looks % 6))


def test_a_wall_clock_that_jumps_changes_nothing_but_the_time_stamps(lab: Any, make: Any) -> None:
    lab.clock = JumpingClock()
    end = lab.prepare(budget={"time": "45s"}).runs(*[make.candidate(n) for n in range(16, 30)])
    assert end.error is None
    assert len(lab.tasks) == 4
    assert [e.elapsed_s for e in lab.heard] == sorted(e.elapsed_s for e in lab.heard)
    assert [r.seconds["total"] for r in lab.directory.records()] == [10.0] * 4
    before = len(lab.tasks)
    lab.runs(*[make.candidate(n) for n in range(30, 40)])
    assert len(lab.tasks) == before  # the time that was used is remembered as seconds, not dates


def test_budget_in_trials_counts_baseline_and_search(lab: Any, make: Any) -> None:
    end = lab.prepare(budget={"trials": 3}).runs(*[make.candidate(n) for n in (16, 32, 64)])
    assert len(lab.tasks) == 3
    assert end.stopped_because == "all 3 trials are done"


def test_budget_in_time_begins_nothing_that_cannot_end(lab: Any, make: Any) -> None:
    end = lab.prepare(budget={"time": "45s"}).runs(*[make.candidate(n) for n in range(16, 30)])
    assert len(lab.tasks) == 4
    assert lab.clock.monotonic() == 40.0
    assert "5 s are left" in end.stopped_because


def test_confirmation_is_kept_back_from_the_time(lab: Any, make: Any) -> None:
    lab.script = lambda task: make.served(0.1 if task.candidate == make.baseline else 0.05)
    lab.prepare(budget={"time": "95s"}, search={"repeats": 3})
    lab.runs(*[make.candidate(n) for n in range(16, 40)])
    roles = [task.role for task in lab.tasks]
    assert roles.count("confirm") == 4  # half of the time bears two pairs
    assert lab.clock.monotonic() <= 95.0


def test_time_that_the_search_left_over_goes_to_the_third_pair(lab: Any, make: Any) -> None:
    """Its share bears two pairs, which give no interval; the space is used up long before."""
    lab.script = lambda task: make.served(0.1 if task.candidate == make.baseline else 0.05)
    lab.prepare(budget={"time": "95s"}, search={"repeats": 3, "extra_repeats": 0})
    end = lab.runs(make.candidate(16))
    roles = [task.role for task in lab.tasks]
    assert roles == ["baseline", "search", *["confirm"] * 6]
    assert end.verdict.confirmed
    before = len(lab.tasks)
    lab.runs(make.candidate(16))
    assert len(lab.tasks) == before


def test_first_trial_of_a_timed_study_may_not_take_much_longer_than_the_study(
    lab: Any, make: Any
) -> None:
    lab.prepare(budget={"time": "45s"}).runs(make.candidate(16), make.candidate(32))
    assert lab.tasks[0].deadline_s == pytest.approx(55.0)
    assert lab.tasks[1].deadline_s == pytest.approx(35.0 + 10.0 + 10.0)


def test_interrupted_trial_is_kept_apart_and_its_settings_stay_available(
    lab: Any, make: Any
) -> None:
    lab.script = lambda task: (
        make.served(0.1) if is_baseline(task) else Interrupted(message="stopped by the user")
    )
    end = lab.prepare().runs(make.candidate(16))
    assert end.exit_code == 130
    assert lab.states() == ["baseline measured", "search interrupted"]
    verdict = json.loads((lab.directory.path / "verdict.json").read_text())
    assert verdict["interrupted"] is True

    lab.script = lambda task: make.served(0.05)
    end = lab.runs(make.candidate(16))
    assert lab.tasks[-1].candidate == make.candidate(16)
    assert lab.states()[2:] == ["search measured"]
    assert [r.number for r in lab.directory.records()] == [0, 1, 2]
    assert [k.candidate for k in lab.proposer.known] == [make.baseline]


def test_interrupted_baseline_is_measured_again_and_is_the_one_compared_with(
    lab: Any, make: Any
) -> None:
    lab.script = lambda task: Interrupted(message="stopped by the user")
    lab.prepare(constraints=RELATIVE).runs()
    lab.script = lambda task: make.served(0.1 if is_baseline(task) else 0.05)
    end = lab.runs(make.candidate(16))
    assert lab.states() == ["baseline interrupted", "baseline measured", "search measured"]
    assert end.verdict.baseline_value == 0.1
    assert lab.directory.records()[2].feasible


def test_confirmation_launches_pairs_in_alternating_order(lab: Any, make: Any) -> None:
    lab.script = lambda task: make.served(0.1 if task.candidate == make.baseline else 0.05)
    end = lab.prepare(budget={"trials": 2}, search={"repeats": 3}).runs(make.candidate(16))
    confirm = [(t.pair, t.candidate == make.baseline) for t in lab.tasks if t.role == "confirm"]
    assert confirm == [(0, True), (0, False), (1, False), (1, True), (2, True), (2, False)]
    assert all(t.held_out for t in lab.tasks if t.role == "confirm")
    assert end.verdict.verdict == "better"
    assert end.verdict.confirmed
    assert len(end.verdict.pairs) == 3


def test_finalist_that_fails_when_launched_again_hands_over_to_the_next(
    lab: Any, make: Any
) -> None:
    values = {make.baseline: 0.1, make.candidate(16): 0.04, make.candidate(32): 0.05}
    lab.script = lambda task: (
        make.diagnosis("candidate", "oom_under_load")
        if task.role == "confirm" and task.candidate == make.candidate(16) and task.pair == 1
        else make.served(values[task.candidate])
    )
    lab.prepare(budget={"trials": 3}, search={"repeats": 3})
    end = lab.runs(make.candidate(16), make.candidate(32))
    confirm = [(t.pair, t.candidate.params["max-num-seqs"]) for t in lab.tasks
               if t.role == "confirm"]  # fmt: skip
    assert confirm[:3] == [(0, 8), (0, 16), (1, 16)]
    assert confirm[3:] == [(0, 32), (1, 32), (1, 8), (2, 8), (2, 32)]
    assert end.verdict.verdict == "better"
    assert end.verdict.confirmed
    assert end.verdict.best == 2
    assert len(end.verdict.pairs) == 3


def test_resumed_run_goes_on_inside_the_confirmation(lab: Any, make: Any) -> None:
    lab.script = lambda task: (
        Interrupted(message="stopped by the user")
        if task.role == "confirm" and task.pair == 1
        else make.served(0.1 if task.candidate == make.baseline else 0.05)
    )
    lab.prepare(budget={"trials": 2}, search={"repeats": 2}).runs(make.candidate(16))
    assert lab.states()[-1] == "confirm interrupted"
    before = len(lab.tasks)
    lab.script = lambda task: make.served(0.1 if task.candidate == make.baseline else 0.05)
    end = lab.runs(make.candidate(16), make.candidate(32))
    assert [(t.role, t.pair) for t in lab.tasks[before:]] == [("confirm", 1), ("confirm", 1)]
    assert [t.number for t in lab.tasks] == list(range(7))
    assert len(end.verdict.pairs) == 2


def test_relative_limits_of_a_confirmation_never_refer_to_the_finalist_itself(
    lab: Any, make: Any
) -> None:
    """The baseline's own confirm launch failed: trial 0 is what is left to compare with."""

    def script(task: Any) -> Any:
        if task.role == "confirm":
            if task.candidate == make.baseline:
                return make.diagnosis("candidate", "out_of_memory")
            return make.served(0.05, tpot=0.9)
        return make.served(0.1 if is_baseline(task) else 0.05)

    lab.script = script
    lab.prepare(constraints=RELATIVE, budget={"trials": 2}, search={"repeats": 1})
    lab.runs(make.candidate(16))
    final = lab.directory.records()[-1]
    assert (final.role, final.candidate) == ("confirm", make.candidate(16))
    assert final.limits == {RELATIVE[0]: pytest.approx(0.022)}
    assert not final.feasible


def test_finished_study_can_be_resumed_and_launches_nothing(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 2}).runs(make.candidate(16))
    before = [r.to_json() for r in lab.directory.records()]
    end = lab.runs(make.candidate(16), make.candidate(32))
    assert len(lab.tasks) == 2
    assert [r.to_json() for r in lab.directory.records()] == before
    assert end.error is None


def test_resumed_run_counts_the_time_that_was_used(lab: Any, make: Any) -> None:
    lab.prepare(budget={"time": "45s"})
    lab.script = lambda task: (
        Interrupted(message="stopped by the user") if task.number == 2 else make.served(0.1)
    )
    lab.runs(make.candidate(16), make.candidate(32))
    lab.script = lambda task: make.served(0.1)
    lab.runs(make.candidate(32), make.candidate(64))
    assert [t.number for t in lab.tasks] == [0, 1, 2, 3]


def test_best_is_announced_and_known_to_a_resumed_run_from_its_start(lab: Any, make: Any) -> None:
    lab.script = lambda task: make.served(0.1 if is_baseline(task) else 0.05)
    lab.prepare(budget={"trials": 2}).runs(make.candidate(16))
    lab.heard.clear()
    lab.runs()
    started, best = lab.heard[0], next(e for e in lab.heard if e.kind == "best")
    assert started.data["resumed"] is True
    assert started.data["durations"] == [10.0, 10.0]
    assert started.data["reference"]["ttft_p95_s"] == 0.1
    assert (best.data["trial"], best.data["values"]) == (1, [0.05])


def test_verdict_file_keeps_its_keys(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 1}).runs()
    verdict = json.loads((lab.directory.path / "verdict.json").read_text())
    assert {
        "verdict", "confirmed", "best", "objective", "metric", "key", "baseline_value",
        "best_value", "search_value", "change", "pairs", "noise", "reason", "stopped_because",
        "interrupted",
    } <= verdict.keys()  # fmt: skip
    assert verdict["verdict"] == "keep_baseline"


def test_nothing_feasible_has_its_own_exit_code(lab: Any, make: Any) -> None:
    lab.prepare(constraints=["ttft_p95 <= 1ms"], budget={"trials": 3})
    end = lab.runs(make.candidate(16), make.candidate(32))
    assert end.verdict.verdict == "no_feasible"
    assert end.exit_code == 3


def test_no_file_of_a_study_holds_nan_or_infinity(lab: Any, make: Any) -> None:
    broken = make.diagnosis("unknown", "engine_died")
    ends = iter(
        [make.served(0.1), broken, make.diagnosis("candidate", "out_of_memory"), make.served(0.2)]
    )
    lab.script = lambda task: next(ends)
    lab.prepare(budget={"trials": 4}).snapshot()
    lab.runs(*[make.candidate(n) for n in (16, 32, 64)])

    def refuse(word: str) -> None:
        raise AssertionError(word)

    files = [*lab.directory.path.rglob("*.json"), lab.directory.path / "events.jsonl"]
    assert len(files) > 8
    for path in files:
        for line in (
            path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        ):
            json.loads(line, parse_constant=refuse)
