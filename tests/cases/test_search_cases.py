"""Faults of other tuners' searches, each rebuilt small: E01, E03, E06, E07, E09, E10."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from autotune.engines.engine import Diagnosis
from autotune.measure.comparison import Standing, decide
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Measured, Score, Stopped
from autotune.measure.scoring import score
from autotune.search.finalists import Contender, choose
from autotune.search.optuna_proposer import OptunaProposer
from autotune.search.proposer import Known
from autotune.space.candidate import Candidate
from autotune.space.search_space import load_space
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import METRICS

TTFT = Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95")
TPUT = Objective(
    metric=METRICS["output_throughput"], direction="maximize", text="maximize output_throughput"
)


def limit(metric: str, op: Any, value: float) -> Constraint:
    return Constraint(
        metric=METRICS[metric], op=op, value=value, relative=False, text=f"{metric} {op} {value:g}"
    )


LIMITS = [limit("ttft_p99", "<=", 0.5), limit("tpot_p99", "<=", 0.05),
          limit("success_rate", ">=", 0.99)]  # fmt: skip


def measurement(**metrics: float) -> Measurement:
    return Measurement(
        validity=Validity(verdict="valid"), planned=100, ok=100, failed=0, failed_by_reason={},
        metrics=metrics, intervals={}, client={},
    )  # fmt: skip


def measured(value: float) -> Measured:
    return Measured(
        measurement=measurement(),
        score=Score(values={TTFT.text: value}, violations={}, limits={}),
    )


def crashed(reason: str = "out_of_memory") -> Infeasible:
    return Infeasible(
        diagnosis=Diagnosis(
            fault="candidate", phase="startup", reason=reason, remedy="lower_memory", message=""
        )
    )


@pytest.mark.parametrize("seed", range(10))
def test_e01_failed_parameters_are_launched_once_and_avoided(seed: int) -> None:
    space = load_space(
        {
            "knobs": {
                "memory": {"type": "choice", "values": [0.80, 0.90, 0.98]},
                "tokens": {"type": "int", "range": [1, 12]},
            }
        }
    )
    search = OptunaProposer(space, {}, [TTFT], [], seed=seed)
    launched: list[Candidate] = []
    for _ in range(20):
        proposal = search.ask()
        assert proposal is not None
        launched.append(proposal.candidate)
        params = proposal.candidate.params
        fatal = params["memory"] == 0.98
        search.tell(proposal, crashed() if fatal else measured(1 + abs(params["tokens"] - 7)))
    assert len(set(launched)) == 20
    fatal_ones = Counter(candidate.params["memory"] for candidate in launched)[0.98]
    assert fatal_ones <= 7


def test_e01_in_a_space_that_mostly_crashes_the_search_goes_where_it_does_not() -> None:
    space = load_space(
        {"knobs": {"x": {"type": "int", "range": [0, 30]}, "y": {"type": "int", "range": [0, 30]}}}
    )
    crashes: dict[str, list[int]] = {"tpe": [], "random": []}
    for sampler, counts in crashes.items():
        for seed in range(8):
            search = OptunaProposer(space, {}, [TTFT], [], seed=seed, sampler=sampler)  # type: ignore[arg-type]
            count = 0
            for _ in range(40):
                proposal = search.ask()
                assert proposal is not None
                x, y = (int(proposal.candidate.params[name]) for name in ("x", "y"))
                fatal = x + y > 23  # 70 % of the space
                count += fatal
                search.tell(
                    proposal, crashed() if fatal else measured(1.0 + abs(x - 8) + abs(y - 8))
                )
            counts.append(count)
    assert sum(crashes["random"]) / 8 / 40 == pytest.approx(0.7, abs=0.06)
    assert sum(crashes["tpe"]) < 0.7 * sum(crashes["random"])


def test_e03_a_space_that_grew_on_resume_is_searched_without_repeating() -> None:
    space = load_space({"knobs": {"block-size": {"type": "int", "values": [8, 16, 32]}}})
    search = OptunaProposer(space, {}, [TTFT], [])
    search.seed(
        [
            Known(candidate=Candidate({"block-size": size}), values=[1.0], violations={})
            for size in (8, 16)
        ]
    )
    proposal = search.ask()
    assert proposal is not None
    assert proposal.candidate == Candidate({"block-size": 32})
    search.tell(proposal, measured(0.5))
    assert search.ask() is None


def test_e06_a_small_space_is_launched_once_each_and_then_ends() -> None:
    space = load_space({"knobs": {"one": {"type": "switch"}, "two": {"type": "switch"}}})
    search = OptunaProposer(space, {}, [TTFT], [])
    launched = []
    for _ in range(50):
        proposal = search.ask()
        if proposal is None:
            break
        launched.append(proposal.candidate)
        search.tell(proposal, measured(1.0))
    assert len(launched) == len(set(launched)) == 4


def test_e07_when_nothing_meets_the_limits_nothing_is_recommended() -> None:
    field = [Contender(trial=n, value=0.1 * n, feasible=False) for n in range(5)]
    assert choose(field, field[0], direction="minimize", count=3) == ()
    verdict = decide(
        objective=TTFT, baseline=Standing(trial=0, value=0.1, feasible=False), best=None
    )
    assert verdict.verdict == "no_feasible"
    assert verdict.best is None


def test_e09_trials_without_measurements_never_count_as_feasible() -> None:
    space = load_space({"knobs": {"x": {"type": "int", "range": [0, 30]}}})
    search = OptunaProposer(space, {}, [TTFT], LIMITS, n_startup=1)
    ended = (crashed(), Stopped())
    for outcome in ended:
        proposal = search.ask()
        assert proposal is not None
        search.tell(proposal, outcome)
    proposal = search.ask()
    assert proposal is not None
    good = Score(values={TTFT.text: 1.0}, violations={c.text: -0.1 for c in LIMITS}, limits={})
    search.tell(proposal, Measured(measurement=measurement(), score=good))
    assert search.ask() is not None
    field = [
        Contender(trial=0, value=None, feasible=False),
        Contender(trial=1, value=None, feasible=False),
        Contender(trial=2, value=1.0, feasible=True),
    ]
    assert choose(field, None, direction="minimize", count=3) == (2,)


def test_e10_the_winner_is_the_best_of_those_that_meet_every_limit() -> None:
    rows: list[tuple[float, float, float] | None] = [
        (1000, 0.300, 0.030), (1800, 0.900, 0.040), (1400, 0.480, 0.045), None,
        (1500, 0.499, 0.0505), (1390, 0.200, 0.020),
    ]  # fmt: skip
    field = []
    for number, row in enumerate(rows):
        if row is None:
            field.append(Contender(trial=number, value=None, feasible=False))
            continue
        found = score(
            measurement(
                output_throughput_tps=row[0], ttft_p99_s=row[1], tpot_p99_s=row[2], success_rate=1.0
            ),
            [TPUT],
            LIMITS,
            {},
        )
        assert isinstance(found, Score)
        field.append(
            Contender(trial=number, value=found.values[TPUT.text], feasible=found.feasible)
        )
    assert choose(field, field[0], direction="maximize", count=1) == (2,)
