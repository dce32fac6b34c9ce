"""Several objectives: the front of finished trials, its finalists, its verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.spec.expressions import parse_objective
from autotune.study.conclusion import Conclusion
from autotune.study.ranking import best_trial, costs, pareto_front
from autotune.study.record import TrialRecord

TTFT, TPUT = parse_objective("minimize ttft_p95"), parse_objective("maximize output_throughput")
GOALS = [TTFT, TPUT]


def record(number: int, seqs: int, ttft: float, tput: float, **changes: Any) -> TrialRecord:
    return TrialRecord(
        **{
            "number": number,
            "role": "baseline" if number == 0 else "search",
            "state": "measured",
            "params": {"max-num-seqs": seqs},
            "values": {TTFT.text: ttft, TPUT.text: tput},
            "feasible": True,
        }
        | changes
    )


TRIALS = [
    record(0, 8, 1.0, 100),
    record(1, 16, 0.5, 90),
    record(2, 32, 0.6, 140),
    record(3, 64, 0.9, 150),
    record(4, 128, 0.7, 120),  # beaten by 2
    record(5, 256, 0.4, 300, feasible=False),
]


def numbers(records: list[TrialRecord]) -> list[int]:
    return [record.number for record in records]


def test_the_front_holds_feasible_trials_that_nothing_beats_best_in_the_first_first() -> None:
    assert numbers(pareto_front(TRIALS, GOALS)) == [1, 2, 3]
    assert numbers(pareto_front(TRIALS, [TTFT])) == [1]
    assert best_trial(TRIALS, GOALS) == TRIALS[1]


def test_equal_trials_stand_once_with_the_fewest_changes() -> None:
    twin = record(6, 16, 0.6, 140, params={"max-num-seqs": 16, "enforce-eager": True})
    assert numbers(pareto_front([*TRIALS, twin], GOALS)) == [1, 2, 3]
    tie = record(7, 512, 0.5, 95)
    assert best_trial([*TRIALS, tie], GOALS) == tie


def test_a_setting_that_failed_again_is_not_on_the_front() -> None:
    failed = record(6, 16, 1, 1, role="confirm", pair=0, state="infeasible", feasible=False)
    assert numbers(pareto_front([*TRIALS, failed], GOALS)) == [2, 3]


def test_costs_are_smaller_when_better_and_none_without_every_value() -> None:
    assert costs(TRIALS[2], GOALS) == (0.6, -140)
    assert costs(record(9, 8, 1, 1, values={TTFT.text: 1.0}), GOALS) is None
    assert costs(record(9, 8, 1, 1, state="interrupted"), GOALS) is None


def test_finalists_are_the_points_that_say_most_and_never_the_baseline(make: Any) -> None:
    found = Conclusion(TRIALS, GOALS, make.baseline)
    assert numbers(found.finalists(1)) == [1]
    assert numbers(found.finalists(2)) == [1, 2]
    assert sorted(numbers(found.finalists(9))) == [1, 2, 3]
    alone = Conclusion([TRIALS[0], record(1, 16, 2.0, 50)], GOALS, make.baseline)
    assert alone.finalists(3) == []
    assert alone.verdict(3).verdict == "keep_baseline"


def test_the_verdict_names_the_front_and_judges_each_finalist(make: Any) -> None:
    trials = list(TRIALS)
    for pair in range(3):
        drift = 1 + pair / 100
        for seqs, ttft, tput in ((8, 1.0, 100), (16, 0.5, 90), (32, 0.6, 140), (64, 0.9, 150)):
            trials.append(
                record(len(trials), seqs, ttft * drift, tput / drift, role="confirm", pair=pair)
            )
    found = Conclusion(trials, GOALS, make.baseline).verdict(3)
    assert (found.verdict, found.confirmed, found.best) == ("better", True, 2)
    assert found.pareto == (1, 2, 3)
    assert {one.trial: one.verdict for one in found.finalists} == {
        1: "trade_off",
        2: "better",
        3: "better",
    }
    assert len(found.pairs) == 3
    data = found.to_json()
    assert data["pareto"] == [1, 2, 3]
    assert data["finalists"][0]["changes"][TPUT.text]["ratio"] < 1


def test_where_nothing_meets_the_limits_the_nearest_stand_in_the_verdict(make: Any) -> None:
    def missed(number: int, by: float, **changes: Any) -> TrialRecord:
        return record(
            number, 8 * 2**number, 1, 1, feasible=False, constraints={"ttft_p95 <= 500ms": by},
            **changes,
        )  # fmt: skip

    trials = [missed(0, 0.4), missed(1, 0.1), missed(2, 0.3), missed(3, 0.2, state="infeasible")]
    found = Conclusion(trials, [TTFT], make.baseline).verdict()
    assert found.verdict == "no_feasible"
    assert [(miss.trial, dict(miss.violations)) for miss in found.nearest] == [
        (1, {"ttft_p95 <= 500ms": 0.1}),
        (3, {"ttft_p95 <= 500ms": 0.2}),
        (2, {"ttft_p95 <= 500ms": 0.3}),
    ]
    assert found.to_json()["nearest"][0]["trial"] == 1


def test_a_whole_study_confirms_every_finalist_of_its_front(lab: Any, make: Any) -> None:
    """TTFT falls and TPOT rises with the sequences, but for 32: better than today in both."""
    points = {8: (0.5, 0.05), 16: (0.3, 0.07), 32: (0.4, 0.04), 64: (0.6, 0.06)}

    def script(task: Any) -> Any:
        ttft, tpot = points[task.candidate.params["max-num-seqs"]]
        drift = 1 + task.number / 1000
        return make.served(ttft * drift, tpot=tpot * drift)

    lab.script = script
    lab.prepare(
        objective=["minimize ttft_p95", "minimize tpot_p95"], search={"seed": 1, "repeats": 3}
    )
    lab.snapshot()
    end = lab.runs(*(make.candidate(seqs) for seqs in (16, 32, 64)))
    verdict = end.verdict
    assert (verdict.verdict, verdict.confirmed, verdict.best) == ("better", True, 2)
    assert verdict.pareto == (1, 2)
    assert [(one.trial, one.verdict) for one in verdict.finalists] == [
        (1, "trade_off"),
        (2, "better"),
    ]
    confirmed = [r for r in lab.directory.records() if r.role == "confirm"]
    assert len(confirmed) == 9
    assert all(task.to_beat is None for task in lab.tasks)


def test_a_capacity_study_hands_on_what_is_known(lab: Any, make: Any) -> None:
    """The reference of relative limits is the recorded rate; confirm launches know their value."""
    holds = {8: 1.0, 16: 1.5}

    def script(task: Any) -> Any:
        capacity = holds[task.candidate.params["max-num-seqs"]]
        found = make.served(0.1 * capacity, tpot=0.02 * capacity)
        return replace(
            found,
            metrics={**found.metrics, "capacity": capacity},
            recorded_rate={**found.metrics, "tpot_p95_s": 0.02},
        )

    lab.script = script
    lab.prepare(
        objective="maximize capacity",
        constraints=["tpot_p95 <= 2 x baseline"],
        search={"seed": 1, "repeats": 3},
        budget={"trials": 2},
    )
    lab.snapshot()
    end = lab.runs(make.candidate(16))
    assert (end.verdict.verdict, end.verdict.confirmed) == ("better", True)
    searched = next(task for task in lab.tasks if task.role == "search")
    assert (searched.to_beat, searched.seen) == (1.0, None)
    assert searched.baseline is not None
    assert searched.baseline["tpot_p95_s"] == 0.02
    seen = {t.candidate.params["max-num-seqs"]: t.seen for t in lab.tasks if t.role == "confirm"}
    assert seen == holds
