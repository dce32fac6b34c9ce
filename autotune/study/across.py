"""Several engines as one study: each is resolved by itself, here they are put side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.canonical import Json
from autotune.engines.facts import engine_facts
from autotune.search.start_cost import compile_key
from autotune.space.candidate import ENGINE, MODEL, Candidate
from autotune.space.engines_space import EnginePart, across
from autotune.study.first import FirstCandidates
from autotune.study.prepared import PreparedStudy

SPACE_NAME = "across engines"


def across_engines(sides: Sequence[PreparedStudy]) -> PreparedStudy:
    """The study of these engines, the first of which runs today; one engine is itself.

    Answers are checked for all engines if for any. Right after the baseline come the baselines of
    the others, each with the presets of its engine, so that the engine seldom changes.
    """
    first = sides[0]
    if len(sides) == 1:
        return first
    quality = next((side.spec.quality for side in sides if side.spec.quality is not None), None)
    sides = [
        replace(side, spec=side.spec.model_copy(update={"quality": quality})) for side in sides
    ]
    space = across(
        SPACE_NAME,
        [EnginePart(kind=side.engine.kind, space=side.space, facts=side.facts) for side in sides],
    )
    return replace(
        sides[0],
        space=space,
        baseline=tagged(sides[0], sides[0].baseline),
        first=_first(sides),
        notes=tuple(dict.fromkeys(_notes(sides))),
        sides=tuple(sides),
    )


def tagged(side: PreparedStudy, candidate: Candidate) -> Candidate:
    """A candidate of one engine as the whole study calls it."""
    return Candidate({ENGINE: side.engine.kind, **candidate.params})


def compile_key_of(study: PreparedStudy, candidate: Candidate) -> str:
    """What decides how long a start takes: the engine, and the settings it compiles for."""
    own = study.on(candidate.engine)
    flags = engine_facts(own.engine.kind).compile_flags(own.engine_version)
    settings: dict[str, Json] = {**own.target.args, **candidate.params}
    key = compile_key(settings, flags)
    words = [candidate.engine, candidate.params.get(MODEL), key]
    return " ".join(str(word) for word in words if word is not None)


def _first(sides: Sequence[PreparedStudy]) -> FirstCandidates:
    reasons: dict[Candidate, str] = {}
    for side in (*sides[1:], sides[0]):
        if side is not sides[0]:
            reasons[tagged(side, side.baseline)] = _why(side)
        own = {tagged(side, candidate): why for candidate, why in side.first.reasons.items()}
        # Equal keys start warm one after another
        keys = {candidate: compile_key_of(side, candidate) for candidate in own}
        order = list(dict.fromkeys(keys.values()))
        for candidate in sorted(own, key=lambda one: order.index(keys[one])):
            reasons.setdefault(candidate, own[candidate])
    left_out = tuple(text for side in sides for text in side.first.left_out)
    return FirstCandidates(reasons=reasons, left_out=left_out)


def _why(side: PreparedStudy) -> str:
    given = "with the settings of its baseline" if side.spec.baseline else "with its own defaults"
    return f"{side.engine.kind} {given}, to compare the engines"


def _notes(sides: Sequence[PreparedStudy]) -> Iterable[str]:
    shared = set(sides[0].traffic.notes)
    for side in sides:
        for note in side.notes:
            yield note if note in shared else f"{side.engine.kind}: {note}"
