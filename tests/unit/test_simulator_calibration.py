"""Coefficients come back from what an engine with known ones did."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from autotune.simulator.calibration import (
    NAMES,
    Fit,
    Sample,
    Sight,
    Trait,
    calibrate,
    first_belief,
    latencies,
    pace_of,
)
from autotune.simulator.fast import run
from autotune.simulator.load import Limits, Load, Pace, jobs_at, simultaneous

TRUE = {
    "a": 1.5e-3, "m": 3.0e-3, "b": 2.1e-5, "c": 6.5e-10, "d": 1.4e-8, "f": 1.2e-3, "g": 2e-4,
    "r0": 6e-3, "r1": 2e-8,
}  # fmt: skip
LIMITS = Limits(budget=8192, seqs=1024)


def true_pace(**factors: float) -> Pace:
    return pace_of([math.log(TRUE[name] * factors.get(name, 1.0)) for name in NAMES])


def probes(pace: Pace, limits: Limits = LIMITS) -> list[Sight]:
    """What single prompts and small batches would show without noise."""
    sights = []
    for prompt in (512, 2048, 8192, 30_000):
        load = simultaneous(prompt, 1, 1)
        value = run(load, limits, pace).first[0]
        sample = Sample(what="ttft", value_s=value, spread=0.02, job=0)
        sights.append(Sight(load=load, limits=limits, samples=(sample,)))
    for count in (1, 4, 16):
        load = simultaneous(2000, 40, count)
        times = run(load, limits, pace)
        quick = Sample(what="tpot", value_s=latencies(load, times, "tpot")[0], spread=0.02, rank=1)
        whole = Sample(what="e2e", value_s=max(times.last), spread=0.02, rank=count)
        sights.append(Sight(load=load, limits=limits, samples=(quick, whole)))
    return sights


def replay(seed: int = 1, rate: float = 5.0) -> Load:
    rng = random.Random(seed)
    moments, at_s = [], 0.0
    for _ in range(90):
        at_s += rng.expovariate(rate)
        moments.append(at_s)
    prompts = [min(24_000, int(rng.lognormvariate(8.5, 0.5))) for _ in moments]
    return jobs_at(moments, prompts, [int(rng.lognormvariate(4.8, 0.5)) + 2 for _ in moments])


def requests(load: Load, pace: Pace, limits: Limits = LIMITS, noise: float = 0.0) -> Sight:
    """A replay's requests as samples, each with some noise of its own."""
    rng = random.Random(5)
    times = run(load, limits, pace)
    samples = []
    for i, job in enumerate(load.jobs):
        blur = math.exp(rng.gauss(0.0, noise))
        ttft = (times.first[i] - times.due[i]) * blur
        tpot = (times.last[i] - times.first[i]) / (job.output - 1) * blur
        samples.append(Sample(what="ttft", value_s=ttft, spread=0.4, job=i))
        samples.append(Sample(what="tpot", value_s=tpot, spread=0.4, job=i))
    return Sight(load=load, limits=limits, samples=tuple(samples))


def percentiles(load: Load, pace: Pace, limits: Limits) -> list[float]:
    times = run(load, limits, pace)
    return [
        latencies(load, times, what)[int(share * len(load.jobs))]
        for what in ("ttft", "tpot")
        for share in (0.5, 0.95)
    ]


@pytest.fixture(scope="module")
def fit() -> Fit:
    load = replay()
    return calibrate([*probes(true_pace()), requests(load, true_pace(), noise=0.02)])


def test_what_the_samples_determine_comes_back(fit: Fit) -> None:
    found = fit.seconds()
    assert found["b"] == pytest.approx(TRUE["b"], rel=0.05)
    assert found["a"] + found["m"] == pytest.approx(TRUE["a"] + TRUE["m"], rel=0.05)
    assert fit.off < 0.05


@pytest.mark.parametrize(
    "limits",
    [replace(LIMITS, budget=2048), replace(LIMITS, budget=512, seqs=512), replace(LIMITS, seqs=12)],
)
def test_other_limits_are_predicted(fit: Fit, limits: Limits) -> None:
    load = replay(seed=2, rate=4.5)
    expected = percentiles(load, true_pace(), limits)
    assert percentiles(load, fit.pace(), limits) == pytest.approx(expected, rel=0.15)


def test_a_trait_is_learned_beside_the_coefficients(fit: Fit) -> None:
    quick = true_pace(b=0.7, c=0.7, a=0.9, m=0.9, d=0.9)
    trait = Trait(name="quantization fp8", doubt=0.3)
    load = replay(seed=3)
    sight = replace(requests(load, quick), traits=(trait,))
    again = calibrate([*probes(true_pace()), sight], start=fit)
    prefill, decode = again.shifts["quantization fp8"]
    assert math.exp(prefill) == pytest.approx(0.7, rel=0.06)
    assert math.exp(decode) == pytest.approx(0.9, rel=0.06)
    assert again.doubts["quantization fp8"][0] < 0.1
    assert percentiles(load, again.pace((trait,)), LIMITS) == pytest.approx(
        percentiles(load, quick, LIMITS), rel=0.08
    )


def test_what_is_expected_of_a_trait_holds_until_something_is_seen(fit: Fit) -> None:
    trait = Trait(name="kv fp8", doubt=0.2, expected={"d": 0.68})
    plain, expected = fit.pace(), fit.pace((trait,))
    assert expected.step.d_s == pytest.approx(0.68 * plain.step.d_s)
    assert expected.step.b_s == pytest.approx(plain.step.b_s)


def test_doubt_is_small_where_samples_speak_and_wide_where_they_do_not(fit: Fit) -> None:
    spread = {name: math.sqrt(fit.covariance[i, i]) for i, name in enumerate(NAMES)}
    assert spread["b"] < 0.1
    assert spread["r1"] > 0.5


def test_a_few_odd_samples_decide_nothing() -> None:
    load = replay()
    sight = requests(load, true_pace())
    odd = tuple(replace(s, value_s=s.value_s * 8) if i % 20 == 0 else s
                for i, s in enumerate(sight.samples))  # fmt: skip
    fit = calibrate([*probes(true_pace()), replace(sight, samples=odd)])
    assert fit.seconds()["b"] == pytest.approx(TRUE["b"], rel=0.06)


def test_percentiles_of_a_launch_will_do_where_requests_are_not_known() -> None:
    load = replay()
    times = run(load, LIMITS, true_pace())
    samples = tuple(
        Sample(what=what, value_s=latencies(load, times, what)[rank - 1], spread=0.03, rank=rank)  # type: ignore[arg-type]
        for what in ("ttft", "tpot")
        for rank in (45, 86)
    )
    fit = calibrate([*probes(true_pace()), Sight(load=load, limits=LIMITS, samples=samples)])
    assert fit.seconds()["b"] == pytest.approx(TRUE["b"], rel=0.05)


def test_nothing_to_calibrate_on_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to calibrate"):
        calibrate([Sight(load=replay(), limits=LIMITS, samples=())])


def test_the_first_belief_follows_the_machine() -> None:
    slow = first_belief(probes(pace_of([math.log(30 * TRUE[name]) for name in NAMES])))
    quick = first_belief(probes(true_pace()))
    assert slow.centre["b"] == pytest.approx(30 * quick.centre["b"], rel=0.2)
    assert slow.centre["m"] == pytest.approx(30 * quick.centre["m"], rel=0.2)
