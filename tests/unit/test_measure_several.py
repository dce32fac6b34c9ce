"""The verdict of studies with several objectives."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean

import pytest
from scipy import stats

from autotune.measure.comparison import ConfirmPair, Standing, Verdict
from autotune.measure.several import Finalist, decide_several, simultaneous_changes
from autotune.spec.expressions import parse_objective

TTFT, TPUT = parse_objective("minimize ttft_p95"), parse_objective("maximize output_throughput")
GOALS = (TTFT, TPUT)
BASE = {TTFT.text: 1.0, TPUT.text: 100.0}

Launch = tuple[float, float]
"""(ttft, throughput)."""


def pairs(baseline: Sequence[Launch], own: Sequence[Launch]) -> Mapping[str, list[ConfirmPair]]:
    return {
        goal.text: [
            ConfirmPair(
                pair=number, baseline_trial=100 + number, best_trial=200 + number,
                baseline_value=a[index], best_value=b[index],
            )
            for number, (a, b) in enumerate(zip(baseline, own, strict=True))
        ]
        for index, goal in enumerate(GOALS)
    }  # fmt: skip


BASELINES: list[Launch] = [(1.0, 100.0), (1.01, 99.0), (0.99, 101.0)]


def finalist(trial: int, ttft: float, tput: float, *, launches: int = 3) -> Finalist:
    """Launches that repeat the baseline's ups and downs."""
    own = [(a * ttft, b * tput / 100) for a, b in BASELINES[:launches]]
    own = [(a * (1 + 0.003 * (n - 1)), b * (1 - 0.003 * (n - 1))) for n, (a, b) in enumerate(own)]
    return Finalist(
        trial=trial,
        values={TTFT.text: ttft, TPUT.text: tput},
        pairs=pairs(BASELINES[:launches], own),
    )


def verdict(*finalists: Finalist, feasible: bool = True) -> Verdict:
    return decide_several(
        GOALS,
        baseline=Standing(trial=0, value=1.0, feasible=feasible),
        baseline_values=BASE,
        best=Standing(trial=9, value=0.5, feasible=True),
        finalists=finalists,
    )


def words(found: Verdict) -> list[str]:
    return [one.verdict for one in found.finalists]


def test_better_in_both_is_better_and_confirmed() -> None:
    found = verdict(finalist(7, 0.5, 150))
    assert (found.verdict, found.confirmed, found.best) == ("better", True, 7)
    assert found.reason == "trial 7: better in ttft_p95 and output_throughput, worse in none"
    changes = found.finalists[0].changes
    assert changes[TTFT.text].ratio == pytest.approx(0.5, rel=0.01)  # type: ignore[union-attr]
    assert changes[TPUT.text].ratio == pytest.approx(1.5, rel=0.01)  # type: ignore[union-attr]


@pytest.mark.parametrize(("ttft", "tput"), [(0.5, 100), (1.0, 150)])
def test_better_in_one_and_alike_in_the_other_is_better(ttft: float, tput: float) -> None:
    assert verdict(finalist(7, ttft, tput)).verdict == "better"


def test_gaining_in_one_and_losing_in_the_other_is_a_trade_and_today_stays() -> None:
    found = verdict(finalist(7, 0.5, 60))
    assert words(found) == ["trade_off"]
    assert (found.verdict, found.best, found.confirmed) == ("keep_baseline", 0, True)
    assert found.reason == "trial 7: better in ttft_p95, worse in output_throughput"
    # A mean that is worse by more than a twentieth is no "not worse", however wide its interval
    wide = Finalist(
        trial=8,
        values={TTFT.text: 0.5, TPUT.text: 80},
        pairs=pairs(BASELINES, [(0.5, 40.0), (0.5, 100.0), (0.5, 105.0)]),
    )
    assert words(verdict(wide)) == ["trade_off"]


def test_alike_and_worse_are_told_apart() -> None:
    assert verdict(finalist(7, 1.0, 100)).verdict == "not_distinguishable"
    found = verdict(finalist(7, 1.0, 50))
    assert (words(found), found.verdict) == (["worse"], "keep_baseline")


def test_the_better_finalist_speaks_and_among_several_the_one_that_gains_most_in_the_first() -> (
    None
):
    found = verdict(finalist(5, 0.4, 50), finalist(6, 0.8, 110), finalist(7, 0.6, 120))
    assert words(found) == ["trade_off", "better", "better"]
    assert (found.verdict, found.best) == ("better", 7)
    assert found.best_value == pytest.approx(0.6, rel=0.02)
    json.dumps(found.to_json(), allow_nan=False)


