"""What every proposer must do, whatever its method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Measured, Outcome, Score, Stopped, Unmeasurable
from autotune.search.guided import GuidedProposer
from autotune.search.optuna_proposer import OptunaProposer
from autotune.search.proposer import Known, Proposer
from autotune.search.simulated_forecast import SimulatedForecast, Wanted
from autotune.simulator.calibration import Sample, Sight
from autotune.simulator.load import Limits, jobs_at
from autotune.simulator.understanding import Understanding
from autotune.space.candidate import Candidate
from autotune.space.search_space import load_space
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import METRICS

SPACE = load_space(
    {
        "knobs": {
            "tokens": {"type": "int", "values": [512, 1024, 2048, 4096]},
            "dtype": {"type": "choice", "values": ["auto", "fp8"]},
            "offload": {"type": "switch"},
            "offload-gib": {"type": "int", "values": [1, 2, 4], "when": "offload"},
        },
        "rules": ["tokens >= 1024 or dtype == 'auto'"],
    }
)
TTFT = Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95")
TPUT = Objective(
    metric=METRICS["output_throughput"], direction="maximize", text="maximize output_throughput"
)
LIMIT = Constraint(
    metric=METRICS["tpot_p95"], op="<=", value=0.05, relative=False, text="tpot_p95 <= 50ms"
)
Make = Callable[..., Proposer]


def small_forecast(objectives: tuple[Objective, ...]) -> SimulatedForecast:
    """A calibrated model of some engine, to which every knob of the space is new."""
    load = jobs_at([0.1 * i for i in range(20)], [500] * 20, [20] * 20)
    sample = Sample(what="ttft", value_s=0.05, spread=0.05, rank=10)
    limits = Limits(budget=2048, seqs=64)
    return SimulatedForecast(
        lambda rate: load,
        Understanding(engine="vllm", baseline={}),
        lambda candidate: candidate.params,
        Wanted(objectives=objectives, constraints=(LIMIT,)),
        [Sight(load=load, limits=limits, samples=(sample,))],
    )


@pytest.fixture(params=["tpe", "random", "guided"])
def make(request: pytest.FixtureRequest) -> Make:
    def build(objectives: tuple[Objective, ...] = (TTFT,), **settings: Any) -> Proposer:
        if request.param == "guided":
            return GuidedProposer(
                SPACE, {}, objectives, (LIMIT,),
                forecast=lambda: small_forecast(objectives), **settings,
            )  # fmt: skip
        return OptunaProposer(
            SPACE, {}, objectives, (LIMIT,), sampler=request.param, n_startup=3, **settings
        )

    return build


def measured(objectives: tuple[Objective, ...], value: float, violation: float) -> Measured:
    measurement = Measurement(
        validity=Validity(verdict="valid"), planned=1, ok=1, failed=0, failed_by_reason={},
        metrics={}, intervals={}, client={},
    )  # fmt: skip
    score = Score(
        values={objective.text: value for objective in objectives},
        violations={LIMIT.text: violation},
        limits={LIMIT.text: 0.05},
    )
    return Measured(measurement=measurement, score=score)


def failed(fault: Any = "candidate") -> Infeasible:
    return Infeasible(
        diagnosis=Diagnosis(
            fault=fault, phase="startup", reason="out_of_memory", remedy=None, message=""
        )
    )


def outcome_of(number: int, objectives: tuple[Objective, ...]) -> Outcome:
    """One of each kind, in turn."""
    kinds: tuple[Outcome, ...] = (
        measured(objectives, 1.0 + number, -0.1),
        measured(objectives, 2.0, 12.0),
        failed(),
        failed("unknown"),
        Unmeasurable(reason="measurement_invalid", message=""),
    )
    return kinds[number % len(kinds)]


@pytest.mark.parametrize("objectives", [(TTFT,), (TPUT, TTFT)])
def test_every_allowed_candidate_is_proposed_once_and_then_the_space_is_used_up(
    make: Make, objectives: tuple[Objective, ...]
) -> None:
    proposer = make(objectives)
    found: list[Candidate] = []
    while (proposal := proposer.ask()) is not None:
        assert not SPACE.violations(proposal.candidate.params, {})
        assert SPACE.complete(proposal.candidate.params, {}) == proposal.candidate
        found.append(proposal.candidate)
        proposer.tell(proposal, outcome_of(len(found), objectives))
    assert len(found) == len(set(found)) == SPACE.size({})
    assert proposer.ask() is None


def test_open_proposals_differ_from_each_other(make: Make) -> None:
    proposer = make()
    proposals = [proposer.ask() for _ in range(8)]
    candidates = {proposal.candidate for proposal in proposals if proposal is not None}
    assert len(candidates) == 8
    for proposal in reversed(proposals):
        assert proposal is not None
        proposer.tell(proposal, measured((TTFT,), 1.0, 0.0))


def test_the_same_seed_and_history_give_the_same_proposals(make: Make) -> None:
    runs = []
    for _ in range(2):
        proposer, found = make(seed=5), []
        for number in range(12):
            proposal = proposer.ask()
            assert proposal is not None
            found.append(proposal.candidate.key)
            proposer.tell(proposal, outcome_of(number, (TTFT,)))
        runs.append(found)
    assert runs[0] == runs[1]
    other = make(seed=6).ask()
    assert other is not None
    assert [other.candidate.key] != runs[0][:1]


def test_known_trials_are_not_proposed_again_and_resume_does_not_begin_anew(make: Make) -> None:
    first = make(seed=1)
    known = [Known(candidate=Candidate({}), values=[5.0], violations={LIMIT.text: 0.0})]
    for number in range(6):
        proposal = first.ask()
        assert proposal is not None
        outcome = outcome_of(number % 3, (TTFT,))
        first.tell(proposal, outcome)
        known.append(
            Known(
                candidate=proposal.candidate,
                values=[1.0 + number] if isinstance(outcome, Measured) else None,
                violations={LIMIT.text: -0.1} if isinstance(outcome, Measured) else {},
                infeasible_reason=None if isinstance(outcome, Measured) else "out_of_memory",
            )
        )
    again = make(seed=1)
    again.seed(known)
    seen = {item.candidate for item in known}
    while (proposal := again.ask()) is not None:
        assert proposal.candidate not in seen
        seen.add(proposal.candidate)
        again.tell(proposal, failed())
    assert len(seen) == 1 + (SPACE.size({}) or 0)


def test_an_interrupted_candidate_may_be_proposed_again(make: Make) -> None:
    proposer = make()
    proposal = proposer.ask()
    assert proposal is not None
    proposer.tell(proposal, Stopped())
    found = set()
    while (other := proposer.ask()) is not None:
        found.add(other.candidate)
        proposer.tell(other, failed())
    assert proposal.candidate in found


def test_a_known_trial_without_a_verdict_may_be_proposed_again(make: Make) -> None:
    proposer = make()
    broken = Candidate({"tokens": 512, "dtype": "auto", "offload": False})
    proposer.seed([Known(candidate=broken, values=None, violations={})])
    found = set()
    while (proposal := proposer.ask()) is not None:
        found.add(proposal.candidate)
        proposer.tell(proposal, failed())
    assert broken in found
