"""`tpe` and `gp`: Optuna's samplers on a study in memory. Imports optuna (slow: import it lazily).

A suggestion follows from what is known, what is open and a seed, so a resumed search goes on as one
that was never stopped.

How lessons reach the sampler: measured -> COMPLETE with every constraint's violation. Infeasible ->
for TPE PRUNED with its constraints violated (FAIL teaches TPE nothing, and a trial without
constraints counts as feasible in Optuna 5); the Gaussian process reads COMPLETE trials only, so it
is given the worst values measured so far with them. That stand-in is stored nowhere. Open proposals
are running trials, which both keep away from (TPE: constant liar; GP: batch acquisition).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autotune.measure.outcome import CANNOT_BEAT_BEST
from autotune.search.choices import Choices, Indices
from autotune.search.lesson import LAUNCH, RULE, Goals, Lesson
from autotune.space.candidate import Candidate

ATTEMPTS = {"tpe": 4, "gp": 1}
"""Suggestions that are forbidden or seen before something else is tried; the Gaussian process would
mostly give the same again."""
MOST_FITTED = 40
"""A Gaussian process is fitted to so many trials, the best and the latest ones: the effort grows
with the cube of their number."""
LEAST = 1e-9
"""Stands for 0 where a logarithm is taken."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class OptunaModel:
    """Suggests by one of Optuna's samplers."""

    def __init__(self, kind: Literal["tpe", "gp"], choices: Choices, goals: Goals) -> None:
        self._kind = kind
        self._choices = choices
        self._goals = goals
        self._study = optuna.create_study(directions=goals.directions)
        self._told = 0
        if kind == "gp":
            import torch

            # Replays may be running meanwhile; the cores are theirs
            torch.set_num_threads(1)

    def suggest(
        self,
        lessons: Sequence[Lesson],
        pending: Sequence[Indices],
        seed: int,
        seen: Callable[[Candidate], bool],
    ) -> Indices | None:
        """What the sampler suggests, if that is allowed and new within a few attempts; else what is
        one step from the last suggestion; None if nothing there is new.
        """
        study = self._taught(lessons)
        opened = [self._opened(study, indices) for indices in pending]
        indices: Indices = {}
        for attempt in range(ATTEMPTS[self._kind]):
            study.sampler = self._sampler((seed + attempt) % 2**32)
            trial = study.ask()
            indices = self._choices.assign(partial(self._suggest, trial))
            candidate = self._choices.candidate(indices)
            if candidate is None and self._kind == "tpe":
                for key in self._goals.keys:
                    trial.set_constraint(key, float(key == RULE))
                study.tell(trial, state=TrialState.PRUNED)
                continue
            study.tell(trial, state=TrialState.FAIL)
            if candidate is not None and not seen(candidate):
                break
        else:
            indices = self._choices.neighbour(indices, Random(seed), seen) or {}
        for trial in opened:
            study.tell(trial, state=TrialState.FAIL)
        return indices or None

    def _taught(self, lessons: Sequence[Lesson]) -> optuna.Study:
        """A study with all lessons. For TPE they are added to the one there is."""
        if self._kind == "gp":
            study = optuna.create_study(directions=self._goals.directions)
            study.add_trials(_for_process(lessons, self._goals, self._choices))
            return study
        for one in lessons[self._told :]:
            trial = as_trial(self._choices, one.indices, one.values, one.violations)
            self._study.add_trial(trial)
        self._told = len(lessons)
        return self._study

    def _opened(self, study: optuna.Study, indices: Indices) -> Trial:
        study.enqueue_trial(dict(indices))
        trial = study.ask()
        for name in indices:
            self._suggest(trial, name)
        return trial

    def _suggest(self, trial: Trial, name: str) -> int:
        last = self._choices.count(name) - 1
        if self._choices.is_ordered(name):
            return trial.suggest_int(name, 0, last)
        return int(trial.suggest_categorical(name, tuple(range(last + 1))))

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        if self._kind == "gp":
            return optuna.samplers.GPSampler(
                seed=seed, n_startup_trials=2, warn_independent_sampling=False
            )
        with warnings.catch_warnings():
            # `group` is marked as experimental
            warnings.simplefilter("ignore", ExperimentalWarning)
            return optuna.samplers.TPESampler(
                n_startup_trials=1,
                multivariate=True,
                group=self._choices.conditional,
                constant_liar=True,
                seed=seed,
            )


def as_trial(
    choices: Choices,
    indices: Indices,
    values: Sequence[float] | None = None,
    violations: Mapping[str, float] | None = None,
) -> FrozenTrial:
    """A finished trial in Optuna's form: with values COMPLETE, with violations only PRUNED, with
    neither FAIL.
    """
    state = TrialState.FAIL if violations is None else TrialState.PRUNED
    return create_trial(
        state=state if values is None else TrialState.COMPLETE,
        values=None if values is None else list(values),
        params=dict(indices),
        distributions={name: _distribution(choices, name) for name in indices},
        constraints=None if violations is None else dict(violations),
    )


def _distribution(choices: Choices, name: str) -> BaseDistribution:
    last = choices.count(name) - 1
    if choices.is_ordered(name):
        return IntDistribution(0, last)
    return CategoricalDistribution(tuple(range(last + 1)))


def _for_process(lessons: Sequence[Lesson], goals: Goals, choices: Choices) -> list[FrozenTrial]:
    """The trials that a Gaussian process is told: logarithms of the values (times and rates differ
    by ratios), and one constraint, what is violated most: each one costs another fit.
    """
    measured = [lesson.values for lesson in lessons if lesson.values is not None]
    if not measured:
        return []
    logs = [[math.log(max(value, LEAST)) for value in values] for values in measured]
    worst = [
        max(column) if way == "minimize" else min(column)
        for column, way in zip(zip(*logs, strict=True), goals.directions, strict=True)
    ]
    found = []
    for lesson in _most_telling(lessons, goals):
        values = worst
        if lesson.values is not None:
            values = [math.log(max(value, LEAST)) for value in lesson.values]
        found.append(as_trial(choices, lesson.indices, values, {"limits": _most_violated(lesson)}))
    return found


def _most_telling(lessons: Sequence[Lesson], goals: Goals) -> list[Lesson]:
    """The best half of what is fitted, and the latest trials, in their order."""
    if len(lessons) <= MOST_FITTED:
        return list(lessons)

    def order(at: int) -> tuple[float, float]:
        costs = goals.costs(lessons[at])
        return lessons[at].violation, math.inf if costs is None else costs[0]

    best = sorted(range(len(lessons)), key=order)[: MOST_FITTED // 2]
    latest = [at for at in range(len(lessons)) if at not in set(best)][-MOST_FITTED // 2 :]
    return [lessons[at] for at in sorted([*best, *latest])]


def _most_violated(lesson: Lesson) -> float:
    own = (LAUNCH, RULE, CANNOT_BEAT_BEST)
    ours = max(lesson.violations[key] for key in own)
    limits = [violation for key, violation in lesson.violations.items() if key not in own]
    return ours if ours > 0 else max(limits, default=-1.0)
