"""Orders of proposals that learn nothing: at random, evenly spread (Sobol), and the plain grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from autotune.search.choices import Choices, Indices
from autotune.space.candidate import Candidate

BLOCK = 64
"""Sobol points drawn at a time; their balance asks for a power of two."""
LOOKED_AT = 4096
"""So many points in a row without a new candidate end the sequence."""


class RandomOrder:
    """Every candidate with the same chance."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def suggest(self, seed: int, seen: Callable[[Candidate], bool]) -> Indices | None:
        """An allowed assignment that was not seen; None when the space is used up."""
        return self._choices.draw(Random(seed), seen)


class GridOrder:
    """Every candidate in the order of nested loops, as scripts sweep: the last knob runs fastest,
    the first one slowest, values as they are listed.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._rest: Iterator[Indices] = choices.every()
        self._passed: list[tuple[Indices, Candidate]] = []

    def suggest(self, seed: int, seen: Callable[[Candidate], bool]) -> Indices | None:
        """The first assignment of the order that is allowed and was not seen; None at its end."""
        # One whose launch was interrupted comes again, in its place
        for indices, candidate in self._passed:
            if not seen(candidate):
                return indices
        for indices in self._rest:
            passed = self._choices.candidate(indices)
            if passed is None:
                continue
            self._passed.append((indices, passed))
            if not seen(passed):
                return indices
        return None


class SobolOrder:
    """A scrambled Sobol sequence over the positions in all grids (Sobol 1967; Owen 1998): each knob
    evenly over its values, pairs of knobs too. Choices of inactive knobs are dropped.
    """

    def __init__(self, choices: Choices, *, seed: int) -> None:
        self._choices = choices
        self._points = self._sequence(seed)

    def suggest(self, seed: int, seen: Callable[[Candidate], bool]) -> Indices | None:
        """The next point of the sequence that is an allowed candidate and was not seen.

        Once many points in a row were none: a random one; None when the space is used up.
        """
        for _, point in zip(range(LOOKED_AT), self._points, strict=False):
            indices = self._choices.assign(point.__getitem__)
            if self._choices.is_new(indices, seen):
                return indices
        return self._choices.draw(Random(seed), seen)

    def _sequence(self, seed: int) -> Iterator[dict[str, int]]:
        # Slow to import, and only this order needs it
        from scipy.stats.qmc import Sobol

        names = self._choices.names
        counts = [self._choices.count(name) for name in names]
        engine = Sobol(max(1, len(names)), scramble=True, rng=seed)
        while True:
            for row in engine.random(BLOCK).tolist():
                picked = (min(int(u * n), n - 1) for u, n in zip(row, counts, strict=False))
                yield dict(zip(names, picked, strict=False))
