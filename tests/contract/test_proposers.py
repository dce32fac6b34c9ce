"""What every proposer must do, whatever its method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest

from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Measured, Outcome, Score, Stopped, Unmeasurable
from autotune.search.catalog import METHODS, Method, make_proposer
from autotune.search.proposer import Known, Proposal, Proposer
from autotune.search.simulated_forecast import SimulatedForecast, Wanted
from autotune.simulator.calibration import Sample, Sight
from autotune.simulator.load import Limits, jobs_at
from autotune.simulator.understanding import Understanding
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace, load_space
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
WIDE = load_space(
    {
        "knobs": {
            "trap": {"type": "choice", "values": ["deadly", "slow", "safe"]},
            "size": {"type": "int", "values": [1, 2, 4, 8]},
            "switch": {"type": "switch"},
            "extra": {"type": "int", "values": [0, 1, 2], "when": "switch"},
        }
    }
)
TTFT = Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95")
TPUT = Objective(
    metric=METRICS["output_throughput"], direction="maximize", text="maximize output_throughput"
)
E2E = Objective(metric=METRICS["e2e_p95"], direction="minimize", text="minimize e2e_p95")
LIMIT = Constraint(
    metric=METRICS["tpot_p95"], op="<=", value=0.05, relative=False, text="tpot_p95 <= 50ms"
)
LEARN: tuple[Method, ...] = ("guided", "tpe", "gp", "nsga2")
Make = Callable[..., Proposer]
Aims = tuple[Objective, ...]


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


def method_named(name: Method) -> Make:
    if name == "gp" and find_spec("torch") is None:
        pytest.skip("torch is not installed")

    def build(
        objectives: Aims = (TTFT,), *, space: SearchSpace = SPACE, **settings: Any
    ) -> Proposer:
        return make_proposer(
            name, space, {"engine.kind": "vllm"}, objectives, (LIMIT,),
            forecast=lambda: small_forecast(objectives), **settings,
        )  # fmt: skip

    return build


@pytest.fixture(params=METHODS)
def make(request: pytest.FixtureRequest) -> Make:
    return method_named(request.param)


@pytest.fixture(params=LEARN)
def make_learner(request: pytest.FixtureRequest) -> Make:
    return method_named(request.param)


def measured(objectives: Aims, values: Sequence[float], violation: float) -> Measured:
    metrics = {f"{o.metric.name}_s": value for o, value in zip(objectives, values, strict=True)}
    measurement = Measurement(
        validity=Validity(verdict="valid"), planned=1, ok=1, failed=0, failed_by_reason={},
        metrics={**metrics, "tpot_p95_s": 0.05 * (1 + violation)}, intervals={}, client={},
    )  # fmt: skip
    score = Score(
        values=dict(zip((o.text for o in objectives), values, strict=True)),
        violations={LIMIT.text: violation},
        limits={LIMIT.text: 0.05},
    )
    return Measured(measurement=measurement, score=score)


def failed(fault: Any = "candidate", remedy: str | None = None) -> Infeasible:
    return Infeasible(
        diagnosis=Diagnosis(
            fault=fault, phase="startup", reason="out_of_memory", remedy=remedy, message=""
        )
    )


def outcome_of(number: int, objectives: Aims) -> Outcome:
    """One of each kind, in turn."""
    count = len(objectives)
    kinds: tuple[Outcome, ...] = (
        measured(objectives, [1.0 + number] * count, -0.1),
        measured(objectives, [2.0] * count, 12.0),
        failed(remedy="lower_memory"),
        failed("unknown"),
        Unmeasurable(reason="measurement_invalid", message=""),
    )
    return kinds[number % len(kinds)]


def asked(proposer: Proposer) -> Proposal:
    proposal = proposer.ask()
    assert proposal is not None
    return proposal


def known_of(candidate: Candidate, outcome: Outcome) -> Known:
    """What a resumed run is told of a trial."""
    if isinstance(outcome, Measured):
        values, violations = list(outcome.score.values.values()), outcome.score.violations
        return Known(candidate=candidate, values=values, violations=violations)
    diagnosis = outcome.diagnosis if isinstance(outcome, Infeasible) else None
    return Known(candidate=candidate, values=None, violations={}, diagnosis=diagnosis)


def run(
    proposer: Proposer, outcome: Callable[[Candidate], Outcome], launches: int
) -> list[Candidate]:
    """Candidates in the order of their launches."""
    found = []
    for _ in range(launches):
        proposal = asked(proposer)
        found.append(proposal.candidate)
        proposer.tell(proposal, outcome(proposal.candidate))
    return found


@pytest.mark.parametrize("objectives", [(TTFT,), (TPUT, TTFT), (TTFT, TPUT, E2E)])
def test_every_allowed_candidate_is_proposed_once_and_then_the_space_is_used_up(
    make: Make, objectives: Aims
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
    run(proposer, lambda _: measured((TTFT,), [1.0], 0.0), 6)
    proposals = [asked(proposer) for _ in range(8)]
    assert len({proposal.candidate for proposal in proposals}) == 8
    for proposal in reversed(proposals):
        proposer.tell(proposal, measured((TTFT,), [1.0], 0.0))


def test_open_proposals_can_be_the_rest_of_a_space(make: Make) -> None:
    proposer = make()
    proposals = []
    while (proposal := proposer.ask()) is not None:
        proposals.append(proposal)
    assert len({p.candidate for p in proposals}) == len(proposals) == SPACE.size({})
    for proposal in proposals:
        proposer.tell(proposal, outcome_of(proposal.token, (TTFT,)))
    assert proposer.ask() is None


def test_the_same_seed_and_history_give_the_same_proposals(make: Make) -> None:
    runs = []
    for _ in range(2):
        proposer, found = make(seed=5), []
        for number in range(12):
            proposal = asked(proposer)
            found.append(proposal.candidate.key)
            proposer.tell(proposal, outcome_of(number, (TTFT,)))
        runs.append(found)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", ["tpe", "gp", "nsga2", "random", "qmc"])
def test_another_seed_gives_other_proposals(name: Method) -> None:
    make = method_named(name)
    one, other = (run(make(seed=seed), lambda _: failed(), 5) for seed in (5, 6))
    assert one != other


def test_known_trials_are_not_proposed_again_and_resume_does_not_begin_anew(make: Make) -> None:
    first = make(seed=1)
    known = [Known(candidate=Candidate({}), values=[5.0], violations={LIMIT.text: 0.0})]
    for number in range(6):
        proposal = asked(first)
        outcome = outcome_of(number % 3, (TTFT,))
        first.tell(proposal, outcome)
        known.append(known_of(proposal.candidate, outcome))
    again = make(seed=1)
    again.seed(known)
    seen = {item.candidate for item in known}
    while (proposal := again.ask()) is not None:
        assert proposal.candidate not in seen
        seen.add(proposal.candidate)
        again.tell(proposal, failed())
    assert len(seen) == 1 + (SPACE.size({}) or 0)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "guided"])
def test_a_resumed_search_goes_on_as_the_live_one_would(name: Method) -> None:
    make, noise, known = method_named(name), Random(3), []
    live = make(seed=4, space=WIDE)
    for _ in range(12):
        proposal = asked(live)
        outcome = measured((TTFT,), [noise.uniform(1, 2)], noise.uniform(-1, 1))
        live.tell(proposal, outcome)
        known.append(known_of(proposal.candidate, outcome))
    resumed = make(seed=4, space=WIDE)
    resumed.seed(known)
    for _ in range(3):
        one, other = asked(live), asked(resumed)
        assert one.candidate == other.candidate
        for proposer, proposal in ((live, one), (resumed, other)):
            proposer.tell(proposal, measured((TTFT,), [1.5], -0.5))


def test_a_search_can_be_told_of_trials_of_others_while_it_runs(make: Make) -> None:
    proposer = make()
    proposer.seed([])
    found = run(proposer, lambda _: measured((TTFT,), [1.0], -0.5), 6)
    other = next(c for c in SPACE.candidates({}) if c not in found)
    proposer.seed([Known(candidate=other, values=[2.0], violations={LIMIT.text: 1.0})])
    left = []
    while (proposal := proposer.ask()) is not None:
        left.append(proposal.candidate)
        proposer.tell(proposal, failed())
    assert other not in left


def test_an_interrupted_candidate_may_be_proposed_again(make: Make) -> None:
    proposer = make()
    proposal = asked(proposer)
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


def test_what_is_asked_for_first_comes_first_if_it_is_allowed_and_new(make: Make) -> None:
    forbidden = Candidate({"tokens": 512, "dtype": "fp8", "offload": False})
    known = Candidate({"tokens": 1024, "dtype": "fp8", "offload": False})
    wanted = [
        Candidate({"tokens": 2048, "dtype": "fp8", "offload": True, "offload-gib": 2}),
        Candidate({"tokens": 4096, "dtype": "auto", "offload": False}),
    ]
    proposer = make(first=[forbidden, known, *wanted])
    proposer.seed([Known(candidate=known, values=[1.0], violations={LIMIT.text: 0.0})])
    assert run(proposer, lambda _: failed(), 2) == wanted


def test_failures_teach(make_learner: Make) -> None:
    """A third of the space dies at once; each method keeps away from it once it has seen that."""

    def dies(candidate: Candidate) -> Outcome:
        if candidate.params["trap"] == "deadly":
            return failed()
        return measured((TTFT,), [2.0 - candidate.params["size"] / 10], -0.5)

    deaths = 0
    for seed in range(4):
        launched = run(make_learner(seed=seed, space=WIDE), dies, 20)
        deaths += sum(candidate.params["trap"] == "deadly" for candidate in launched[8:])
    assert deaths / (4 * 12) < 0.7 / 3


def test_a_space_of_a_million_million_settings_is_no_obstacle(make: Make) -> None:
    knobs = {f"k{i}": {"type": "int", "range": [0, 9]} for i in range(12)}
    proposer = make(space=load_space({"knobs": knobs, "rules": ["k0 > k1", "k2 > k3"]}))
    found = run(proposer, lambda c: measured((TTFT,), [1.0 + c.params["k0"]], -0.5), 9)
    assert len(set(found)) == 9
    assert all(c.params["k0"] > c.params["k1"] for c in found)


def test_the_few_candidates_that_rules_leave_are_all_found(make: Make) -> None:
    knobs = {f"k{i}": {"type": "int", "range": [0, 15]} for i in range(3)}
    space = load_space({"knobs": knobs, "rules": ["k0 + k1 + k2 <= 1"]})
    proposer, found = make(space=space), set()
    while (proposal := proposer.ask()) is not None:
        found.add(proposal.candidate)
        proposer.tell(proposal, measured((TTFT,), [1.0], -0.5))
    assert len(found) == 4
