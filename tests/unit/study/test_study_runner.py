"""The loop of a study: what is launched, in which order, and when it ends."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.errors import EnvironmentFault, InputError, Interrupted
from autotune.measure.outcome import Unmeasurable

RELATIVE = ["tpot_p95 <= 1.1 x baseline"]


def is_baseline(task: Any) -> bool:
    return bool(task.role == "baseline")


def void(message: str = "nothing known") -> Unmeasurable:
    return Unmeasurable(reason="measurement_invalid", message=message)


def machine(message: str = "the disk is full") -> Unmeasurable:
    return Unmeasurable(reason="environment", message=message)


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


def test_study_fault_stops_after_the_first_launch_and_names_the_flag(lab: Any, make: Any) -> None:
    lab.script = lambda task: make.diagnosis("study", "unknown_flag", flag="max-modl-len")
    end = lab.prepare(budget={"trials": 40}).runs(*[make.candidate(n) for n in (16, 32, 64)])
    assert len(lab.tasks) == 1
    assert end.exit_code == 2
    assert end.error is not None
    assert "max-modl-len" in end.error.message
    assert "trial 0" in (end.error.hint or "")


def test_study_fault_of_a_later_trial_stops_the_study(lab: Any, make: Any) -> None:
    lab.script = lambda task: (
        make.served(0.1)
        if is_baseline(task)
        else make.diagnosis("study", "unknown_flag", flag="speculative-config")
    )
    end = lab.prepare().runs(*[make.candidate(n) for n in (16, 32, 64)])
    assert len(lab.tasks) == 2
    assert end.exit_code == 2


def test_flag_that_only_one_candidate_has_does_not_stop_the_others(lab: Any, make: Any) -> None:
    odd = make.candidate(8, **{"enforce-eager": True})
    lab.script = lambda task: (
        make.diagnosis("study", "unknown_flag", flag="enforce-eager")
        if task.candidate == odd
        else make.served(0.1)
    )
    end = lab.prepare().runs(odd, make.candidate(16))
    assert lab.states() == ["baseline measured", "search infeasible", "search measured"]
    assert end.error is None


def test_flag_that_every_candidate_has_stops_after_three(lab: Any, make: Any) -> None:
    lab.script = lambda task: (
        make.served(0.1)
        if is_baseline(task)
        else make.diagnosis("study", "unknown_flag", flag="no-enforce-eager")
    )
    every = [make.candidate(n, **{"enforce-eager": False}) for n in (8, 16, 32, 64)]
    end = lab.prepare(budget={"trials": 40}).runs(*every)
    assert len(lab.tasks) == 1 + 3
    assert end.exit_code == 2


def test_fault_of_the_machine_is_tried_once_more_with_the_same_settings(
    lab: Any, make: Any
) -> None:
    broken = iter([True])
    lab.script = lambda task: (
        machine() if task.role == "search" and next(broken, False) else make.served(0.1)
    )
    end = lab.prepare().runs(make.candidate(16))
    assert lab.states() == ["baseline measured", "search unmeasurable", "search measured"]
    assert lab.tasks[1].candidate == lab.tasks[2].candidate
    assert end.error is None


def test_fault_of_the_machine_twice_ends_the_study_as_an_environment_fault(
    lab: Any, make: Any
) -> None:
    lab.script = lambda task: make.served(0.1) if is_baseline(task) else machine()
    end = lab.prepare().runs(make.candidate(16), make.candidate(32))
    assert len(lab.tasks) == 3
    assert isinstance(end.error, EnvironmentFault)
    assert end.exit_code == 4
    assert "the disk is full" in end.error.message


def test_baseline_meets_a_fault_of_the_machine_once_and_the_study_goes_on(
    lab: Any, make: Any
) -> None:
    broken = iter([True])
    lab.script = lambda task: machine() if next(broken, False) else make.served(0.1)
    end = lab.prepare(constraints=RELATIVE).runs(make.candidate(16))
    assert lab.states() == ["baseline unmeasurable", "baseline measured", "search measured"]
    assert end.error is None
    assert lab.directory.records()[2].limits == {RELATIVE[0]: pytest.approx(0.022)}
    assert lab.directory.records()[2].feasible


def test_baseline_meets_faults_of_the_machine_twice_and_the_study_ends(lab: Any, make: Any) -> None:
    lab.script = lambda task: machine()
    end = lab.prepare().runs(make.candidate(16))
    assert lab.states() == ["baseline unmeasurable", "baseline unmeasurable"]
    assert end.exit_code == 4


def test_void_measurement_of_the_baseline_is_repeated_once(lab: Any, make: Any) -> None:
    broken = iter([True])
    lab.script = lambda task: void() if next(broken, False) else make.served(0.1)
    end = lab.prepare().runs(make.candidate(16))
    assert lab.states() == ["baseline unmeasurable", "baseline measured", "search measured"]
    assert end.error is None


def test_baseline_that_stays_void_ends_the_study_as_untrustworthy(lab: Any, make: Any) -> None:
    lab.script = lambda task: void("requests left late")
    end = lab.prepare().runs(make.candidate(16))
    assert len(lab.tasks) == 2
    assert end.exit_code == 5
    assert "requests left late" in str(end.error)


def test_void_launch_of_a_pair_is_repeated_once(lab: Any, make: Any) -> None:
    broken = iter([True])

    def script(task: Any) -> Any:
        if task.role == "confirm" and next(broken, False):
            return void()
        return make.served(0.1 if task.candidate == make.baseline else 0.05)

    lab.script = script
    end = lab.prepare(budget={"trials": 2}, search={"repeats": 3}).runs(make.candidate(16))
    assert [t.pair for t in lab.tasks[2:]] == [0, 0, 0, 1, 1, 2, 2]
    assert end.verdict.confirmed


@pytest.mark.parametrize("reason", ["not_ready_in_time", "engine_died", "gpu_fault"])
def test_three_failures_without_a_cause_and_a_baseline_that_fails_now_are_the_machines(
    lab: Any, make: Any, reason: str
) -> None:
    fault = "candidate" if reason == "not_ready_in_time" else "unknown"
    lab.script = lambda task: (
        make.served(0.1) if is_baseline(task) else make.diagnosis(fault, reason)
    )
    end = lab.prepare(budget={"trials": 40}).runs(*[make.candidate(n) for n in (16, 32, 64, 128)])
    assert [t.role for t in lab.tasks] == ["baseline", "search", "search", "search", "check"]
    assert lab.tasks[-1].candidate == make.baseline
    assert end.exit_code == 4
    assert end.error is not None
    assert "3 trials in a row" in end.error.message
    assert "the baseline, which worked before, fails now" in (end.error.seen or "")


def test_three_failures_while_the_baseline_still_works_are_the_candidates(
    lab: Any, make: Any
) -> None:
    lab.script = lambda task: (
        make.diagnosis("candidate", "not_ready_in_time")
        if task.role == "search" and task.number < 4
        else make.served(0.05 if task.role == "check" else 0.1)
    )
    end = lab.prepare(budget={"trials": 5}).runs(*[make.candidate(n) for n in (16, 32, 64, 128)])
    assert [t.role for t in lab.tasks][3:] == ["search", "check", "search"]
    assert end.error is None
    assert any("the baseline still works" in e.data.get("message", "") for e in lab.heard)
    # The check takes nobody's place: neither the baseline's nor the winner's
    assert (end.verdict.best, end.verdict.baseline_value) == (0, 0.1)
    assert len(lab.directory.records()) == 6


def test_a_baseline_that_never_worked_cannot_tell_and_is_not_launched_again(
    lab: Any, make: Any
) -> None:
    lab.script = lambda task: make.diagnosis("candidate", "not_ready_in_time")
    end = lab.prepare(budget={"trials": 9}).runs(*[make.candidate(n) for n in (16, 32, 64, 128)])
    assert [t.role for t in lab.tasks] == ["baseline", "search", "search", "search"]
    assert end.exit_code == 4


def test_void_measurement_of_a_candidate_is_repeated_once(lab: Any, make: Any) -> None:
    broken = iter([True])
    lab.script = lambda task: (
        void() if task.role == "search" and next(broken, False) else make.served(0.1)
    )
    lab.prepare().runs(make.candidate(16))
    assert lab.states() == ["baseline measured", "search unmeasurable", "search measured"]
    assert lab.tasks[1].candidate == lab.tasks[2].candidate
    assert [type(outcome).__name__ for _, outcome in lab.proposer.told] == ["Measured"]


def test_void_measurement_is_not_repeated_beyond_the_budget(lab: Any, make: Any) -> None:
    lab.script = lambda task: make.served(0.1) if is_baseline(task) else void()
    lab.prepare(budget={"trials": 2}).runs(make.candidate(16))
    assert lab.states() == ["baseline measured", "search unmeasurable"]


def test_refused_value_of_a_fixed_flag_stops_before_the_second_launch(lab: Any, make: Any) -> None:
    refused = make.diagnosis("candidate", "bad_value", flag="dtype", blames=["dtype"])
    lab.script = lambda task: refused
    end = lab.prepare(budget={"trials": 40}).runs(*[make.candidate(n) for n in (16, 32, 64)])
    assert len(lab.tasks) == 1
    assert end.exit_code == 2


def test_a_measured_trial_between_failures_resets_the_breaker(lab: Any, make: Any) -> None:
    silent = make.diagnosis("unknown", "engine_died")
    ends = iter([make.served(0.1), silent, silent, make.served(0.2), silent, silent])
    lab.script = lambda task: next(ends)
    end = lab.prepare(budget={"trials": 6}).runs(*[make.candidate(n) for n in range(16, 26)])
    assert end.error is None
    assert len(lab.tasks) == 6


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
    lab.prepare(budget={"time": "100s"}, search={"repeats": 3})
    lab.runs(*[make.candidate(n) for n in range(16, 40)])
    roles = [task.role for task in lab.tasks]
    assert roles.count("confirm") == 4  # half of the time bears two pairs
    assert lab.clock.monotonic() <= 100.0


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
    ends = iter(
        [make.served(0.1), void(), make.diagnosis("candidate", "out_of_memory"), make.served(0.2)]
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
