"""Proposals from Optuna's samplers. The only module that imports optuna (slow: import it lazily).

The sampler works on a study in memory, which is rebuilt from the study directory on resume. The
SQLite file is a copy for other tools (optuna-dashboard); losing it loses nothing.

How outcomes reach the sampler: measured -> COMPLETE with every constraint's violation; infeasible
-> PRUNED with every constraint violated (FAIL teaches TPE nothing, and a trial without constraints
counts as feasible in Optuna 5); unmeasurable, stopped -> FAIL, for they say nothing about the
parameters.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from autotune.canonical import Json
from autotune.measure.outcome import Infeasible, Measured, Outcome, Stopped
from autotune.search.choices import Choices, Indices
from autotune.search.proposer import Known, Proposal
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace
from autotune.spec.expressions import Constraint, Objective

LAUNCH = "launch"
RULE = "rule"
"""Names of the two constraints that every trial has beside the user's."""
ATTEMPTS = 10
"""Suggestions that are forbidden or seen before something else is tried."""
STARTUP = 5
"""Random candidates before the model is asked."""
BUSY_TIMEOUT_S = 8
"""SQLite's wait for a lock. Optuna tries five times, so a write waits for 40 to 50 s in all."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True, slots=True)
class _Asked:
    candidate: Candidate
    indices: Indices
    trial: Trial


class OptunaProposer:
    """A `Proposer` that never proposes the same candidate twice.

    `facts` are the names that conditions and rules may use besides knobs. `seed` and the number of
    candidates so far determine a suggestion, so a resumed study does not begin again with its
    first. `storage_path`: where the SQLite copy goes (an old one is replaced), or None for no copy.
    """

    def __init__(
        self,
        space: SearchSpace,
        facts: Mapping[str, Json],
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        *,
        seed: int = 0,
        sampler: Literal["tpe", "random"] = "tpe",
        storage_path: Path | None = None,
        n_startup: int = STARTUP,
    ) -> None:
        self._choices = Choices(space, facts)
        self._objectives = tuple(objectives)
        self._keys = (LAUNCH, RULE, *(constraint.text for constraint in constraints))
        self._seed = seed
        self._sampler = sampler
        self._n_startup = n_startup
        directions = [objective.direction for objective in objectives]
        self._study = optuna.create_study(directions=directions)
        self._copy = _Copy(storage_path, directions) if storage_path is not None else None
        self._seen: set[str] = set()
        self._asked: dict[int, _Asked] = {}
        self._tokens = 0
        self._taught = 0
        self._best: tuple[float, Indices] | None = None

    @property
    def storage_problem(self) -> str | None:
        """Why the SQLite copy is not up to date, or None. Never a reason to stop."""
        return self._copy.problem if self._copy is not None else None

    def ask(self) -> Proposal | None:
        """The next candidate, never one that was seen; None when the space is used up."""
        modelled = self._sampler == "tpe" and self._taught >= self._n_startup
        asked = (self._suggested() if modelled else None) or self._drawn(near_best=modelled)
        if asked is None:
            return None
        self._tokens += 1
        self._asked[self._tokens] = asked
        self._seen.add(asked.candidate.key)
        return Proposal(candidate=asked.candidate, token=self._tokens)

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        """Report how a proposal ended. Raises KeyError for one that is not open."""
        asked = self._asked.pop(proposal.token)
        if isinstance(outcome, Stopped):
            self._seen.discard(asked.candidate.key)
        values, violations = None, None
        if isinstance(outcome, Measured):
            score = outcome.score
            values = self._values([score.values.get(o.text) for o in self._objectives])
            violations = self._violations(score.violations) if values is not None else None
        elif isinstance(outcome, Infeasible) and outcome.diagnosis.fault in ("candidate", "study"):
            violations = dict.fromkeys(self._keys, 1.0)
        self._finish(asked, values, violations)

    def seed(self, known: Sequence[Known]) -> None:
        """Take over finished trials. One without values and without a reason may be proposed again.

        Trials whose values lie outside the space's grids are remembered, but the model cannot hold
        them.
        """
        for item in known:
            values = self._values(item.values) if item.values is not None else None
            if values is None and item.infeasible_reason is None:
                continue
            repeated = item.candidate.key in self._seen
            self._seen.add(item.candidate.key)
            indices = self._choices.indices_of(item.candidate)
            if indices is None or repeated:
                continue
            if values is not None:
                violations = self._violations(item.violations)
            else:
                violations = dict.fromkeys(self._keys, 1.0)
            state = TrialState.PRUNED if values is None else TrialState.COMPLETE
            trial = create_trial(
                state=state,
                values=values,
                params=dict(indices),
                distributions={name: self._distribution(name) for name in indices},
                constraints=violations,
            )
            self._study.add_trial(trial)
            self._remember(indices, values, violations)
            if self._copy is not None:
                self._copy.add(trial)

    def _suggested(self) -> _Asked | None:
        """What the model suggests, if that is allowed and new within a few attempts."""
        for attempt in range(ATTEMPTS):
            self._study.sampler = self._tpe(attempt)
            trial = self._study.ask()
            indices = self._choices.assign(partial(self._suggest, trial))
            candidate = self._choices.candidate(indices)
            if candidate is None:
                self._constrain(trial, {**dict.fromkeys(self._keys, 0.0), RULE: 1.0})
                self._study.tell(trial, state=TrialState.PRUNED)
            elif candidate.key in self._seen:
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                return _Asked(candidate, indices, trial)
        return None

    def _drawn(self, *, near_best: bool) -> _Asked | None:
        """A new candidate without the model: one step from the best, or anywhere."""
        rng = Random(self._derived(ATTEMPTS))
        indices = None
        if near_best and self._best is not None:
            indices = self._choices.neighbour(self._best[1], rng, self._is_seen)
        indices = indices or self._choices.draw(rng, self._is_seen)
        if indices is None:
            return None
        candidate = self._choices.candidate(indices)
        assert candidate is not None
        self._study.enqueue_trial(dict(indices))
        trial = self._study.ask()
        for name in indices:
            self._suggest(trial, name)
        return _Asked(candidate, indices, trial)

    def _finish(
        self,
        asked: _Asked,
        values: list[float] | None,
        violations: Mapping[str, float] | None,
    ) -> None:
        if violations is None:
            self._study.tell(asked.trial, state=TrialState.FAIL)
        else:
            self._constrain(asked.trial, violations)
            if values is None:
                self._study.tell(asked.trial, state=TrialState.PRUNED)
            else:
                self._study.tell(asked.trial, values)
            self._remember(asked.indices, values, violations)
        if self._copy is not None:
            self._copy.add(self._study.get_trials(deepcopy=False)[asked.trial.number])

    def _remember(
        self, indices: Indices, values: list[float] | None, violations: Mapping[str, float]
    ) -> None:
        self._taught += 1
        if values is None or any(violation > 0 for violation in violations.values()):
            return
        cost = values[0] if self._objectives[0].direction == "minimize" else -values[0]
        if self._best is None or cost < self._best[0]:
            self._best = (cost, indices)

    def _constrain(self, trial: Trial, violations: Mapping[str, float]) -> None:
        for key in self._keys:
            trial.set_constraint(key, violations[key])

    def _violations(self, violations: Mapping[str, float]) -> dict[str, float]:
        """All constraints in their fixed order.

        TPE adds violations up, so each is squeezed below 1: a candidate that served badly always
        ranks before one that did not start.
        """
        return {
            LAUNCH: 0.0,
            RULE: 0.0,
            **{key: _squeezed(violations.get(key, math.inf)) for key in self._keys[2:]},
        }

    def _values(self, values: Sequence[float | None]) -> list[float] | None:
        """Objective values if all are there and finite, else None: no stand-in is ever stored."""
        finite = [float(v) for v in values if v is not None and math.isfinite(v)]
        return finite if len(finite) == len(values) == len(self._objectives) else None

    def _suggest(self, trial: Trial, name: str) -> int:
        last = self._choices.count(name) - 1
        if self._choices.is_ordered(name):
            return trial.suggest_int(name, 0, last)
        return int(trial.suggest_categorical(name, tuple(range(last + 1))))

    def _distribution(self, name: str) -> BaseDistribution:
        last = self._choices.count(name) - 1
        if self._choices.is_ordered(name):
            return IntDistribution(0, last)
        return CategoricalDistribution(tuple(range(last + 1)))

    def _tpe(self, attempt: int) -> optuna.samplers.BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return optuna.samplers.TPESampler(
                n_startup_trials=1,
                multivariate=True,
                group=self._choices.conditional,
                constant_liar=True,
                seed=self._derived(attempt),
            )

    def _derived(self, attempt: int) -> int:
        """A seed from the study's, the number of candidates so far and the attempt."""
        text = f"{self._seed}/{len(self._seen)}/{attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def _is_seen(self, candidate: Candidate) -> bool:
        return candidate.key in self._seen


