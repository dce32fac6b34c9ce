"""The candidates that a model-based search looks at: all of a small space, a growing part of a
large one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from random import Random

from autotune.search.choices import Choices, Indices
from autotune.space.candidate import Candidate

WHOLE = 3000
"""Spaces with so many candidates are looked at as a whole."""
LISTED = 20_000
"""So many assignments are listed to find out."""
DRAWN = 2400
"""Random candidates of a larger space, beside all that are near the baseline."""
AROUND = 200
"""Neighbours that are added around the best after each launch, at most."""


class CandidatePool:
    """Allowed candidates with their assignments, each once, in a fixed order for a seed."""

    def __init__(self, choices: Choices, *, seed: int) -> None:
        self._choices = choices
        self._rng = Random(f"pool {seed}")
        self.indices: list[dict[str, int]] = []
        self.candidates: list[Candidate] = []
        self._place: dict[str, int] = {}
        self._extended: set[int] = set()
        listed = list(islice(choices.every(), LISTED + 1))
        self.whole = False
        if len(listed) <= LISTED:
            allowed = [(i, c) for i in listed if (c := choices.candidate(i)) is not None]
            self.whole = len(allowed) <= WHOLE
            self._allowed = allowed
            chosen = allowed if self.whole else self._rng.sample(allowed, DRAWN)
            for indices, candidate in chosen:
                self._add(indices, candidate)
        else:
            for _ in range(4 * DRAWN):
                if len(self.candidates) < DRAWN:
                    self._try(choices.assign(lambda n: self._rng.randrange(choices.count(n))))

    def place(self, candidate: Candidate) -> int | None:
        """Where a candidate stands; None if it is not in the pool."""
        return self._place.get(candidate.key)

    def include(self, candidate: Candidate) -> int | None:
        """Take in a candidate (the baseline, one that was launched): its place, or None where its
        values are in no grid.
        """
        if candidate.key not in self._place:
            indices = self._choices.indices_of(candidate)
            if indices is None:
                return None
            self._add(indices, candidate)
        return self._place[candidate.key]

    def extend_around(self, places: list[int]) -> None:
        """Take in what differs in one choice from these candidates, until enough are new."""
        if self.whole:
            return
        before = len(self.candidates)
        for place in places:
            if place in self._extended:
                continue
            for indices in self._neighbours(self.indices[place]):
                self._try(indices)
                if len(self.candidates) - before >= AROUND:
                    return
            self._extended.add(place)

    def _neighbours(self, origin: Indices) -> Iterator[dict[str, int]]:
        for name in origin:
            for position in range(self._choices.count(name)):
                if position != origin[name]:
                    changed: Mapping[str, int] = {**origin, name: position}
                    yield self._choices.assign(defaultdict(int, changed).__getitem__)

    def _try(self, indices: dict[str, int]) -> None:
        candidate = self._choices.candidate(indices)
        if candidate is not None and candidate.key not in self._place:
            self._add(indices, candidate)

    def _add(self, indices: dict[str, int], candidate: Candidate) -> None:
        if candidate.key not in self._place:
            self._place[candidate.key] = len(self.candidates)
            self.indices.append(dict(indices))
            self.candidates.append(candidate)
