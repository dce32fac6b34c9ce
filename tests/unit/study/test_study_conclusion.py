"""What finished trials add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.spec.expressions import parse_objective
from autotune.study.conclusion import Conclusion, mean_metrics
from autotune.study.ranking import baseline_record, best_trial, nearest_to_limits
from autotune.study.record import TrialRecord

GOAL = parse_objective("minimize ttft_p95")


def record(number: int, seqs: int, value: float | None = None, **changes: Any) -> TrialRecord:
    measured = value is not None
    return TrialRecord(
        **{
            "number": number,
            "role": "baseline" if number == 0 else "search",
            "state": "measured" if measured else "infeasible",
            "params": {"max-num-seqs": seqs},
            "values": {GOAL.text: value} if measured else {},
            "feasible": measured,
            "reason": None if measured else "out_of_memory",
        }
        | changes
    )


def conclusion(make: Any, *records: TrialRecord) -> Conclusion:
    return Conclusion(records, [GOAL], make.baseline)


def test_finalist_is_the_best_feasible_trial_that_beats_the_baseline(make: Any) -> None:
    trials = (
        record(0, 8, 0.10),
        record(1, 16, 0.05, feasible=False),
        record(2, 32, 0.07),
        record(3, 64, 0.08),
    )
    found = conclusion(make, *trials)
    assert [f.number for f in found.finalists(1)] == [2]
    assert [f.number for f in found.finalists(3)] == [2, 3]
    assert conclusion(make, trials[0], record(1, 16, 0.2)).finalists(1) == []


def test_finalist_is_chosen_by_what_is_believed_where_there_is_a_model(make: Any) -> None:
    trials = (record(0, 8, 0.10), record(1, 16, 0.050), record(2, 32, 0.052), record(3, 64, 0.2))

    def found(*beliefs: float) -> Conclusion:
        believed = dict(enumerate(beliefs, start=1))
        return Conclusion(trials, [GOAL], make.baseline, believed=believed)

    lucky = found(0.054, 0.052, 0.2)
    assert [f.number for f in lucky.finalists(2)] == [2, 1]
    # What is shown of it is what was measured
    assert lucky.verdict().best == 2
    assert lucky.verdict().best_value == 0.052
    # Without a belief a trial is taken at its word, and one that is no better than today is out
    assert [f.number for f in found(0.11).finalists(3)] == [2]
    twins = (*trials, record(4, 32, 0.052, params={"max-num-seqs": 32, "enforce-eager": True}))
    near = {1: 0.06, 2: 0.0521, 4: 0.0520}
    best = Conclusion(twins, [GOAL], make.baseline, believed=near).finalists(1)
    assert [f.number for f in best] == [2], "beliefs that are alike: fewer changes"


def test_finalist_that_was_only_lucky_hands_over_to_the_next(make: Any) -> None:
    def confirm(number: int, seqs: int, value: float, pair: int, **more: Any) -> TrialRecord:
        return record(number, seqs, value, role="confirm", pair=pair, **more)

    trials = [record(0, 8, 0.10), record(1, 16, 0.04), record(2, 32, 0.05)]
    for pair in range(3):
        trials += [
            confirm(3 * pair + 3, 8, 0.10, pair),
            confirm(3 * pair + 4, 16, 0.09 + pair / 1000, pair),
            confirm(3 * pair + 5, 32, 0.05 + pair / 1000, pair),
        ]
    assert conclusion(make, *trials).verdict(2).best == 2
    assert conclusion(make, *trials).verdict(1).best == 1
    broken = [
        replace(t, feasible=False)
        if t.role == "confirm" and t.params == {"max-num-seqs": 32}
        else t
        for t in trials
    ]
    assert conclusion(make, *broken).verdict(2).best == 1


def paired(ratios: list[float], **baseline: Any) -> list[TrialRecord]:
    """A baseline (0.100), a candidate that was a little worse (0.103), and pairs of the two."""
    trials = [record(0, 8, 0.100, **baseline), record(1, 16, 0.103), record(2, 32, 0.2)]
    for pair, ratio in enumerate(ratios):
        trials.append(record(2 * pair + 3, 8, 0.1, role="confirm", pair=pair))
        trials.append(record(2 * pair + 4, 16, 0.1 * ratio, role="confirm", pair=pair))
    return trials


def test_that_nothing_beats_today_has_an_interval(make: Any) -> None:
    assert [f.number for f in conclusion(make, *paired([])).finalists(2)] == [1]
    worse = conclusion(make, *paired([1.03, 1.04, 1.035])).verdict()
    assert (worse.verdict, worse.best) == ("keep_baseline", 0)
    assert worse.change is not None
    assert worse.change.low is not None
    assert 1.0 < worse.change.low < 1.035
    level = conclusion(make, *paired([0.98, 1.01, 1.02])).verdict()
    assert (level.verdict, level.best) == ("not_distinguishable", 1)
    # The search saw the baseline in a lucky launch
    better = conclusion(make, *paired([0.90, 0.91, 0.905])).verdict()
    assert (better.verdict, better.best, better.confirmed) == ("better", 1, True)


def test_what_came_nowhere_near_today_is_not_launched_again(make: Any) -> None:
    far = record(1, 16, 0.12)
    assert conclusion(make, record(0, 8, 0.1), far).finalists(1) == []
    # A baseline that breaks its limits is no mark to come near to, nor is one without a value
    broken = paired([], feasible=False)
    assert [f.number for f in conclusion(make, *broken).finalists(2)] == [1, 2]
    assert conclusion(make, record(0, 8), record(1, 16)).finalists(1) == []


def test_without_pairs_the_nearest_is_no_recommendation(make: Any) -> None:
    verdict = conclusion(make, *paired([])).verdict(1, 3)
    assert (verdict.verdict, verdict.best) == ("keep_baseline", 0)
    assert verdict.change is None


def test_interrupted_trials_count_for_nothing(make: Any) -> None:
    stopped = record(1, 16, state="interrupted", reason="interrupted")
    found = conclusion(make, record(0, 8, 0.1), stopped)
    assert found.finalists(1) == []
    assert [known.candidate for known in found.known()] == [make.baseline]


def test_proposer_learns_values_violations_and_reasons(make: Any) -> None:
    limit = "success_rate >= 0.9"
    known = conclusion(
        make,
        record(0, 8, 0.1),
        record(1, 16),
        record(2, 32, 0.05, feasible=False, constraints={limit: 0.4}),
        record(3, 8, 0.1, role="confirm", pair=0),
    ).known()
    reasons = [k.diagnosis and k.diagnosis.reason for k in known]
    assert [(k.values, dict(k.violations)) for k in known] == [
        ([0.1], {}),
        (None, {}),
        ([0.05], {limit: 0.4}),
    ]
    assert reasons == [None, "out_of_memory", None]


def test_pairs_hold_both_sides_only(make: Any) -> None:
    verdict = conclusion(
        make,
        record(0, 8, 0.1),
        record(1, 16, 0.05),
        record(2, 8, 0.11, role="confirm", pair=0),
        record(3, 16, 0.06, role="confirm", pair=0),
        record(4, 16, 0.06, role="confirm", pair=1),
    ).verdict()
    assert [(p.baseline_trial, p.best_trial) for p in verdict.pairs] == [(2, 3)]


def test_baseline_is_the_first_launch_that_gave_a_verdict() -> None:
    stopped = record(0, 8, state="interrupted")
    void = record(1, 8, state="unmeasurable", role="baseline")
    good = record(2, 8, 0.1, role="baseline")
    assert baseline_record([stopped, void, good]) == good
    assert baseline_record([stopped, void]) == stopped
    assert baseline_record([record(0, 8), good]) == record(0, 8)
    assert baseline_record([]) is None


def test_best_prefers_fewer_changes_then_the_earlier_trial() -> None:
    trials = [
        record(0, 8, 0.1),
        record(1, 16, 0.05, params={"max-num-seqs": 16, "enforce-eager": True}),
        record(2, 32, 0.05),
        record(3, 64, 0.05),
    ]
    best = best_trial(trials, [GOAL])
    assert best is not None
    assert best.number == 2


def test_trials_that_miss_a_limit_are_ranked_by_how_far() -> None:
    far = record(1, 16, 0.1, feasible=False, constraints={"a": 0.1, "b": 0.9})
    near = record(2, 32, 0.1, feasible=False, constraints={"a": 0.2})
    assert nearest_to_limits([far, near, record(3, 64)]) == [near, far]


def test_mean_of_metrics_is_none_where_any_launch_has_none() -> None:
    assert mean_metrics([{"a": 1.0, "b": None}, {"a": 3.0, "b": 1.0}]) == {"a": 2.0, "b": None}
    assert mean_metrics([{"a": 1.0}, {"b": 1.0}]) == {}
    assert mean_metrics([]) == {}


def test_maximized_objectives_are_ranked_the_other_way(make: Any) -> None:
    goal = parse_objective("maximize output_throughput")
    trials = [
        record(n, 8 * 2**n, values={goal.text: v}, state="measured", feasible=True)
        for n, v in enumerate([100.0, 150.0, 90.0])
    ]
    found = Conclusion(trials, [goal], make.baseline)
    assert [f.number for f in found.finalists(1)] == [1]
    assert found.verdict().best == pytest.approx(1)


def test_settings_that_fail_in_one_of_a_few_launches_are_nobodys_recommendation(make: Any) -> None:
    trials = [
        record(0, 8, 0.10),
        record(1, 16, 0.04),
        record(2, 32, 0.05),
        record(3, 8, 0.10, role="confirm", pair=0),
        record(4, 16, 0.04, role="confirm", pair=0),
        record(5, 16, role="confirm", pair=1),
    ]
    found = conclusion(make, *trials)
    assert [f.number for f in found.finalists(1)] == [2]
    assert found.verdict().best == 2
    best = best_trial(trials, [GOAL])
    assert best is not None
    assert best.number == 2
