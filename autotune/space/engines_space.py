"""One search space across engines: the engine is a choice, and decides which knobs there are.

Knobs are named `kind:flag`, so that equal names of two engines with other values keep apart.
Candidates hold the engine's own names and the choice itself: `{"engine": "sglang",
"page-size": 16}`. Every method takes parameters in either form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.canonical import Json
from autotune.errors import Place, Problem
from autotune.space.candidate import ENGINE, Candidate
from autotune.space.knob import Knob
from autotune.space.search_space import First, SearchSpace
from autotune.spec.conditions import parse_condition

WHY_ENGINE = "which engine serves the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePart:
    """One engine's space. `facts`: what is fixed where that engine runs; None: those that the
    caller passes.
    """

    kind: str
    space: SearchSpace
    facts: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesSpace(SearchSpace):
    """A `SearchSpace` of several engines; made by `across`."""

    parts: tuple[EnginePart, ...] = ()
    _owner: Mapping[str, str] = field(default_factory=dict)

    @property
    def engines(self) -> tuple[str, ...]:
        """The kinds to choose from."""
        return tuple(part.kind for part in self.parts)

    def parameter(self, name: str) -> str:
        """The name in a candidate of the knob called `name` here."""
        return name if name == ENGINE else name.partition(":")[2]

    def part(self, kind: Json) -> EnginePart | None:
        """The part of a kind, if there is one."""
        return next((part for part in self.parts if part.kind == kind), None)

    def active(self, params: Mapping[str, Json], facts: Mapping[str, Json]) -> list[Knob]:
        """The choice of the engine, and the active knobs of the one that is chosen."""
        choice = [knob for knob in self.knobs if knob.name == ENGINE]
        found = self._own(params, facts)
        if found is None:
            return choice
        part, own, known = found
        active = {f"{part.kind}:{knob.name}" for knob in part.space.active(own, known)}
        return [*choice, *(knob for knob in self.knobs if knob.name in active)]

    def violations(self, params: Mapping[str, Json], facts: Mapping[str, Json]) -> list[str]:
        """The rules of the chosen engine's space that these parameters break."""
        found = self._own(params, facts)
        return [] if found is None else found[0].space.violations(found[1], found[2])

    def complete(self, raw: Mapping[str, Json], facts: Mapping[str, Json]) -> Candidate:
        """The candidate that `raw` stands for, under the engine's own names. Raises ValueError for
        a value of the wrong kind, or no engine that is here.
        """
        found = self._own(raw, facts)
        if found is None:
            raise ValueError(f"{ENGINE}: expected one of {', '.join(self.engines)}")
        part, own, known = found
        return Candidate({ENGINE: part.kind, **part.space.complete(own, known).params})

    def candidates(self, facts: Mapping[str, Json]) -> Iterator[Candidate]:
        """Every distinct candidate that breaks no rule, one engine after another."""
        for part in self.parts:
            known = facts if part.facts is None else part.facts
            for candidate in part.space.candidates(known):
                yield Candidate({ENGINE: part.kind, **candidate.params})

    def size(self, facts: Mapping[str, Json], limit: int = 1_000_000) -> int | None:
        """How many distinct candidates break no rule; None as in `SearchSpace.size`."""
        total = 0
        for part in self.parts:
            count = part.space.size(facts if part.facts is None else part.facts, limit)
            if count is None or total + count > limit:
                return None
            total += count
        return total

    def check_params(
        self,
        params: Mapping[str, Json],
        *,
        refuse_unknown: bool = False,
        locate: Callable[[str], Place | None] | None = None,
    ) -> list[Problem]:
        """What is wrong with the parameters of a candidate."""
        part = self.part(params.get(ENGINE))
        if part is None:
            return [Problem(message=f"`{ENGINE}`: expected one of {', '.join(self.engines)}")]
        own = {name: value for name, value in params.items() if name != ENGINE}
        return part.space.check_params(own, refuse_unknown=refuse_unknown, locate=locate)

    def _own(
        self, params: Mapping[str, Json], facts: Mapping[str, Json]
    ) -> tuple[EnginePart, dict[str, Json], Mapping[str, Json]] | None:
        """The chosen engine, what the parameters say of its knobs, and its facts."""
        part = self.part(params.get(ENGINE))
        if part is None:
            return None
        others = {name: v for name, v in params.items() if name not in self._owner}
        named = {
            self.parameter(name): value
            for name, value in params.items()
            if self._owner.get(name) == part.kind
        }
        own = {**named, **others}
        own.pop(ENGINE, None)
        return part, own, facts if part.facts is None else part.facts


def across(name: str, parts: Sequence[EnginePart]) -> EnginesSpace:
    """The space of these engines; the first one's settings come first."""
    kinds = tuple(part.kind for part in parts)
    choice = Knob(name=ENGINE, kind="choice", values=kinds, why=WHY_ENGINE)
    knobs = [
        replace(
            knob,
            name=f"{part.kind}:{knob.name}",
            flag=None if knob.env else knob.flag or knob.name,
            when=parse_condition(
                f'{ENGINE} == "{part.kind}"' + (f" and ({knob.when.text})" if knob.when else "")
            ),
        )
        for part in parts
        for knob in part.space.knobs
    ]
    first = [
        First(
            params={ENGINE: part.kind, **entry.params},
            why=entry.why,
            when=entry.when,
            source=entry.source,
        )
        for part in parts
        for entry in part.space.first
    ]
    owner = {f"{part.kind}:{k.name}": part.kind for part in parts for k in part.space.knobs}
    return EnginesSpace(
        name=name,
        knobs=(choice, *knobs),
        rules=tuple(rule for part in parts for rule in part.space.rules),
        first=tuple(first),
        parts=tuple(parts),
        _owner=owner,
    )
