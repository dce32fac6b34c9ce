from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest
from scipy import stats

from autotune.measure.comparison import (
    ConfirmPair,
    Standing,
    Verdict,
    change_of,
    decide,
    t_quantile,
)
from autotune.spec.expressions import Objective
from autotune.spec.vocabulary import METRICS

TTFT = Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95")
TPUT = Objective(
    metric=METRICS["output_throughput"], direction="maximize", text="maximize output_throughput"
)


def standing(trial: int, value: float | None, feasible: bool = True) -> Standing:
    return Standing(trial=trial, value=value, feasible=feasible)


def pairs(*values: tuple[float | None, float | None], feasible: bool = True) -> list[ConfirmPair]:
    return [
        ConfirmPair(
            pair=index, baseline_trial=10 + 2 * index, best_trial=11 + 2 * index,
            baseline_value=baseline, best_value=best, best_feasible=feasible,
        )
        for index, (baseline, best) in enumerate(values)
    ]  # fmt: skip


def verdict(confirm: list[ConfirmPair], **changes: Any) -> Verdict:
    settings: dict[str, Any] = {
        "objective": TTFT, "baseline": standing(0, 1.0), "best": standing(7, 0.8), **changes,
    }  # fmt: skip
    return decide(**settings, pairs=confirm)


CLEAR = pairs((1.0, 0.80), (1.02, 0.81), (0.99, 0.80))


def test_three_agreeing_pairs_confirm_a_gain() -> None:
    found = verdict(CLEAR)
    assert (found.verdict, found.confirmed, found.best) == ("better", True, 7)
    assert found.change is not None
    assert found.change.high is not None
    assert found.change.high < 1
    assert found.best_value == pytest.approx(0.8033, abs=1e-3)
    assert found.search_value == 0.8


def test_a_gain_of_a_maximised_objective_is_a_rise() -> None:
    up = pairs((100, 120), (101, 122), (99, 119))
    changes = {"objective": TPUT, "baseline": standing(0, 100.0), "best": standing(7, 120.0)}
    assert verdict(up, **changes).verdict == "better"
    down = pairs((100, 80), (101, 81), (99, 80))
    assert verdict(down, **changes).verdict == "keep_baseline"


def test_pairs_that_scatter_around_no_change_are_not_distinguishable() -> None:
    found = verdict(pairs((1.0, 0.97), (1.0, 1.04), (1.0, 0.99)))
    assert (found.verdict, found.confirmed) == ("not_distinguishable", True)


def test_confirm_launches_that_show_the_candidate_worse_keep_the_baseline() -> None:
    found = verdict(pairs((1.0, 1.2), (1.0, 1.21), (1.0, 1.19)))
    assert (found.verdict, found.best) == ("keep_baseline", 0)


def test_a_candidate_that_breaks_limits_in_most_confirm_launches_is_not_recommended() -> None:
    broken = [*pairs((1.0, 0.8), (1.0, 0.8), feasible=False), *pairs((1.0, 0.8))]
    found = verdict(broken)
    assert found.verdict == "keep_baseline"
    assert "2 of 3" in found.reason
    assert verdict(broken, baseline=standing(0, 1.0, feasible=False)).verdict == "no_feasible"


@pytest.mark.parametrize(
    ("baseline", "best", "expected"),
    [
        (standing(0, 1.0), None, "keep_baseline"),
        (standing(0, 1.0), standing(0, 1.0), "keep_baseline"),
        (standing(0, 1.0), standing(3, 1.1), "keep_baseline"),
        (standing(0, 1.0), standing(3, 0.5, feasible=False), "keep_baseline"),
        (standing(0, 1.0, feasible=False), None, "no_feasible"),
        (standing(0, None, feasible=False), None, "no_feasible"),
        (None, None, "no_feasible"),
    ],
)
def test_without_a_better_feasible_candidate_nothing_is_recommended(
    baseline: Standing | None, best: Standing | None, expected: str
) -> None:
    found = verdict([], baseline=baseline, best=best)
    assert found.verdict == expected
    assert found.best == (0 if expected == "keep_baseline" else None)


def test_a_feasible_candidate_beats_a_baseline_that_is_not() -> None:
    found = verdict(pairs((0.5, 0.8)) * 3, baseline=standing(0, 0.5, feasible=False))
    assert (found.verdict, found.confirmed, found.best) == ("better", True, 7)
    assert "baseline does not" in found.reason
    assert not verdict([], baseline=None).confirmed


