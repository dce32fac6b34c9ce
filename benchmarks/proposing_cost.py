"""What one proposal costs in a long study, for every search method.

Prints one row per method: seconds of `ask` plus `tell` at the end of a search of `--trials` trials
(median and longest of the last 20), the same after a resume from as many known trials, and what
`seed` itself took. The space is the shipped `vllm` one (about 32,000 settings, conditional knobs);
one launch in five fails, two limits, noise of 2 %. Nothing is launched. `guided` is given a history
of random trials, for it has to simulate what it proposes; see it resumed.

    python benchmarks/proposing_cost.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from random import Random
from typing import Any

from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Measured, Outcome, Score
from autotune.search.catalog import METHODS, make_proposer
from autotune.search.proposer import Known, Proposer
from autotune.search.simulated_forecast import MOST_SIGHTS, SimulatedForecast, Wanted
from autotune.simulator.calibration import Sample, Sight
from autotune.simulator.load import Limits, jobs_at
from autotune.simulator.understanding import Understanding
from autotune.space.candidate import Candidate
from autotune.space.search_space import load_space
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import METRICS

LAST = 20
SPACE = load_space("vllm")
FACTS: Mapping[str, Any] = {
    "engine.kind": "vllm", "engine.version": "0.26.0", "gpu.count": 1, "gpu.memory_gib": 80.0,
    "gpu.compute_capability": 9.0, "model.heads": 28, "model.experts": 0, "max-model-len": 8192,
    "workload.prefix_reuse": 0.2, "workload.input_p50": 500, "workload.input_p99": 8000,
}  # fmt: skip
OBJECTIVES = [
    Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95"),
    Objective(
        metric=METRICS["output_throughput"], direction="maximize", text="maximize output_throughput"
    ),
]
LIMITS = [
    Constraint(metric=METRICS[name], op="<=", value=1.0, relative=False, text=f"{name} <= 1s")
    for name in ("tpot_p95", "e2e_p95")
]
EMPTY = Measurement(
    validity=Validity(verdict="valid"), planned=1, ok=1, failed=0, failed_by_reason={}, metrics={},
    intervals={}, client={},
)  # fmt: skip
CRASH = Diagnosis(
    fault="candidate", phase="startup", reason="out_of_memory", remedy="lower_memory", message=""
)


def numbers(
    candidate: Candidate, noise: Random, model: SimulatedForecast | None
) -> tuple[float, float, float] | None:
    """Value, other value, violation of some settings; None for a launch that fails. `model`: what
    is right but for the noise, so that `guided` goes on to follow it.
    """
    key = Random(candidate.key)
    if key.random() < 0.2:
        return None
    blur = noise.gauss(1, 0.02)
    predicted = None if model is None else model.predict(candidate)
    if predicted is not None:
        metrics = predicted.metrics
        return metrics["ttft_p95_s"] * blur, 1.0, metrics["tpot_p95_s"] * blur - 1
    size = candidate.params.get("max-num-batched-tokens", 2048) / 2048
    value = (size + 1 / size + key.random()) * blur
    return value, 100 * size / value, key.uniform(-0.5, 0.5)


def outcome_of(found: tuple[float, float, float] | None, count: int) -> Outcome:
    if found is None:
        return Infeasible(diagnosis=CRASH)
    values = dict(zip((o.text for o in OBJECTIVES[:count]), found, strict=False))
    violations = {limit.text: found[2] for limit in LIMITS}
    score = Score(values=values, violations=violations, limits=dict.fromkeys(violations, 1.0))
    metrics = {"ttft_p95_s": found[0], "output_throughput_tps": found[1],
               "tpot_p95_s": 1 + found[2], "e2e_p95_s": 1 + found[2]}  # fmt: skip
    return Measured(measurement=replace(EMPTY, metrics=metrics), score=score)


def known_of(candidate: Candidate, found: tuple[float, float, float] | None, count: int) -> Known:
    if found is None:
        return Known(
            candidate=candidate, values=None, violations={}, infeasible_reason="out_of_memory"
        )
    violations = {limit.text: found[2] for limit in LIMITS}
    return Known(candidate=candidate, values=found[:count], violations=violations)


def forecast(objectives: Sequence[Objective]) -> SimulatedForecast:
    """A calibrated model of some engine under two minutes of traffic, for `guided`."""
    load = jobs_at([0.25 * i for i in range(480)], [800] * 480, [100] * 480)
    sample = Sample(what="ttft", value_s=0.05, spread=0.05, rank=240)
    return SimulatedForecast(
        lambda rate: load,
        Understanding(engine="vllm", baseline={}),
        lambda candidate: candidate.params,
        Wanted(objectives=objectives, constraints=LIMITS),
        [Sight(load=load, limits=Limits(budget=2048, seqs=64), samples=(sample,))],
    )


def search(
    proposer: Proposer, trials: int, count: int, model: SimulatedForecast | None
) -> tuple[list[float], list[Known]]:
    """Seconds of each ask and tell, and what a resume would be given."""
    noise, seconds, known = Random(0), [], []
    for _ in range(trials):
        began = time.perf_counter()
        proposal = proposer.ask()
        asked_s = time.perf_counter() - began
        if proposal is None:
            break
        found = numbers(proposal.candidate, noise, model)
        outcome = outcome_of(found, count)
        began = time.perf_counter()
        proposer.tell(proposal, outcome)
        seconds.append(asked_s + time.perf_counter() - began)
        known.append(known_of(proposal.candidate, found, count))
    return seconds, known


def row(method: Any, trials: int, count: int) -> str:
    objectives = OBJECTIVES[:count]

    known: list[Known] = []

    def make(name: Any) -> Proposer:
        return make_proposer(
            name, SPACE, FACTS, objectives, LIMITS, seed=1,
            forecast=lambda: taught(forecast(objectives), known, objectives),
        )  # fmt: skip

    guided = method == "guided"
    model = forecast(objectives) if guided else None
    live, found = search(make("random" if guided else method), trials, count, model)
    known += found
    resumed = make(method)
    began = time.perf_counter()
    resumed.seed(known)
    seed_s = time.perf_counter() - began
    after, _ = search(resumed, LAST, count, model)
    last = [] if guided else live[-LAST:]
    return f"{method:<9}{count:>11}{_cells(last)}{_cells(after)}{seed_s:>9.2f}"


def taught(
    model: SimulatedForecast, known: Sequence[Known], objectives: Sequence[Objective]
) -> SimulatedForecast:
    """The model after so many trials as it is calibrated on."""
    served = [item for item in known if item.values is not None]
    for item in served[:MOST_SIGHTS]:
        assert item.values is not None
        values = zip(objectives, item.values, strict=True)
        model.learn(item.candidate, {o.metric.key: value for o, value in values})
    return model


def _cells(seconds: Sequence[float]) -> str:
    if not seconds:
        return f"{'':>20}"
    return f"{statistics.median(seconds):>10.3f}{max(seconds):>10.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    asked = parser.parse_args()
    print(f"seconds per proposal at {asked.trials} trials")
    print(f"{'method':<9}{'objectives':>11}{'live':>10}{'longest':>10}{'resumed':>10}"
          f"{'longest':>10}{'seed':>9}")  # fmt: skip
    for method in asked.methods:
        if method == "gp" and find_spec("torch") is None:
            print("gp        (torch is not installed)")
            continue
        for count in (1,) if method == "guided" else (1, 2):
            print(row(method, asked.trials, count), flush=True)


if __name__ == "__main__":
    main()
