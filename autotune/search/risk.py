"""How likely a launch fails, or a rare demand (all requests answered) is not met: from launches.

Suspects are values, and pairs of values, that some failed launch has set and none that served. Each
is fatal with a small chance beforehand; a failure makes those that it holds more likely, the more
so the less the others explain it (a noisy-or network: Pearl, Probabilistic Reasoning in Intelligent
Systems, 1988, section 4.3; solved one suspect after the other). Where memory was the cause, values
that ask for more of it, or allow less, are suspected along with the one that failed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from autotune.canonical import Json
from autotune.search.choices import Indices
from autotune.search.step_back import Direction

Array = np.ndarray[Any, Any]

PRIOR = 0.02
"""Share of launches that fail for no reason anybody knows beforehand."""
STEP_RISK = 0.05
"""More of it for each step beyond everything that served, on knobs that take memory."""
FATAL = {"choice": 0.05, "number": 0.02, "pair": 0.01}
"""Chance that a value is fatal, before anything is known."""
CERTAIN = 0.97
LEAST_WORD = 4
"""Shorter values stand in too many sentences."""
ROUNDS = 2
LATEST = 40
"""Failures that are looked at."""

Suspect = tuple[tuple[int, int, int], ...]
"""(knob, position, way) of one value, or of several together. Way: +1 means the larger values too,
-1 the smaller ones too, 0 neither."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A launch that failed, and the knobs that are suspected of it."""

    row: Array
    places: frozenset[int]
    suspects: tuple[Suspect, ...]


def named_knobs(words: str, params: Mapping[str, Json]) -> list[str]:
    """The knobs that an engine's words speak of, by their name or by the value that they have."""
    plain = words.replace("_", "-").lower()
    return [
        name
        for name, value in params.items()
        if name.lower() in plain
        or (isinstance(value, str) and len(value) >= LEAST_WORD and value in words)
    ]


