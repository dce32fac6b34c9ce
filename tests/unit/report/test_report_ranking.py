from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autotune.study.ranking import best_trial, nearest_to_limits
from autotune.study.record import TrialRecord

GOAL = "maximize output_throughput"
LIMITS = {"ttft_p99 <= 500ms": 500, "tpot_p99 <= 50ms": 50}


def trial(number: int, value: float | None, **facts: Any) -> TrialRecord:
    defaults: dict[str, Any] = {
        "role": "search" if number else "baseline",
        "state": "measured" if value is not None else "infeasible",
        "params": {"max-num-seqs": number},
        "values": {} if value is None else {GOAL: value},
        "feasible": value is not None,
    }
    return TrialRecord(number=number, **{**defaults, **facts})


def finished() -> list[TrialRecord]:
    """Throughput, TTFT p99, TPOT p99 of six trials, one of them failed."""
    rows = [(1000, 300, 30), (1800, 900, 40), (1400, 480, 45), None, (1500, 499, 50.5),
            (1390, 200, 20)]  # fmt: skip
    trials = []
    for number, row in enumerate(rows):
        if row is None:
            trials.append(trial(number, None, reason="out_of_memory"))
            continue
        value, *measured = row
        violations = {
            text: seen / limit - 1
            for (text, limit), seen in zip(LIMITS.items(), measured, strict=True)
        }
        trials.append(
            trial(
                number,
                value,
                constraints=violations,
                feasible=all(by <= 0 for by in violations.values()),
            )
        )
    return trials


def test_the_best_trial_is_the_best_value_among_those_that_meet_every_limit() -> None:
    best = best_trial(finished(), [GOAL])
    assert best is not None
    assert best.number == 2


def test_there_is_no_best_trial_when_nothing_is_feasible_or_nothing_finished() -> None:
    assert best_trial([], [GOAL]) is None
    assert best_trial([trial(0, 5.0, feasible=False)], [GOAL]) is None
    assert best_trial([trial(0, None), trial(1, 5.0)], []) is None


def test_equal_values_go_to_fewer_changes_and_then_to_the_lower_number() -> None:
    base = trial(0, 1.0, params={})
    many = trial(1, 2.0, params={"a": 1, "b": 2})
    few = trial(2, 2.0, params={"b": 3})
    later = trial(3, 2.0, params={"a": 3})
    best = best_trial([later, many, few, base], [GOAL])
    assert best is not None
    assert best.number == 2


def test_a_lucky_confirmation_launch_never_wins() -> None:
    lucky = trial(7, 9999.0, role="confirm")
    best = best_trial([trial(0, 1.0), trial(1, 2.0), lucky], [GOAL])
    assert best is not None
    assert best.number == 1


def test_values_that_are_no_numbers_never_win() -> None:
    broken = [trial(1, float("nan")), trial(2, float("inf")), trial(3, float("-inf"))]
    best = best_trial([trial(0, 1.0), *broken], [GOAL])
    assert best is not None
    assert best.number == 0


@given(st.permutations(finished()))
def test_the_order_in_which_trials_are_read_does_not_matter(trials: list[TrialRecord]) -> None:
    best = best_trial(trials, [GOAL])
    assert best is not None
    assert best.number == 2


def test_the_nearest_to_the_limits_come_by_their_worst_violation() -> None:
    assert [record.number for record in nearest_to_limits(finished())] == [4, 1]
