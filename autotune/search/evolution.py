"""`nsga2`: parents by fronts and crowding, children by crossover and mutation of grid positions.

Deb et al. 2002 (ranking, constraint domination), with a population that each trial may enter as
soon as it has ended: launches are few, run in parallel and are not waited for, and a resumed search
has the same parents as one that was never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from autotune.search.choices import Choices, Indices
from autotune.search.lesson import Goals, Lesson
from autotune.search.pareto import front
from autotune.space.candidate import Candidate

POPULATION = 12
"""Parents at most: a study has tens of launches, not thousands."""
CROSSOVER = 0.9
"""Chance of a child of two parents; else it is one parent, mutated."""
CHILDREN = 30
"""Children that are made for one that is allowed and new."""


class Evolution:
    """Breeds the next candidate from the best so far."""

    def __init__(self, choices: Choices, goals: Goals) -> None:
        self._choices = choices
        self._goals = goals

    def suggest(
        self,
        lessons: Sequence[Lesson],
        pending: Sequence[Indices],
        seed: int,
        seen: Callable[[Candidate], bool],
    ) -> Indices | None:
        """A child that is allowed and was not seen; None if none of several is."""
        rng = Random(seed)
        parents = [lesson.indices for lesson in self._ranked(lessons)[:POPULATION]]
        if not parents:
            return None
        for _ in range(CHILDREN):
            child = self._child(parents, rng)
            if self._choices.is_new(child, seen):
                return child
        return None

    def _child(self, parents: Sequence[Indices], rng: Random) -> dict[str, int]:
        one, other = self._winner(parents, rng), self._winner(parents, rng)
        if rng.random() > CROSSOVER:
            other = one
        rate = 1 / max(1, len(one))

        def gene(name: str) -> int:
            here = [parent[name] for parent in (one, other) if name in parent]
            count = self._choices.count(name)
            if not here or (rng.random() < rate and not self._choices.is_ordered(name)):
                return rng.randrange(count)
            position = rng.choice(here)
            if rng.random() < rate:
                step = rng.choice((-2, -1, 1, 2))
                return min(max(position + step, 0), count - 1)
            return position

        return self._choices.assign(gene)

    @staticmethod
    def _winner(parents: Sequence[Indices], rng: Random) -> Indices:
        """The better one of two drawn at random; parents come best first."""
        return parents[min(rng.randrange(len(parents)), rng.randrange(len(parents)))]

    def _ranked(self, lessons: Sequence[Lesson]) -> list[Lesson]:
        """Best first: those that meet every limit by front, the least crowded before the others;
        then by violation.
        """
        good = [one for one in lessons if one.values is not None and one.violation <= 0]
        kept = {id(lesson) for lesson in good}
        bad = sorted((o for o in lessons if id(o) not in kept), key=lambda o: o.violation)
        ranked: list[Lesson] = []
        if len(self._goals.objectives) == 1:
            return [*sorted(good, key=lambda lesson: self._goals.costs(lesson) or ()), *bad]
        while good and len(ranked) < POPULATION:
            points = [self._goals.costs(lesson) or () for lesson in good]
            first = front(points)
            space = _crowding([points[index] for index in first])
            order = sorted(range(len(first)), key=lambda at: -space[at])
            ranked += [good[first[at]] for at in order]
            good = [lesson for index, lesson in enumerate(good) if index not in set(first)]
        return [*ranked, *bad]


def _crowding(points: Sequence[Sequence[float]]) -> list[float]:
    """Distance between each point's neighbours, summed over the costs; infinite at the ends."""
    distance = [0.0] * len(points)
    for cost in range(len(points[0])):
        order = sorted(range(len(points)), key=lambda index: points[index][cost])
        low, high = points[order[0]][cost], points[order[-1]][cost]
        distance[order[0]] = distance[order[-1]] = math.inf
        for before, here, after in zip(order, order[1:], order[2:], strict=False):
            if high > low:
                distance[here] += (points[after][cost] - points[before][cost]) / (high - low)
    return distance