def test_a_finalist_that_breaks_limits_when_launched_again_is_out() -> None:
    good = finalist(7, 0.5, 150)
    broken = {
        text: [
            ConfirmPair(
                pair=p.pair, baseline_trial=1, best_trial=2, baseline_value=p.baseline_value,
                best_value=p.best_value, best_feasible=False,
            )
            for p in own
        ]
        for text, own in good.pairs.items()
    }  # fmt: skip
    out = Finalist(trial=7, values=good.values, pairs=broken)
    found = verdict(out)
    assert (words(found), found.verdict) == (["broke_limits"], "keep_baseline")
    assert verdict(out, feasible=False).verdict == "no_feasible"
    assert verdict(out, finalist(8, 0.9, 130)).best == 8


def test_a_baseline_that_breaks_limits_is_beaten_by_whoever_keeps_them() -> None:
    found = verdict(finalist(7, 1.5, 60), feasible=False)
    assert (found.verdict, found.confirmed, found.best) == ("better", True, 7)


def test_too_few_pairs_only_promise() -> None:
    found = verdict(finalist(7, 0.5, 150, launches=2))
    assert (found.verdict, found.confirmed) == ("better", False)
    assert "promising, not confirmed" in found.reason
    none = Finalist(trial=7, values={TTFT.text: 0.97, TPUT.text: 100}, pairs=pairs([], []))
    assert verdict(none).verdict == "not_distinguishable"
    hope = Finalist(trial=7, values={TTFT.text: 0.7, TPUT.text: 99}, pairs=pairs([], []))
    assert (verdict(hope).verdict, verdict(hope).confirmed) == ("better", False)


def test_without_a_finalist_the_first_objective_says_why_today_stays() -> None:
    kept = decide_several(
        GOALS,
        baseline=Standing(trial=0, value=1.0, feasible=True),
        baseline_values=BASE,
        best=Standing(trial=0, value=1.0, feasible=True),
        finalists=(),
    )
    assert (kept.verdict, kept.best) == ("keep_baseline", 0)


def test_values_of_zero_are_never_divided() -> None:
    preempted = parse_objective("minimize preemptions")
    goals = (TTFT, preempted)

    def one(own: float) -> Verdict:
        same = finalist(7, 0.5, 100).pairs[TTFT.text]
        zeros = [
            ConfirmPair(
                pair=p.pair, baseline_trial=1, best_trial=2, baseline_value=0.0, best_value=own
            )
            for p in same
        ]
        return decide_several(
            goals,
            baseline=Standing(trial=0, value=1.0, feasible=True),
            baseline_values={TTFT.text: 1.0, preempted.text: 0.0},
            best=Standing(trial=7, value=0.5, feasible=True),
            finalists=[
                Finalist(
                    trial=7,
                    values={TTFT.text: 0.5, preempted.text: own},
                    pairs={TTFT.text: same, preempted.text: zeros},
                )
            ],
        )

    assert one(0.0).verdict == "better"
    assert words(one(3.0)) == ["trade_off"]


def test_one_finalist_and_one_comparison_give_the_paired_t_interval() -> None:
    own = pairs(BASELINES, [(0.8, 1), (0.83, 1), (0.79, 1)])[TTFT.text]
    (change,) = simultaneous_changes([own], 1)
    logs = [math.log(p.best_value / p.baseline_value) for p in own]  # type: ignore[operator]
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert change is not None
    assert change.low == pytest.approx(math.exp(expected.low))
    assert change.high == pytest.approx(math.exp(expected.high))


def study(seed: int, gains: Sequence[tuple[float, float]], noise: float) -> Verdict:
    """Finalists that were the luckiest of many in the search, launched in three pairs."""
    rng = Random(seed)

    def launch(ttft: float, tput: float) -> Launch:
        return (ttft * math.exp(rng.gauss(0, noise)), tput * math.exp(rng.gauss(0, noise)))

    base = [launch(1, 100) for _ in range(3)]
    finalists = []
    for trial, (ttft, tput) in enumerate(gains, 1):
        own = [launch(ttft, tput * 100) for _ in range(3)]
        lucky = {TTFT.text: ttft * (1 - 2 * noise), TPUT.text: tput * 100 * (1 + 2 * noise)}
        finalists.append(Finalist(trial=trial, values=lucky, pairs=pairs(base, own)))
    return verdict(*finalists)


def test_pure_noise_is_called_better_in_at_most_one_of_twenty_studies() -> None:
    found = [study(seed, [(1, 1)] * 3, 0.03) for seed in range(1000)]
    assert fmean(one.verdict == "better" for one in found) <= 0.05


def test_a_true_gain_well_above_the_noise_is_found_among_others() -> None:
    found = [study(seed, [(1, 1), (0.85, 1), (0.8, 0.7)], 0.02) for seed in range(400)]
    assert fmean((one.verdict, one.best) == ("better", 2) for one in found) >= 0.9
