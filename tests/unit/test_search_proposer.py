"""What the sampler is taught, seen through the SQLite copy and over many seeds."""

from __future__ import annotations

import math
import sqlite3
import statistics
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import optuna
import pytest

from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import (
    CANNOT_BEAT_BEST,
    EarlyEnd,
    Infeasible,
    Measured,
    Outcome,
    Score,
    Unmeasurable,
)
from autotune.search import optuna_copy
from autotune.search.optuna_proposer import OptunaProposer
from autotune.search.proposer import Known
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace, load_space
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import METRICS

TTFT = Objective(metric=METRICS["ttft_p95"], direction="minimize", text="minimize ttft_p95")
LIMITS = tuple(
    Constraint(metric=METRICS[name], op="<=", value=1.0, relative=False, text=f"{name} <= 1s")
    for name in ("tpot_p95", "e2e_p95")
)
NAMES = ("launch", "rule", "cannot_beat_best", *(limit.text for limit in LIMITS))
SMOOTH = load_space(
    {
        "knobs": {
            "a": {"type": "int", "range": [0, 15]},
            "b": {"type": "int", "range": [0, 15]},
            "c": {"type": "choice", "values": ["x", "y", "z"]},
            "d": {"type": "switch"},
        }
    }
)
CRASH = Infeasible(
    diagnosis=Diagnosis(
        fault="candidate", phase="startup", reason="out_of_memory", remedy=None, message=""
    )
)


def measured(value: Any, *violations: float) -> Measured:
    measurement = Measurement(
        validity=Validity(verdict="valid"), planned=1, ok=1, failed=0, failed_by_reason={},
        metrics={}, intervals={}, client={},
    )  # fmt: skip
    signed = {limit.text: v for limit, v in zip(LIMITS, violations or (-1, -1), strict=True)}
    values = {} if value is None else {TTFT.text: value}
    return Measured(
        measurement=measurement, score=Score(values=values, violations=signed, limits={})
    )


def proposer(space: SearchSpace = SMOOTH, **settings: Any) -> OptunaProposer:
    return OptunaProposer(space, {}, [TTFT], LIMITS, **settings)


def stored(path: Path) -> list[optuna.trial.FrozenTrial]:
    study = optuna.load_study(study_name="autotune", storage=f"sqlite:///{path}")
    return study.trials