class _Copy:
    """The SQLite copy: finished trials, written when possible, kept in memory until then."""

    def __init__(self, path: Path, directions: Sequence[Literal["minimize", "maximize"]]) -> None:
        self._path = path
        self._directions = list(directions)
        self._study: optuna.Study | None = None
        self._waiting: list[FrozenTrial] = []
        self.problem: str | None = None

    def add(self, trial: FrozenTrial) -> None:
        """Write this trial and all that wait; a locked file is waited for, at most 50 s."""
        self._waiting.append(trial)
        try:
            study = self._study or self._create()
            while self._waiting:
                study.add_trial(self._waiting[0])
                self._waiting.pop(0)
        except (StorageInternalError, SQLAlchemyError, OSError) as error:
            self.problem = f"{self._path.name} is not up to date: {error}"
        else:
            self.problem = None

    def _create(self) -> optuna.Study:
        for suffix in ("", "-journal", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{self._path}",
            # No pool: nothing stays open between two trials
            engine_kwargs={"poolclass": NullPool, "connect_args": {"timeout": BUSY_TIMEOUT_S}},
        )
        self._study = optuna.create_study(
            storage=storage, study_name="autotune", directions=self._directions
        )
        return self._study


def _squeezed(violation: float) -> float:
    """A violation with its order and sign kept, below 1: v / (1 + v) for positive v."""
    if violation <= 0:
        return violation
    return 1.0 if math.isinf(violation) else violation / (1 + violation)
