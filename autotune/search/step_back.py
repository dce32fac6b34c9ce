"""After a failed launch: the nearest settings that undo what the diagnosis blames for it.

A promising candidate that runs out of memory is often one step too far, and its neighbour on the
safe side is worth a launch. Which knobs take memory is the engine's own fact (`memory_order`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.canonical import Json, canonical_json
from autotune.engines.engine import Diagnosis
from autotune.engines.facts import MemoryOrder, engine_facts
from autotune.search.choices import Choices, Indices
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace

MOST_STEPS = 2
"""Steps back in a row from one candidate; then it is left alone."""
MOST_CHANGES = 2
"""A candidate with so few changes from the best counts as near it."""
Direction = Literal["lower", "raise"]


@dataclass(frozen=True, slots=True)
class Step:
    """A candidate to try instead, why, and how many steps it is from the one that failed first."""

    indices: Indices
    why: str
    depth: int


class StepBack:
    """Remembers what failed and offers what undoes it; each failure once."""

    def __init__(self, choices: Choices, order: MemoryOrder) -> None:
        self._choices = choices
        self._share, self._need = (
            [name for name in knobs_of(flags, choices) if choices.is_ordered(name)]
            for flags in (order.share, order.need)
        )
        self._waiting: list[tuple[Indices, Diagnosis, int]] = []

    def learn(self, indices: Indices, diagnosis: Diagnosis, *, depth: int) -> None:
        """A launch failed. `depth`: steps back that led to it."""
        if diagnosis.fault == "candidate" and depth < MOST_STEPS:
            self._waiting.append((indices, diagnosis, depth))

    def next(self, served: Sequence[Indices], seen: Callable[[Candidate], bool]) -> Step | None:
        """What to try instead of the failure that waits longest; None if nothing is to be undone.

        `served`: settings that served, the best first.
        """
        while self._waiting:
            failed, diagnosis, depth = self._waiting.pop(0)
            origin = min(served, key=lambda other: _distance(failed, other), default=None)
            for moved in self._moves(failed, origin, served, diagnosis):
                # A knob that the move activates starts at its first value
                indices = self._choices.assign(defaultdict(int, {**failed, **moved}).__getitem__)
                if self._choices.is_new(indices, seen):
                    return Step(indices, self._words(failed, moved, diagnosis), depth + 1)
        return None

    def _moves(
        self,
        failed: Indices,
        origin: Indices | None,
        served: Sequence[Indices],
        diagnosis: Diagnosis,
    ) -> list[dict[str, int]]:
        """What may be changed, the most telling change first. `origin`: the nearest that served."""
        direction = memory_direction(diagnosis)
        if direction is not None:
            return self._for_memory(failed, origin, direction)
        if origin is None:
            return []
        changed = [name for name in failed if origin.get(name, failed[name]) != failed[name]]
        blames = diagnosis.facts.get("blames")
        if isinstance(blames, list):
            blamed = {str(name).removeprefix("no-") for name in blames}
            guilty = [name for name in changed if {name, self._choices.flag(name)} & blamed]
        else:
            # Nothing is blamed: one value that never served is suspect, of several each may be it
            new = [n for n in changed if all(other.get(n) != failed[n] for other in served)]
            guilty = new if len(new) == 1 else []
        return [{name: origin[name]} for name in guilty]

    def _for_memory(
        self, failed: Indices, origin: Indices | None, direction: Direction
    ) -> list[dict[str, int]]:
        """One step of the memory share, or one step less of a need; first where the failed settings
        differ from what served, the share before the needs: it changes speed least.
        """
        share = -1 if direction == "lower" else 1
        steps = [(name, share) for name in self._share] + [(name, -1) for name in self._need]
        possible = [
            (name, by)
            for name, by in steps
            if name in failed and 0 <= failed[name] + by < self._choices.count(name)
        ]

        def undone(step: tuple[str, int]) -> bool:
            name, by = step
            there = failed[name] if origin is None else origin.get(name, failed[name])
            return (there - failed[name]) * by > 0

        return [
            {name: failed[name] + by} for name, by in sorted(possible, key=undone, reverse=True)
        ]

    def _words(self, failed: Indices, moved: Mapping[str, int], diagnosis: Diagnosis) -> str:
        cause = str(diagnosis.facts.get("reason", diagnosis.reason)).replace("_", " ")
        changes = ", ".join(
            f"{name} {_text(self._choices.value(name, to))} "
            f"instead of {_text(self._choices.value(name, failed[name]))}"
            for name, to in moved.items()
        )
        return f"one step back from settings that failed ({cause}): {changes}"


def memory_order_of(space: SearchSpace, facts: Mapping[str, Json], default: str) -> MemoryOrder:
    """Which flags take memory, of all engines of the space together. `default`: the kind of engine
    where neither space nor facts name one.
    """
    kinds = space.engines or (str(facts.get("engine.kind") or default),)
    orders = [engine_facts(kind).memory_order for kind in kinds]
    return MemoryOrder(
        share=tuple(dict.fromkeys(name for order in orders for name in order.share)),
        need=tuple(dict.fromkeys(name for order in orders for name in order.need)),
        neutral=tuple(dict.fromkeys(name for order in orders for name in order.neutral)),
    )


def knobs_of(flags: Collection[str], choices: Choices) -> tuple[str, ...]:
    """The knobs that set one of these flags, in the space's order."""
    return tuple(name for name in choices.names if {name, choices.flag(name)} & {*flags})


def is_near(indices: Indices, best: Indices | None) -> bool:
    """Whether settings differ from the best in few knobs."""
    return best is not None and _distance(indices, best) <= MOST_CHANGES


def _distance(one: Indices, other: Indices) -> int:
    return sum(one.get(name) != other.get(name) for name in one.keys() | other.keys())


def memory_direction(diagnosis: Diagnosis) -> Direction | None:
    """Which way memory must be moved: `raise` (too little was allowed), `lower`, None: not it."""
    known = diagnosis.facts.get("memory_direction")
    remedies: Mapping[str | None, Direction] = {"lower_memory": "lower", "raise_memory": "raise"}
    if known == "lower" or known == "raise":
        return "lower" if known == "lower" else "raise"
    return remedies.get(diagnosis.remedy)


def _text(value: Json) -> str:
    if value is None:
        return "(left out)"
    return value if isinstance(value, str) else canonical_json(value)
