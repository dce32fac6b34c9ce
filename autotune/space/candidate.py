"""A candidate: one assignment of values to the knobs that are active in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from autotune.canonical import Json, canonical_json, digest

ENGINE = "engine"
"""In a study across engines: the parameter that names the engine. Never a flag."""
MODEL = "model"
"""A knob of this name varies the checkpoint that is served. Never a flag."""


@dataclass(frozen=True)
class Candidate:
    """An immutable, hashable assignment knob name -> JSON value.

    Knobs that are absent keep the engine's default. Two candidates with equal assignments are equal
    whatever order they were given in.
    """

    params: Mapping[str, Json]

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(dict(sorted(self.params.items()))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def key(self) -> str:
        """Canonical JSON of the assignment."""
        return canonical_json(dict(self.params))

    @property
    def engine(self) -> str | None:
        """The engine that was chosen; None in a study of one engine."""
        kind = self.params.get(ENGINE)
        return kind if isinstance(kind, str) else None

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that name this assignment in files and logs."""
        return digest(dict(self.params))

    def changed_from(self, baseline: Candidate) -> dict[str, tuple[Json, Json]]:
        """Knobs that differ: name -> (baseline's value, this value); None where absent. On another
        engine than the baseline's: those that are set there.
        """
        left = baseline.params if self.engine == baseline.engine else {}
        names = sorted({*self.params, *left})
        pairs = {name: (baseline.params.get(name), self.params.get(name)) for name in names}
        return {
            name: pair
            for name, pair in pairs.items()
            if (name in baseline.params) != (name in self.params) or _differ(*pair)
        }


def _differ(one: Json, other: Json) -> bool:
    # Most values are plain and of one type: those need no text to be compared by
    if type(one) is type(other) and isinstance(one, str | int | float):
        return bool(one != other)
    return canonical_json(one) != canonical_json(other)
