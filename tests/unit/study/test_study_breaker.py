"""What the loop does after each kind of fault: goes on, repeats, asks the baseline, or stops."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import EnvironmentFault
from autotune.measure.outcome import Unmeasurable

RELATIVE = ["tpot_p95 <= 1.1 x baseline"]


def is_baseline(task: Any) -> bool:
    return bool(task.role == "baseline")


def void(message: str = "nothing known") -> Unmeasurable:
    return Unmeasurable(reason="measurement_invalid", message=message)


def machine(message: str = "the disk is full") -> Unmeasurable:
    return Unmeasurable(reason="environment", message=message)


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