class Risk:
    """Learns from launches. `names`: all knobs; `share`: those that allow more memory when larger;
    `need`: those that ask for more of what is allowed; `ordered`: those whose values are in order.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        share: Collection[str] = (),
        need: Collection[str] = (),
        ordered: frozenset[str] = frozenset(),
    ) -> None:
        self._names = tuple(names)
        self._share = [name in share for name in names]
        self._hungry = np.array([name in share or name in need for name in names], dtype=bool)
        self._ordered = [name in ordered for name in names]
        self._served: list[Array] = []
        self._failures: list[_Failure] = []
        self._fatal: dict[Suspect, float] | None = {}
        self._blamed: set[Suspect] = set()

    def learn(
        self,
        indices: Indices,
        *,
        failed: bool,
        blamed: Sequence[str] = (),
        named: Sequence[str] = (),
        memory: Direction | None = None,
    ) -> None:
        """Take over a launch. `blamed`: knobs whose values together are certain to be at fault;
        `named`: those that the engine's words speak of, so that no others are suspected of being it
        alone; `memory`: it asked for too much memory, so less would do (`lower`), or was allowed
        too little (`raise`), and nothing else is at fault.
        """
        row = self._row(indices)
        self._fatal = None
        if not failed:
            self._served.append(row)
            return
        active = [k for k in range(len(row)) if row[k] >= 0]
        guilty = [k for k in active if self._names[k] in blamed]
        places = [k for k in active if self._names[k] in named] or guilty or active
        if memory and (hungry := [k for k in active if self._hungry[k]]):
            # As much memory and more fails again, whatever else is set; as little and less does
            # while weights and cache are stored alike
            alike = [k for k in active if not self._ordered[k]] if memory == "raise" else []
            places, guilty = hungry, sorted({*hungry, *alike})
        ways = self._ways(memory)
        if guilty:
            self._blamed.add(tuple((k, int(row[k]), ways[k]) for k in guilty))
        singles: list[Suspect] = [((k, int(row[k]), ways[k]),) for k in places]
        pairs: list[Suspect] = [(*one, *other) for one, other in combinations(singles, 2)]
        self._failures.append(_Failure(row, frozenset(places), (*singles, *pairs)))

    def of(self, candidates: Sequence[Indices]) -> Array:
        """The chance of failure of each, 0 to 1."""
        rows = np.array([self._row(indices) for indices in candidates], dtype=int)
        rows = rows.reshape(len(candidates), len(self._names))
        if self._fatal is None:
            self._fatal = self._solved()
        serves = 1 - self._prior(rows)
        for suspect, chance in self._fatal.items():
            serves = serves * (1 - chance * self._has(rows, suspect))
        found: Array = 1 - serves
        return found

    def _solved(self) -> dict[Suspect, float]:
        """How likely each suspect is fatal."""
        served = np.array(self._served, dtype=int).reshape(len(self._served), len(self._names))
        failures = self._failures[-LATEST:]
        failed = np.array([f.row for f in failures], dtype=int)
        failed = failed.reshape(len(failures), len(self._names))
        suspects = list(dict.fromkeys(s for f in failures for s in f.suspects))
        suspects = [s for s in suspects if not self._has(served, s).any()]
        blamed = [s for s in self._blamed if not self._has(served, s).any()]
        known = dict.fromkeys(blamed, CERTAIN)
        if not suspects:
            return known
        open_to = np.array([[{k for k, *_ in s} <= f.places for f in failures] for s in suspects])
        holds = np.array([self._has(failed, s) for s in suspects]) & open_to
        before = np.array([self._before(s) for s in suspects])
        chance = before.copy()
        # The one that explains most comes first, and takes it from the others
        for _ in range(ROUNDS):
            alone = [self._odds(i, holds, before, chance) for i in range(len(suspects))]
            for i in np.argsort([-odds for odds in alone], kind="stable"):
                odds = self._odds(i, holds, before, chance)
                chance[i] = min(CERTAIN, odds / (1 + odds))
        found = {s: float(c) for s, c in zip(suspects, chance, strict=True) if c > 0.005}
        return found | known

    @staticmethod
    def _odds(i: int, holds: Array, before: Array, chance: Array) -> float:
        """The odds that suspect `i` is fatal, by how badly the others explain its failures."""
        mine = holds[i]
        clears = np.where(holds[:, mine], 1 - chance[:, None], 1.0)
        clears[i] = 1.0
        others = 1 - (1 - PRIOR) * clears.prod(axis=0)
        likelier = -np.log(np.clip(others, 0.02, 1.0)).sum()
        return float(before[i] / (1 - before[i]) * np.exp(min(likelier, 20.0)))

    def _before(self, suspect: Suspect) -> float:
        if len(suspect) > 1:
            return FATAL["pair"]
        return FATAL["number" if self._ordered[suspect[0][0]] else "choice"]

    def _has(self, rows: Array, suspect: Suspect) -> Array:
        """Which rows set what is suspected, or lie beyond it."""
        found = np.ones(len(rows), dtype=bool)
        for knob, position, way in suspect:
            column = rows[:, knob]
            beyond = (column >= 0) & ((column - position) * way > 0)
            found &= (column == position) | beyond
        return found

    def _ways(self, memory: Direction | None) -> list[int]:
        """Towards which values of each knob a failure speaks; without a known cause towards larger
        ones of what takes memory.
        """
        ways = [int(hungry) for hungry in self._hungry]
        if memory == "raise":
            ways = [-way if share else way for way, share in zip(ways, self._share, strict=True)]
        return ways

    def _prior(self, rows: Array) -> Array:
        if not self._served or not self._hungry.any():
            return np.full(len(rows), PRIOR)
        most = np.array(self._served)[:, self._hungry].max(axis=0)
        beyond = np.maximum(0, rows[:, self._hungry] - most[None, :]).sum(axis=1)
        prior: Array = np.minimum(0.5, PRIOR + STEP_RISK * beyond)
        return prior

    def _row(self, indices: Indices) -> Array:
        return np.array([indices.get(name, -1) for name in self._names], dtype=int)