def test_outcomes_become_states_and_every_trial_has_every_constraint(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    search = proposer(storage_path=path)
    outcomes: list[Outcome] = [
        measured(0.5, -0.2, 3.0), CRASH, Unmeasurable(reason="measurement_invalid", message=""),
        measured(None), measured(math.nan), measured(math.inf),
    ]  # fmt: skip
    for outcome in outcomes:
        proposal = search.ask()
        assert proposal is not None
        search.tell(proposal, outcome)
    trials = stored(path)
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED"] + ["FAIL"] * 4
    assert trials[0].values == [0.5]
    assert set(trials[0].constraints) == set(trials[1].constraints) == set(NAMES)
    assert trials[0].constraints[LIMITS[0].text] == -0.2
    assert 0 < trials[0].constraints[LIMITS[1].text] < 1
    assert set(trials[1].constraints.values()) == {1.0}
    assert all(trial.values is None for trial in trials[1:])


def test_a_candidate_that_served_badly_ranks_before_one_that_did_not_start(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    search = proposer(storage_path=path)
    for outcome in (measured(9.0, 1e9, 1e9), CRASH):
        proposal = search.ask()
        assert proposal is not None
        search.tell(proposal, outcome)
    served, crashed = (sum(max(0, v) for v in trial.constraints.values()) for trial in stored(path))
    assert served < crashed


def ended_early(key: str, violation: float) -> Infeasible:
    end = EarlyEnd(
        rule="limit_out_of_reach", target=key, key=key, limit=1.0, best=1.1, seen=1.0 + violation,
        violation=violation, planned=100, ended=9, over=6, needed=6, at_s=2.0, last_due_s=20.0,
        saved_s=19.0,
    )  # fmt: skip
    return Infeasible(diagnosis=CRASH.diagnosis, stopped=end)


def test_of_a_replay_that_was_ended_early_only_what_is_certain_is_learned(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    search, resumed = proposer(storage_path=path), tmp_path / "resumed.db"
    known = []
    for outcome in (ended_early(LIMITS[0].text, 3.0), ended_early(CANNOT_BEAT_BEST, 1.0)):
        proposal = search.ask()
        assert proposal is not None
        search.tell(proposal, outcome)
        known.append(
            Known(candidate=proposal.candidate, values=None, violations=outcome.violations,
                  diagnosis=outcome.diagnosis)
        )  # fmt: skip
    proposer(storage_path=resumed).seed(known)
    for place in (path, resumed):
        limit, dominated = stored(place)
        assert {trial.state.name for trial in (limit, dominated)} == {"PRUNED"}
        assert limit.values is None
        assert dominated.values is None
        assert {k: v for k, v in limit.constraints.items() if v} == {LIMITS[0].text: 0.75}
        assert {k: v for k, v in dominated.constraints.items() if v} == {CANNOT_BEAT_BEST: 0.5}


def test_the_search_learns_the_cautious_violations(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    search = proposer(storage_path=path)
    proposal = search.ask()
    assert proposal is not None
    found = measured(0.5, -0.2, -0.3)
    doubtful = replace(found.score, cautious={LIMITS[0].text: 1.0})
    search.tell(proposal, replace(found, score=doubtful))
    constraints = stored(path)[0].constraints
    assert (constraints[LIMITS[0].text], constraints[LIMITS[1].text]) == (0.5, -0.3)


def test_the_baseline_joins_the_model_only_if_the_grids_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    search = proposer(storage_path=path)
    holds = {limit.text: -0.5 for limit in LIMITS}
    inside = Candidate({"a": 3, "b": 4, "c": "x", "d": True})
    search.seed(
        [
            Known(candidate=Candidate({"a": 99}), values=[1.0], violations=holds),
            Known(candidate=inside, values=[2.0], violations=holds),
            Known(candidate=inside, values=[2.1], violations=holds),
        ]
    )
    (trial,) = stored(path)
    assert trial.values == [2.0]
    assert trial.params == {"a": 3, "b": 4, "c": 0, "d": 1}


def test_values_that_a_changed_space_no_longer_has_are_left_out_of_the_model() -> None:
    smaller = load_space({"knobs": {"size": {"type": "int", "values": [8, 16]}}})
    search = proposer(smaller)
    known = [
        Known(candidate=Candidate({"size": size}), values=[1.0], violations={}) for size in (8, 32)
    ]
    search.seed(known)
    proposal = search.ask()
    assert proposal is not None
    assert proposal.candidate == Candidate({"size": 16})
    search.tell(proposal, measured(1.0))
    assert search.ask() is None


def test_an_old_copy_is_replaced_and_rebuilt_from_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    path.write_bytes(b"this is no database")
    search = proposer(storage_path=path)
    inside = Candidate({"a": 3, "b": 4, "c": "x", "d": True})
    search.seed([Known(candidate=inside, values=[2.0], violations={})])
    assert search.storage_problem is None
    assert len(stored(path)) == 1


def test_a_locked_copy_loses_nothing_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_copy, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between optuna's own attempts
    path = tmp_path / "optuna.db"
    search = proposer(storage_path=path)

    def one(value: float) -> None:
        proposal = search.ask()
        assert proposal is not None
        search.tell(proposal, measured(value))

    one(1.0)
    reader = sqlite3.connect(path)
    reader.execute("BEGIN EXCLUSIVE")
    one(2.0)
    one(3.0)
    assert search.storage_problem is not None
    assert "optuna.db" in search.storage_problem
    reader.rollback()
    reader.close()
    one(4.0)
    assert search.storage_problem is None
    assert [trial.value for trial in stored(path)] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("harm", ["gone", "overwritten"])
def test_a_copy_that_breaks_in_mid_run_is_made_anew_with_all_trials(
    tmp_path: Path, harm: str
) -> None:
    path = tmp_path / "optuna.db"
    search = proposer(storage_path=path)
    for number in range(5):
        if number == 2 and harm == "gone":
            path.unlink()
        elif number == 2:
            path.write_bytes(b"somebody wrote over it" * 400)
        proposal = search.ask()
        assert proposal is not None
        search.tell(proposal, measured(float(number)))
    assert search.storage_problem is None
    assert [trial.value for trial in stored(path)] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_copy_that_cannot_be_written_at_all_stops_nothing(tmp_path: Path) -> None:
    search = proposer(storage_path=tmp_path / "missing" / "optuna.db")
    proposal = search.ask()
    assert proposal is not None
    search.tell(proposal, measured(1.0))
    assert search.storage_problem is not None
    assert search.ask() is not None


def test_a_proposal_is_told_once() -> None:
    search = proposer()
    proposal = search.ask()
    assert proposal is not None
    search.tell(proposal, measured(1.0))
    with pytest.raises(KeyError):
        search.tell(proposal, measured(1.0))


def truth(params: Any) -> float | None:
    """A bowl with its bottom at a=11, b=5, c=x, d; c=z never starts."""
    if params["c"] == "z":
        return None
    bowl = ((params["a"] - 11) / 5) ** 2 + ((params["b"] - 5) / 5) ** 2
    return 1 + bowl + (0.3 if params["c"] == "y" else 0.0) + (0.0 if params["d"] else 0.2)


def search_of(sampler: Literal["tpe", "random"], seed: int, launches: int) -> tuple[float, int]:
    """Best feasible true value and number of crashes after so many launches; limit: a <= 12."""
    search, noise = proposer(sampler=sampler, seed=seed), Random(seed)
    best, crashes = math.inf, 0
    for _ in range(launches):
        proposal = search.ask()
        assert proposal is not None
        value = truth(proposal.candidate.params)
        if value is None:
            crashes += 1
            search.tell(proposal, CRASH)
            continue
        violation = (int(proposal.candidate.params["a"]) - 12) / 12
        search.tell(proposal, measured(value * noise.gauss(1, 0.02), violation, -1.0))
        best = min(best, value) if violation <= 0 else best
    return best, crashes


def test_tpe_beats_random_on_a_smooth_problem_and_launches_fewer_hopeless_candidates() -> None:
    runs = {
        sampler: [search_of(sampler, seed, 25) for seed in range(12)]
        for sampler in ("tpe", "random")
    }
    median = {name: statistics.median(best for best, _ in found) for name, found in runs.items()}
    crashes = {name: statistics.mean(n for _, n in found) for name, found in runs.items()}
    assert median["tpe"] - 1 < 0.6 * (median["random"] - 1)
    assert crashes["tpe"] < 0.7 * crashes["random"]
