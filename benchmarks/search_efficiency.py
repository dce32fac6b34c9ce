"""How much sooner the model-based search finds good settings than random search.

Prints one row per problem and sampler: the median regret (best feasible value over the optimum, in
percent) after 5, 10, 20 and 30 launches, and the share of launches that crashed. Problems are
synthetic, with 2 % noise and launch failures; nothing is really launched. Run:
`python benchmarks/search_efficiency.py`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Measured, Score
from autotune.search.choices import Choices
from autotune.search.optuna_proposer import OptunaProposer
from autotune.space.search_space import SearchSpace, load_space
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import METRICS

LAUNCHES = 30
CHECKPOINTS = (5, 10, 20, 30)
NOISE = 0.02
OBJECTIVE = Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95")
LIMIT = Constraint(
    metric=METRICS["tpot_p95"], op="<=", value=0.05, relative=False, text="tpot_p95 <= 50ms"
)
EMPTY = Measurement(
    validity=Validity(verdict="valid"), planned=1, ok=1, failed=0, failed_by_reason={}, metrics={},
    intervals={}, client={},
)  # fmt: skip
CRASH = Infeasible(
    diagnosis=Diagnosis(
        fault="candidate", phase="startup", reason="out_of_memory", remedy=None, message=""
    )
)
SPACE = load_space(
    {
        "knobs": {
            "tokens": {"type": "int", "range": [512, 32768], "log": True},
            "seqs": {"type": "int", "range": [8, 1024], "log": True},
            "memory": {"type": "float", "values": [0.8, 0.85, 0.9, 0.93, 0.96, 0.98]},
            "chunked": {"type": "switch"},
            "partial": {"type": "int", "values": [1, 2, 4, 8], "when": "chunked"},
            "dtype": {"type": "choice", "values": ["auto", "fp8"]},
        },
        "rules": ["tokens >= seqs"],
    }
)
Truth = Callable[[Mapping[str, Any]], tuple[float, float] | None]
"""Parameters -> (objective, signed violation), or None for a launch that fails."""


def prefill_heavy(params: Mapping[str, Any]) -> tuple[float, float] | None:
    """Large token budgets serve TTFT until TPOT breaks its limit."""
    tokens, seqs = math.log2(params["tokens"]), math.log2(params["seqs"])
    if params["memory"] >= 0.98:
        return None
    value = 1 + 0.08 * (13 - tokens) ** 2 + 0.05 * (7 - seqs) ** 2 + 2 * (0.96 - params["memory"])
    value += 0.3 if not params["chunked"] else 0.05 * abs(params["partial"] - 4)
    return value, (tokens - 13.5) / 13.5


def crash_heavy(params: Mapping[str, Any]) -> tuple[float, float] | None:
    """About 70 % of the space does not start: memory, batch and tokens compete."""
    tokens, seqs = math.log2(params["tokens"]), math.log2(params["seqs"])
    if tokens - 9 + seqs - 3 + 30 * (params["memory"] - 0.8) > 7.2:
        return None
    value = 1 + 0.05 * (11 - tokens) ** 2 + 0.05 * (6 - seqs) ** 2
    return value + (0.2 if params["dtype"] == "auto" else 0.0), -1.0


def tight_limit(params: Mapping[str, Any]) -> tuple[float, float] | None:
    """Only a narrow ridge meets the limit, and the objective pulls away from it."""
    tokens, seqs = math.log2(params["tokens"]), math.log2(params["seqs"])
    value = 1 + 0.1 * (15 - tokens) + (0.2 if params["dtype"] == "auto" else 0.0)
    return value, (tokens + 0.5 * seqs - 14.0) / 14.0


PROBLEMS: Mapping[str, Truth] = {
    "prefill-heavy": prefill_heavy,
    "crash-heavy": crash_heavy,
    "tight limit": tight_limit,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Regret after each launch (infinite before the first feasible one) and crashes in all."""

    regrets: tuple[float, ...]
    crashes: int


def optimum(space: SearchSpace, truth: Truth) -> float:
    choices = Choices(space, {})
    found = [choices.candidate(indices) for indices in choices.every()]
    results = [truth(candidate.params) for candidate in found if candidate is not None]
    return min(value for value, violation in filter(None, results) if violation <= 0)


def study(truth: Truth, best_possible: float, sampler: Any, seed: int) -> Run:
    proposer = OptunaProposer(SPACE, {}, [OBJECTIVE], [LIMIT], seed=seed, sampler=sampler)
    noise, best, crashes = Random(seed), math.inf, 0
    regrets = []
    for _ in range(LAUNCHES):
        proposal = proposer.ask()
        assert proposal is not None
        result = truth(proposal.candidate.params)
        if result is None:
            crashes += 1
            proposer.tell(proposal, CRASH)
        else:
            value, violation = result
            score = Score(
                values={OBJECTIVE.text: value * noise.gauss(1, NOISE)},
                violations={LIMIT.text: violation},
                limits={LIMIT.text: LIMIT.value},
            )
            proposer.tell(proposal, Measured(measurement=EMPTY, score=score))
            best = min(best, value) if violation <= 0 else best
        regrets.append(best / best_possible - 1)
    return Run(tuple(regrets), crashes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=50)
    seeds = parser.parse_args().seeds
    began = time.monotonic()
    heads = "".join(f"{f'after {n}':>10}" for n in CHECKPOINTS)
    print(f"{'problem':<15}{'sampler':<9}{heads}{'crashed':>10}")
    for name, truth in PROBLEMS.items():
        best_possible = optimum(SPACE, truth)
        for sampler in ("random", "tpe"):
            runs = [study(truth, best_possible, sampler, seed) for seed in range(seeds)]
            cells = [statistics.median(run.regrets[n - 1] for run in runs) for n in CHECKPOINTS]
            shown = "".join(f"{f'{cell:.1%}' if cell < 99 else 'none':>10}" for cell in cells)
            crashed = statistics.mean(run.crashes for run in runs) / LAUNCHES
            print(f"{name:<15}{sampler:<9}{shown}{crashed:>10.0%}")
    print(f"{seeds} seeds, {LAUNCHES} launches each, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
