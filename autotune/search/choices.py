"""A search space as plain indices: every knob's value is the position in its grid.

The proposer's only contact with `space`. Indices keep the order of numbers, and a space whose grid
has changed since an earlier run is read anew from the values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, pairwise
from random import Random

from autotune.canonical import Json, canonical_json
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace

Indices = Mapping[str, int]
"""Knob name -> position in the knob's grid, for the active knobs."""

ENUMERABLE = 20_000
"""Spaces up to this many assignments are listed to find what was not launched yet."""
TRIES = 300
"""Random draws before a space is listed instead."""


class Choices:
    """What may be chosen, for one space under fixed facts (model, GPU, engine version)."""

    def __init__(self, space: SearchSpace, facts: Mapping[str, Json]) -> None:
        self._space = space
        self._facts = dict(facts)
        self._grids = {knob.name: tuple(knob.grid()) for knob in space.knobs}
        self._ordered = {
            knob.name: knob.kind in ("int", "float") and _rises(self._grids[knob.name])
            for knob in space.knobs
        }
        self._listed: list[tuple[dict[str, int], Candidate]] | None = None
        self.conditional = any(knob.when is not None for knob in space.knobs)

    @property
    def names(self) -> tuple[str, ...]:
        """All knobs, in the space's order."""
        return tuple(self._grids)

    def flag(self, name: str) -> str:
        """The engine's flag behind a knob, without dashes."""
        knob = self._space.knob(name)
        own = self._space.parameter(name)
        return own if knob is None or knob.flag is None else knob.flag

    def count(self, name: str) -> int:
        """How many values a knob has."""
        return len(self._grids[name])

    def value(self, name: str, position: int) -> Json:
        """The value at a position of a knob's grid."""
        return self._grids[name][position]

    def is_ordered(self, name: str) -> bool:
        """Whether neighbouring indices are neighbouring numbers."""
        return self._ordered[name]

    def assign(self, pick: Callable[[str], int]) -> dict[str, int]:
        """Choose for every active knob by `pick(name)`, conditions first resolved by what they
        need.

        Knobs are asked for in the space's order; one that a later choice activates is asked then.
        """
        chosen: dict[str, int] = {}
        while (name := self._next(chosen)) is not None:
            chosen[name] = pick(name)
        return {name: chosen[name] for name in self._active(chosen) if name in chosen}

    def candidate(self, indices: Indices) -> Candidate | None:
        """The candidate of an assignment, or None if a rule forbids it."""
        params = self._values(indices)
        if self._space.violations(params, self._facts):
            return None
        return self._space.complete(params, self._facts)

    def allows(self, candidate: Candidate) -> bool:
        """Whether a candidate breaks no rule; its values need not be in the grids."""
        return not self._space.violations(candidate.params, self._facts)

    def indices_of(self, candidate: Candidate) -> dict[str, int] | None:
        """The assignment behind a candidate; None if some active knob's value is in no grid."""
        found: dict[str, int] = {}
        for name in self._active_values(candidate.params):
            grid = self._grids[name]
            # A value of None in a grid means that the flag is left out
            position = _position(grid, candidate.params.get(self._space.parameter(name)))
            if position is None:
                return None
            found[name] = position
        # A knob that this space does not know, or that is not active, has no place in the model
        known = {self._space.parameter(name) for name in found}
        return found if known >= set(candidate.params) else None

    def draw(self, rng: Random, seen: Callable[[Candidate], bool]) -> dict[str, int] | None:
        """A random allowed assignment that was not seen; None if the space is used up.

        A space too large to be listed counts as used up when many draws found nothing allowed.
        """
        for _ in range(TRIES):
            indices = self.assign(lambda name: rng.randrange(self.count(name)))
            if self.is_new(indices, seen):
                return indices
        left = [indices for indices, candidate in self._some() if not seen(candidate)]
        return dict(rng.choice(left)) if left else None

    def neighbour(
        self, origin: Indices, rng: Random, seen: Callable[[Candidate], bool]
    ) -> dict[str, int] | None:
        """An unseen allowed assignment that differs from `origin` in one choice; None if all are
        seen. Ordered knobs move by one step.
        """
        moves = [
            (name, position)
            for name, at in origin.items()
            for position in range(self.count(name))
            if position != at and (not self.is_ordered(name) or abs(position - at) == 1)
        ]
        rng.shuffle(moves)
        for name, position in moves:
            # A knob that the move activates starts at its first value
            indices = self.assign(defaultdict(int, {**origin, name: position}).__getitem__)
            if self.is_new(indices, seen):
                return indices
        return None

    def is_new(self, indices: Indices, seen: Callable[[Candidate], bool]) -> bool:
        """Whether an assignment is allowed and was not seen."""
        candidate = self.candidate(indices)
        return candidate is not None and not seen(candidate)

    def every(self) -> Iterator[dict[str, int]]:
        """All allowed assignments, each once, as nested loops go through them: the space's last
        knob runs fastest. Whole branches are left out as soon as a rule is broken.
        """
        stack: list[dict[str, int]] = [{}]
        while stack:
            chosen = stack.pop()
            # What is false with some knobs unknown stays false
            if self._space.violations(self._values(chosen), self._facts):
                continue
            name = self._next(chosen)
            if name is None:
                yield chosen
            else:
                last_first = reversed(range(self.count(name)))
                stack.extend({**chosen, name: position} for position in last_first)

    def _some(self) -> list[tuple[dict[str, int], Candidate]]:
        """The allowed assignments among the first `ENUMERABLE`: all, in most spaces. Made once."""
        if self._listed is None:
            found = islice(self.every(), ENUMERABLE)
            pairs = ((indices, self.candidate(indices)) for indices in found)
            self._listed = [(indices, c) for indices, c in pairs if c is not None]
        return self._listed

    def _next(self, chosen: Indices) -> str | None:
        return next((name for name in self._active(chosen) if name not in chosen), None)

    def _active(self, indices: Indices) -> list[str]:
        return self._active_values(self._values(indices))

    def _active_values(self, params: Mapping[str, Json]) -> list[str]:
        active = {knob.name for knob in self._space.active(params, self._facts)}
        return [name for name in self._grids if name in active]

    def _values(self, indices: Indices) -> dict[str, Json]:
        return {name: self._grids[name][position] for name, position in indices.items()}


def _rises(grid: tuple[Json, ...]) -> bool:
    return len(grid) > 1 and all(map(_number, grid)) and all(a < b for a, b in pairwise(grid))


def _position(grid: tuple[Json, ...], value: Json) -> int | None:
    """Where a value stands in a grid: equal JSON, or the same number written otherwise (8, 8.0)."""
    wanted = canonical_json(value)
    for position, known in enumerate(grid):
        if canonical_json(known) == wanted or (
            _number(known) and _number(value) and known == value
        ):
            return position
    return None


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
