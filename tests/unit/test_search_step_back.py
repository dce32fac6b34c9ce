from __future__ import annotations

from typing import Any

import pytest

from autotune.canonical import Json
from autotune.engines.engine import Diagnosis
from autotune.engines.facts import engine_facts
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Measured, Score
from autotune.search.choices import Choices
from autotune.search.optuna_proposer import OptunaProposer
from autotune.search.proposer import Known
from autotune.search.step_back import MOST_STEPS, Step, StepBack
from autotune.space.candidate import Candidate
from autotune.space.search_space import load_space
from autotune.spec.expressions import parse_objective

SPACE = load_space(
    {
        "knobs": {
            "max-num-batched-tokens": {"type": "int", "values": [1024, 2048, 4096, 8192]},
            "memory": {
                "type": "float", "values": [0.85, 0.9, 0.95, 0.97],
                "flag": "gpu-memory-utilization",
            },
            "kv-cache-dtype": {"type": "choice", "values": ["auto", "fp8"]},
            "block-size": {"type": "int", "values": [16, 32, 64]},
        }
    }
)  # fmt: skip
CHOICES = Choices(SPACE, {})
SERVED = {"max-num-batched-tokens": 1, "memory": 1, "kv-cache-dtype": 0, "block-size": 0}


def failure(
    remedy: str | None = "lower_memory", reason: str = "out_of_memory", **facts: Json
) -> Diagnosis:
    return Diagnosis(
        fault="candidate", phase="startup", reason=reason, remedy=remedy, message="", facts=facts
    )


def step_from(
    failed: dict[str, int], diagnosis: Diagnosis, served: Any = (SERVED,), depth: int = 0
) -> Step | None:
    back = StepBack(CHOICES, engine_facts("vllm").memory_order)
    back.learn(failed, diagnosis, depth=depth)
    return back.next(served, lambda candidate: False)


def changed(step: Step | None, failed: dict[str, int]) -> dict[str, int]:
    assert step is not None
    return {name: at for name, at in step.indices.items() if at != failed[name]}


def test_too_much_memory_takes_one_step_back_on_what_was_raised() -> None:
    failed = {**SERVED, "max-num-batched-tokens": 3, "block-size": 2}
    step = step_from(failed, failure())
    assert changed(step, failed) == {"max-num-batched-tokens": 2}
    assert step is not None
    assert step.why == (
        "one step back from settings that failed (out of memory): "
        "max-num-batched-tokens 4096 instead of 8192"
    )


def test_the_memory_share_goes_first_where_both_were_raised() -> None:
    failed = {**SERVED, "max-num-batched-tokens": 3, "memory": 3}
    assert changed(step_from(failed, failure()), failed) == {"memory": 2}


def test_too_little_memory_raises_the_share_or_asks_for_less() -> None:
    failed = {**SERVED, "memory": 0, "max-num-batched-tokens": 3}
    assert changed(step_from(failed, failure("raise_memory")), failed) == {"memory": 1}
    failed = {**SERVED, "memory": 3, "max-num-batched-tokens": 3}
    step = step_from(failed, failure("raise_memory"))
    assert changed(step, failed) == {"max-num-batched-tokens": 2}


def test_the_direction_of_the_diagnosis_counts_before_its_remedy() -> None:
    failed = {**SERVED, "memory": 0, "max-num-batched-tokens": 3}
    step = step_from(failed, failure(None, memory_direction="raise"))
    assert changed(step, failed) == {"memory": 1}


def test_without_anything_that_served_the_remedy_says_where_to_go() -> None:
    failed = {**SERVED, "memory": 3}
    assert changed(step_from(failed, failure(), served=()), failed) == {"memory": 2}


def test_a_blamed_flag_is_set_back() -> None:
    failed = {**SERVED, "memory": 2, "block-size": 2, "kv-cache-dtype": 1}
    diagnosis = failure("change_value", "unsupported_dtype", blames=["kv-cache-dtype"])
    assert changed(step_from(failed, diagnosis), failed) == {"kv-cache-dtype": 0}


def test_a_value_that_never_served_is_suspect_if_it_is_the_only_one() -> None:
    other = {**SERVED, "block-size": 2}
    failed = {**SERVED, "kv-cache-dtype": 1, "block-size": 2, "memory": 2}
    diagnosis = failure(None, "died")
    both = step_from(failed, diagnosis, served=(SERVED, other))
    assert both is None
    failed["memory"] = 1
    single = step_from(failed, diagnosis, served=(SERVED,))
    assert single is None
    third = {**SERVED, "kv-cache-dtype": 1, "memory": 2}
    failed = {**SERVED, "kv-cache-dtype": 1, "memory": 2, "block-size": 2}
    nearest = step_from(failed, diagnosis, served=(SERVED, third))
    assert changed(nearest, failed) == {"block-size": 0}


@pytest.mark.parametrize(
    ("diagnosis", "depth"),
    [
        (failure(), MOST_STEPS),
        (Diagnosis(fault="environment", phase="startup", reason="x", remedy=None, message=""), 0),
        (failure(None, "died"), 0),
    ],
)
def test_where_nothing_is_to_be_undone_nothing_is_offered(diagnosis: Diagnosis, depth: int) -> None:
    failed = {**SERVED, "memory": 3} if depth else {**SERVED, "memory": 3, "block-size": 1}
    assert step_from(failed, diagnosis, depth=depth) is None


def test_what_was_seen_is_not_offered() -> None:
    back = StepBack(CHOICES, engine_facts("vllm").memory_order)
    back.learn({**SERVED, "memory": 3}, failure(), depth=0)
    assert back.next((SERVED,), lambda candidate: True) is None


def test_a_promising_candidate_that_ran_out_of_memory_is_followed_by_its_neighbour() -> None:
    """Around the best, a failed launch is answered with one step back, and that with one more."""
    objective = parse_objective("minimize ttft_p95")
    search = OptunaProposer(SPACE, {"engine.kind": "vllm"}, [objective], [])
    today = Candidate({"max-num-batched-tokens": 2048, "memory": 0.9,
                       "kv-cache-dtype": "auto", "block-size": 16})  # fmt: skip
    search.seed([Known(candidate=today, values=[1.0], violations={})])
    steps = 0
    for _ in range(30):
        proposal = search.ask()
        assert proposal is not None
        if proposal.why is not None:
            steps += 1
            assert proposal.why.startswith("one step back from settings that failed")
        if proposal.candidate.params["memory"] > 0.9:
            search.tell(proposal, Infeasible(diagnosis=failure()))
            continue
        measurement = Measurement(
            validity=Validity(verdict="valid"), planned=1, ok=1, failed=0, failed_by_reason={},
            metrics={}, intervals={}, client={},
        )  # fmt: skip
        value = 2.0 - proposal.candidate.params["memory"]
        score = Score(values={objective.text: value}, violations={}, limits={})
        search.tell(proposal, Measured(measurement=measurement, score=score))
    assert steps > 0