def test_few_pairs_are_at_most_promising() -> None:
    found = verdict(pairs((1.0, 0.8), (1.0, 0.82)))
    assert (found.verdict, found.confirmed) == ("better", False)
    assert found.change is not None
    assert found.change.low is None
    assert verdict([]).verdict == "better"
    assert verdict([], best=standing(7, 0.97)).verdict == "not_distinguishable"
    assert verdict(pairs((1.0, 0.8), (1.0, 1.01))).verdict == "not_distinguishable"


def test_an_unconfirmed_gain_within_the_noise_of_the_baseline_is_not_claimed() -> None:
    found = verdict(pairs((1.3, 1.05)), best=standing(7, 0.8))
    assert found.noise == pytest.approx(math.log(1.3) / math.sqrt(2))
    assert verdict(pairs((1.3, 1.1))).verdict == "not_distinguishable"


def test_values_without_a_ratio_are_never_divided() -> None:
    preemptions = Objective(
        metric=METRICS["preemptions"], direction="minimize", text="minimize preemptions"
    )
    found = verdict(
        pairs((3.0, 0.0), (4.0, 0.0), (None, 0.0)),
        objective=preemptions, baseline=standing(0, 3.0), best=standing(7, 0.0),
    )  # fmt: skip
    assert found.verdict == "not_distinguishable"
    json.dumps(found.to_json(), allow_nan=False)


def test_the_verdict_has_exactly_the_keys_of_its_file() -> None:
    data = verdict(CLEAR).to_json()
    assert set(data) == {
        "verdict", "confirmed", "best", "objective", "metric", "key", "baseline_value",
        "best_value", "search_value", "change", "pairs", "noise", "reason", "pareto", "finalists",
        "nearest",
    }  # fmt: skip
    assert set(data["change"]) == {"ratio", "low", "high"}
    assert set(data["pairs"][0]) == {
        "pair",
        "baseline_trial",
        "best_trial",
        "baseline_value",
        "best_value",
    }
    assert (data["metric"], data["key"]) == ("ttft_p95", "ttft_p95_s")


@pytest.mark.parametrize("degrees", [1, 2, 5, 19, 20, 21, 40, 1000])
def test_t_quantiles_agree_with_scipy(degrees: int) -> None:
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-4)


def test_the_interval_of_the_change_is_scipys_on_the_log_scale() -> None:
    change = change_of(CLEAR)
    logs = [math.log(pair.best_value / pair.baseline_value) for pair in CLEAR]  # type: ignore[operator]
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert change is not None
    assert change.low == pytest.approx(math.exp(expected.low), rel=1e-4)
    assert change.high == pytest.approx(math.exp(expected.high), rel=1e-4)


def test_equal_changes_on_a_ladder_are_no_certainty_beyond_its_step() -> None:
    capacity = Objective(metric=METRICS["capacity"], direction="maximize", text="maximize capacity")
    settings: dict[str, Any] = {
        "objective": capacity, "baseline": standing(0, 1.0), "best": standing(7, 1.2),
    }  # fmt: skip
    one_rung = verdict(pairs(*[(1.0, 1.025)] * 3), **settings)
    assert one_rung.verdict == "not_distinguishable"
    assert one_rung.change is not None
    assert one_rung.change.low == pytest.approx(1.0)
    assert verdict(pairs(*[(1.0, 1.0506)] * 3), **settings).verdict == "better"


def launched(rng: Random, gain: float, count: int, noise: float) -> Verdict:
    """A study whose candidate was the luckiest of 30 in the search."""
    lucky = min(rng.gauss(1 - gain, noise) for _ in range(30))
    confirm = pairs(*((rng.gauss(1, noise), rng.gauss(1 - gain, noise)) for _ in range(count)))
    return verdict(confirm, baseline=standing(0, rng.gauss(1, noise)), best=standing(7, lucky))


@pytest.mark.parametrize("count", [3, 5])
def test_pure_noise_is_called_better_in_at_most_one_of_twenty_studies(count: int) -> None:
    found = [launched(Random(seed), 0.0, count, 0.03) for seed in range(1000)]
    claimed = sum(one.verdict == "better" for one in found)
    assert claimed / len(found) <= 0.05
    assert sum(one.verdict == "not_distinguishable" for one in found) / len(found) >= 0.85


def test_a_true_gain_well_above_the_noise_is_found() -> None:
    found = [launched(Random(seed), 0.2, 3, 0.03) for seed in range(400)]
    assert sum(one.verdict == "better" for one in found) / len(found) >= 0.9
