"""How many pairs a verdict needs, and how often it is wrong: many studies, no difference or one."""

from __future__ import annotations

import math
from random import Random

import pytest

from autotune.measure.comparison import ConfirmPair, Standing, Verdict, decide
from autotune.measure.looks import confidence_of, worth_more_pairs
from autotune.spec.expressions import Objective
from autotune.spec.vocabulary import METRICS

TTFT = Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95")
TPUT = Objective(
    metric=METRICS["output_throughput"], direction="maximize", text="maximize output_throughput"
)
PLANNED, MOST = 3, 5


def pair(number: int, baseline: float, best: float) -> ConfirmPair:
    return ConfirmPair(
        pair=number, baseline_trial=None, best_trial=None, baseline_value=baseline, best_value=best
    )


def confirmed(rng: Random, gain: float, noise: float) -> tuple[Verdict, int]:
    """A study's confirmation: planned pairs, and more while the verdict is open."""

    def launch(number: int) -> ConfirmPair:
        baseline, best = rng.gauss(0, noise), rng.gauss(math.log1p(-gain), noise)
        return pair(number, math.exp(baseline), math.exp(best))

    pairs = [launch(number) for number in range(PLANNED)]
    if worth_more_pairs(pairs, TTFT):
        pairs += [launch(number) for number in range(PLANNED, MOST)]
    verdict = decide(
        objective=TTFT,
        baseline=Standing(trial=0, value=1.0, feasible=True),
        best=Standing(trial=1, value=0.5, feasible=True),
        pairs=pairs,
        confidence=confidence_of(len(pairs), planned=PLANNED),
    )
    return verdict, len(pairs)


def share_of_better(gain: float, noise: float, studies: int) -> tuple[float, float]:
    found = [confirmed(Random(seed), gain, noise) for seed in range(studies)]
    better = sum(verdict.verdict == "better" for verdict, _ in found) / studies
    return better, sum(pairs for _, pairs in found) / studies


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.1])
def test_without_a_difference_two_looks_claim_one_in_few_studies(noise: float) -> None:
    better, pairs = share_of_better(0.0, noise, 2000)
    assert better <= 0.035  # 2.5 % on this side, and the chance of 2000 studies
    assert pairs < 3.6  # most hopeless ones end after the planned pairs


def test_a_gain_of_four_times_the_noise_is_found() -> None:
    better, _ = share_of_better(0.08, 0.02, 1000)
    assert better >= 0.97


def test_a_large_gain_needs_no_pairs_beyond_the_planned_ones() -> None:
    better, pairs = share_of_better(0.3, 0.02, 400)
    assert better == 1.0
    assert pairs <= 3.02


def test_the_interval_covers_the_truth_in_nineteen_of_twenty_studies() -> None:
    covered = 0
    for seed in range(2000):
        verdict, _ = confirmed(Random(seed), 0.05, 0.03)
        assert verdict.change is not None
        low, high = verdict.change.low, verdict.change.high
        assert low is not None
        assert high is not None
        covered += low <= 0.95 <= high
    assert covered / 2000 >= 0.945


def test_only_an_open_promising_verdict_is_worth_more_pairs() -> None:
    settled = [pair(0, 1.0, 0.80), pair(1, 1.0, 0.81), pair(2, 1.0, 0.80)]
    open_one = [pair(0, 1.0, 0.90), pair(1, 1.0, 0.96), pair(2, 1.0, 0.93)]
    hopeless = [pair(0, 1.0, 1.05), pair(1, 1.0, 0.95), pair(2, 1.0, 1.01)]
    assert not worth_more_pairs(settled, TTFT)
    assert worth_more_pairs(open_one, TTFT)
    assert not worth_more_pairs(hopeless, TTFT)
    assert not worth_more_pairs(open_one, TPUT)  # less is worse there
    assert not worth_more_pairs(open_one[:2], TTFT)


def test_one_of_several_finalists_has_to_show_more() -> None:
    assert confidence_of(3, planned=3) == 0.95
    assert confidence_of(5, planned=3) == 0.97
    assert confidence_of(3, planned=3, finalists=2) == pytest.approx(0.975)
