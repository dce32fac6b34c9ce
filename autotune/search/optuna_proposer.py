"""The proposer of every method but `guided`: one bookkeeping, and a method that suggests.

Imports optuna (slow: import it lazily). What the methods learn from is rebuilt from the study
directory on resume; the SQLite file is a copy for other tools, and losing it loses nothing.

A trial teaches as a `Lesson`: measured -> its values and every constraint's violation; infeasible
-> every constraint violated, no values; unmeasurable, stopped -> nothing, for they say nothing
about the parameters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, Protocol

from autotune.canonical import Json
from autotune.measure.outcome import Infeasible, Measured, Outcome, Stopped
from autotune.search.choices import Choices, Indices
from autotune.search.evolution import Evolution
from autotune.search.hazard import Hazard
from autotune.search.lesson import LAUNCH, Goals, Lesson
from autotune.search.optuna_copy import OptunaCopy
from autotune.search.optuna_model import OptunaModel, as_trial
from autotune.search.orders import GridOrder, RandomOrder, SobolOrder
from autotune.search.proposer import Known, Proposal
from autotune.search.step_back import StepBack, is_near, memory_order_of
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace
from autotune.spec.expressions import Constraint, Objective

STARTUP = 5
"""Trials (the baseline is one) that have to teach something before a model is asked."""
WANDER_AFTER, WANDER_EVERY = 15, 3
"""From so many candidates on TPE leaves every third one to the spread order: it stays in the first
valley that it finds, which costs more than a third of the launches where that is not the deepest.
"""
Sampler = Literal["tpe", "gp", "nsga2", "random", "qmc", "grid"]


class Order(Protocol):
    """A method that learns nothing."""

    def suggest(self, seed: int, seen: Callable[[Candidate], bool]) -> Indices | None:
        """An allowed assignment that was not seen, or None."""
        ...


class Model(Protocol):
    """A method that learns. A suggestion follows from what it is given alone."""

    def suggest(
        self,
        lessons: Sequence[Lesson],
        pending: Sequence[Indices],
        seed: int,
        seen: Callable[[Candidate], bool],
    ) -> Indices | None:
        """An allowed assignment that was not seen, or None. `pending`: what is being launched."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """An open proposal. `indices` None: some value is in no grid. `promising`: a model's choice, or
    a step back from one; `depth`: how many steps.
    """

    candidate: Candidate
    indices: Indices | None
    why: str | None = None
    promising: bool = False
    depth: int = 0


class OptunaProposer:
    """A `Proposer` that never proposes the same candidate twice.

    `facts` are the names that conditions and rules may use besides knobs. `seed` and the number of
    candidates so far determine a suggestion, so a resumed study does not begin again with its
    first. `storage_path`: where the SQLite copy goes (an old one is replaced), or None for no copy.
    `first`: proposed before anything else, in this order, where allowed and new.
    """

    def __init__(
        self,
        space: SearchSpace,
        facts: Mapping[str, Json],
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        *,
        seed: int = 0,
        sampler: Sampler = "tpe",
        storage_path: Path | None = None,
        n_startup: int = STARTUP,
        first: Sequence[Candidate] = (),
    ) -> None:
        self._choices = Choices(space, facts)
        self._goals = Goals(objectives, constraints)
        self._seed = seed
        self._n_startup = n_startup
        self._first = list(first)
        self._order = self._order_of(sampler)
        self._model = self._model_of(sampler)
        self._wanders = sampler == "tpe"
        self._step_back = StepBack(self._choices, memory_order_of(space, facts, "generic"))
        self._hazard = Hazard()
        directions = self._goals.directions
        self._copy = OptunaCopy(storage_path, directions) if storage_path is not None else None
        self._seen: set[str] = set()
        self._asked: dict[int, _Asked] = {}
        self._tokens = 0
        self._lessons: list[Lesson] = []
        self._best: tuple[float, Indices] | None = None

    def _order_of(self, sampler: Sampler) -> Order:
        """Models begin with Sobol points: they come nearer to the best than random ones do."""
        if sampler == "random":
            return RandomOrder(self._choices)
        if sampler == "grid":
            return GridOrder(self._choices)
        return SobolOrder(self._choices, seed=self._seed)

    def _model_of(self, sampler: Sampler) -> Model | None:
        if sampler == "nsga2":
            return Evolution(self._choices, self._goals)
        if sampler == "tpe" or sampler == "gp":
            return OptunaModel(sampler, self._choices, self._goals)
        return None

    @property
    def storage_problem(self) -> str | None:
        """Why the SQLite copy is not up to date, or None. Never a reason to stop."""
        return self._copy.problem if self._copy is not None else None

    def ask(self) -> Proposal | None:
        """The next candidate, never one that was seen; None when the space is used up."""
        asked = self._firstly() or self._stepped_back() or self._suggested() or self._drawn()
        if asked is None:
            return None
        self._tokens += 1
        self._asked[self._tokens] = asked
        self._seen.add(asked.candidate.key)
        return Proposal(candidate=asked.candidate, token=self._tokens, why=asked.why)

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        """Report how a proposal ended. Raises KeyError for one that is not open."""
        asked = self._asked.pop(proposal.token)
        if isinstance(outcome, Stopped):
            self._seen.discard(asked.candidate.key)
        if asked.indices is None:
            return
        values, violations = None, None
        if isinstance(outcome, Measured):
            score = outcome.score
            values = self._goals.values([score.values.get(o.text) for o in self._goals.objectives])
            if values is not None:
                violations = self._goals.measured(score.search_violations)
        elif isinstance(outcome, Infeasible) and outcome.diagnosis.fault in ("candidate", "study"):
            violations = self._goals.infeasible(outcome.violations)
            near = is_near(asked.indices, self._best and self._best[1])
            if self._model is not None and (asked.promising or near):
                self._step_back.learn(asked.indices, outcome.diagnosis, depth=asked.depth)
        if violations is not None:
            self._learn(Lesson(asked.indices, values, violations))
        if self._copy is not None:
            self._copy.add(as_trial(self._choices, asked.indices, values, violations))

    def seed(self, known: Sequence[Known]) -> None:
        """Take over finished trials. One without values and without a reason may be proposed again.

        Trials whose values lie outside the space's grids are remembered, but the model cannot hold
        them.
        """
        for item in known:
            values = self._goals.values(item.values) if item.values is not None else None
            if values is None and item.diagnosis is None:
                continue
            repeated = item.candidate.key in self._seen
            self._seen.add(item.candidate.key)
            indices = self._choices.indices_of(item.candidate)
            if indices is None or repeated:
                continue
            if values is not None:
                violations = self._goals.measured(item.violations)
            else:
                violations = self._goals.infeasible(item.violations)
            self._learn(Lesson(indices, values, violations))
            if self._copy is not None:
                self._copy.add(as_trial(self._choices, indices, values, violations))

    def believed(self) -> Mapping[str, float]:
        """See `Proposer`: these methods take every launch at its word."""
        return {}

    # ---- where candidates come from

    def _firstly(self) -> _Asked | None:
        """What was asked to be tried before anything else."""
        while self._first:
            candidate = self._first.pop(0)
            if not self._is_seen(candidate) and self._choices.allows(candidate):
                return _Asked(candidate, self._choices.indices_of(candidate))
        return None

    def _stepped_back(self) -> _Asked | None:
        """What undoes the cause of a failure."""
        step = self._step_back.next(self._served(), self._is_seen)
        if step is None:
            return None
        candidate = self._choices.candidate(step.indices)
        assert candidate is not None
        return _Asked(candidate, step.indices, step.why, promising=True, depth=step.depth)

    def _suggested(self) -> _Asked | None:
        """What the model suggests, or one step from the best; None while too little is known, where
        there is no model, and where something else is wanted.
        """
        if self._model is None or len(self._lessons) < self._n_startup:
            return None
        tried = len(self._seen)
        if self._wanders and tried >= WANDER_AFTER and tried % WANDER_EVERY == 0:
            return None
        seed = self._derived()
        pending = [asked.indices for asked in self._asked.values() if asked.indices is not None]
        for out in (self._is_avoided, self._is_seen):
            indices = self._model.suggest(self._lessons, pending, seed, out)
            if indices is None and self._best is not None:
                indices = self._choices.neighbour(self._best[1], Random(seed), out)
            candidate = None if indices is None else self._choices.candidate(indices)
            if candidate is not None:
                return _Asked(candidate, indices, promising=True)
        return None

    def _drawn(self) -> _Asked | None:
        """The next one of the order."""
        for out in (self._is_avoided, self._is_seen):
            indices = self._order.suggest(self._derived(), out)
            candidate = None if indices is None else self._choices.candidate(indices)
            if candidate is not None:
                return _Asked(candidate, indices)
        return None

    # ---- what is known

    def _learn(self, lesson: Lesson) -> None:
        self._lessons.append(lesson)
        self._hazard.learn(lesson.indices, failed=lesson.violations[LAUNCH] > 0)
        costs = self._goals.costs(lesson)
        if costs is None or lesson.violation > 0:
            return
        if self._best is None or costs[0] < self._best[0]:
            self._best = (costs[0], lesson.indices)

    def _served(self) -> list[Indices]:
        """Settings with values: what meets every limit first, then by the first objective."""

        def order(lesson: Lesson) -> tuple[float, float]:
            costs = self._goals.costs(lesson)
            return lesson.violation, costs[0] if costs is not None else math.inf

        served = [lesson for lesson in self._lessons if lesson.values is not None]
        return [lesson.indices for lesson in sorted(served, key=order)]

    def _derived(self) -> int:
        """A seed from the study's and the number of candidates so far."""
        text = f"{self._seed}/{len(self._seen)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def _is_avoided(self, candidate: Candidate) -> bool:
        """Seen, or hopeless as far as a method that learns can tell."""
        if self._is_seen(candidate):
            return True
        indices = self._choices.indices_of(candidate) if self._model is not None else None
        return indices is not None and self._hazard.is_hopeless(indices)

    def _is_seen(self, candidate: Candidate) -> bool:
        return candidate.key in self._seen
