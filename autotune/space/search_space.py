"""A search space: knobs, which of them are active when, and what never goes together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.canonical import Json
from autotune.errors import InputError, Place, Problem
from autotune.space.candidate import Candidate
from autotune.space.knob import Knob
from autotune.spec.conditions import Condition
from autotune.spec.diagnostics import nowhere
from autotune.spec.nearest import offer
from autotune.spec.render import problems_title
from autotune.spec.yaml_source import Document

_MOST_COUNTED = 1_000_000
_MOST_TRIED = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """A setting that is tried before any other: a preset, or somebody's advice.

    `params`: knob -> value, on top of the baseline's. `when`: only where this is true. `source`:
    who says so.
    """

    params: Mapping[str, Json]
    why: str = ""
    when: Condition | None = None
    source: str | None = None

    @property
    def reason(self) -> str:
        """Why it is tried, in words."""
        why = self.why or "tried first"
        return f"{why} ({self.source})" if self.source else why


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Knobs and rules. Parameters are mappings knob name -> value; facts are what is fixed in a
    study (fixed flags under their names, and `space.facts`); None and absent both mean unknown.
    """

    name: str
    knobs: tuple[Knob, ...]
    rules: tuple[Condition, ...] = ()
    engine: str | None = None
    first: tuple[First, ...] = ()

    @property
    def engines(self) -> tuple[str, ...]:
        """The kinds of engine to choose from; () in a space of one engine."""
        return ()

    def parameter(self, name: str) -> str:
        """The name that a knob's value has in a candidate."""
        return name

    def knob(self, name: str) -> Knob | None:
        """The knob of this name, if there is one."""
        return next((knob for knob in self.knobs if knob.name == name), None)

    def first_values(self) -> dict[str, Json]:
        """Every knob's first value: parameters for questions about the space as a whole."""
        return {knob.name: knob.grid()[0] for knob in self.knobs}

    def active(self, params: Mapping[str, Json], facts: Mapping[str, Json]) -> list[Knob]:
        """The knobs that count, given these parameters.

        Not active: a knob that is fixed by a fact of its name, that the engine's version lacks, or
        whose `when` is not true (false, or undecided). Conditions see active knobs only, so what
        hangs on an inactive knob is inactive too.
        """
        version = facts.get("engine.version")
        known = {name: value for name, value in facts.items() if value is not None}
        active = [
            knob
            for knob in self.knobs
            if knob.name not in known
            and knob.exists_in(version if isinstance(version, str) else None)
        ]
        own = {knob.name for knob in self.knobs}
        others = {n: v for n, v in params.items() if n not in own and v is not None} | known
        while True:
            values = others | {k.name: params[k.name] for k in active if k.name in params}
            kept = [k for k in active if k.when is None or k.when.evaluate(values) is True]
            if len(kept) == len(active):
                return kept
            active = kept

    def violations(self, params: Mapping[str, Json], facts: Mapping[str, Json]) -> list[str]:
        """The rules that these parameters break, as written. An undecided rule is not broken."""
        values = {**facts, **self.complete(params, facts).params}
        return [rule.text for rule in self.rules if rule.evaluate(values) is False]

    def complete(self, raw: Mapping[str, Json], facts: Mapping[str, Json]) -> Candidate:
        """The candidate that `raw` stands for: inactive knobs and None dropped, on and off as
        booleans. Parameters that are no knobs are kept, unless fixed by a fact. Raises ValueError
        for a value of the wrong kind.
        """
        params = {name: self._coerced(name, value) for name, value in raw.items()}
        active = {knob.name for knob in self.active(params, facts)}
        own = {knob.name for knob in self.knobs}
        return Candidate(
            {
                name: value
                for name, value in params.items()
                if value is not None
                and (name in active if name in own else facts.get(name) is None)
            }
        )

    def _coerced(self, name: str, value: Json) -> Json:
        knob = self.knob(name)
        if knob is None:
            return value
        try:
            return knob.coerced(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def candidates(self, facts: Mapping[str, Json]) -> Iterator[Candidate]:
        """Every distinct candidate that breaks no rule, in grid order. Lazy: spaces may be huge."""
        yield from self._candidates(self.knobs, facts, self.rules)

    def _candidates(
        self, knobs: Sequence[Knob], facts: Mapping[str, Json], rules: Iterable[Condition]
    ) -> Iterator[Candidate]:
        part = SearchSpace(name=self.name, knobs=tuple(knobs), rules=tuple(rules))
        free = part._possible(facts)
        seen: set[str] = set()
        for values in itertools.product(*(knob.grid() for knob in free)):
            raw = dict(zip((knob.name for knob in free), values, strict=True))
            candidate = part.complete(raw, facts)
            if candidate.key not in seen and not part.violations(raw, facts):
                seen.add(candidate.key)
                yield candidate

    def _possible(self, facts: Mapping[str, Json]) -> list[Knob]:
        """Knobs that some parameters make active."""
        version = facts.get("engine.version")
        known = version if isinstance(version, str) else None
        own = {knob.name for knob in self.knobs}
        return [
            knob
            for knob in self.knobs
            if facts.get(knob.name) is None
            and knob.exists_in(known)
            and (knob.when is None or knob.when.names & own or knob.when.evaluate(facts) is True)
        ]

    def size(self, facts: Mapping[str, Json], limit: int = _MOST_COUNTED) -> int | None:
        """How many distinct candidates break no rule; None when more than `limit` or when counting
        would take too long. Knobs that no condition ties together are counted apart and multiplied.
        """
        total = 1
        for knobs, rules in self._clusters(facts):
            if math.prod(len(knob.grid()) for knob in knobs) > _MOST_TRIED:
                return None
            total *= sum(1 for _ in self._candidates(knobs, facts, rules))
            if total > limit:
                return None
        return total

    def _clusters(
        self, facts: Mapping[str, Json]
    ) -> list[tuple[tuple[Knob, ...], tuple[Condition, ...]]]:
        """Knobs grouped so that no condition reaches from one group into another."""
        knobs = {knob.name: knob for knob in self._possible(facts)}
        groups = [{name} for name in knobs]
        rules = self.rules
        ties = [set(rule.names) for rule in rules]
        ties += [{k.name, *k.when.names} for k in knobs.values() if k.when is not None]
        for tie in ties:
            touched = [group for group in groups if group & tie]
            if len(touched) > 1:
                groups = [g for g in groups if g not in touched] + [set().union(*touched)]
        clusters = [
            (
                tuple(knobs[name] for name in knobs if name in group),
                tuple(rule for rule in rules if rule.names & group),
            )
            for group in groups
        ]
        free = tuple(rule for rule in rules if not rule.names & knobs.keys())
        return [*clusters, ((), free)] if free else clusters

    def check_params(
        self,
        params: Mapping[str, Json],
        *,
        refuse_unknown: bool = False,
        locate: Callable[[str], Place | None] | None = None,
    ) -> list[Problem]:
        """What is wrong with a baseline. Values outside the grid are fine: it runs today.

        A name that is no knob is a problem only with `refuse_unknown` (the caller knows that the
        engine has no such flag either). `locate` gives the place of a parameter by name.
        """
        problems = []
        for name, value in params.items():
            knob = self.knob(name)
            label = None
            if knob is None and refuse_unknown:
                label = f"unknown knob{offer(name, (known.name for known in self.knobs))}"
            elif knob is not None:
                try:
                    knob.coerced(value)
                except ValueError as error:
                    label = str(error)
            if label is not None:
                place = locate(name) if locate is not None else None
                problems.append(
                    Problem(message=f"`{name}`: {label}", place=_labelled(place, label))
                )
        return problems


def load_space(
    source: str | Path | Mapping[str, Json],
    *,
    document: Document | None = None,
    path: Sequence[str | int] = (),
    folder: Path | None = None,
) -> SearchSpace:
    """The space that `source` names: a shipped name, a file, or its content.

    Content that stands in a `document` at `path` gets places there. Relative files are looked for
    in `folder`, then in the current one. Raises InputError with every problem, in file order.
    """
    from autotune.space.space_file import read_space

    locate = document.place if document is not None else nowhere
    reading = read_space(source, locate=locate, path=path, folder=folder)
    if reading.space is None or reading.problems:
        where = document.file if document is not None and path else reading.where
        raise InputError(
            message=problems_title(reading.problems, where),
            problems=reading.problems,
            so="nothing was started",
        )
    return reading.space


def _labelled(place: Place | None, label: str) -> Place | None:
    return place if place is None or place.label else replace(place, label=label)
