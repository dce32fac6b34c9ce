"""A study together with its search space: read as one, all their faults told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autotune.canonical import Json
from autotune.errors import InputError, Place, Problem
from autotune.space.search_space import SearchSpace
from autotune.space.space_file import SpaceReading, read_space
from autotune.spec.diagnostics import in_file_order
from autotune.spec.loader import LoadedStudy, StudyReading, input_error, loaded, read_study
from autotune.spec.model import StudySpec

_TAKES_FLAGS_OF = {
    "simulated": ("simulated", "vllm"),
    "vllm": ("vllm", "simulated"),
    "simulated-sglang": ("simulated-sglang", "sglang"),
    "sglang": ("sglang", "simulated-sglang"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedStudy:
    """A study that can run: what was asked, and what may vary.

    `others`: of a study across engines the same for each engine after the first.
    """

    study: LoadedStudy
    space: SearchSpace
    others: tuple[OpenedStudy, ...] = ()


def open_study(
    path: Path | None, overrides: Mapping[str, Any] = MappingProxyType({})
) -> OpenedStudy:
    """Read a study file (None: flags alone) and its search space.

    `overrides` as in `load_study`. Baseline switches come out as booleans. Raises InputError with
    every problem of the study file, the flags and the space, in file order.
    """
    reading = read_study(path, overrides)
    sides = [(one, _read_space_of(one)) for one in (reading, *reading.others)]
    problems = list(reading.problems)
    for one, space in sides:
        problems += space.problems
        if space.space is not None:
            problems += _mismatches(one, space.space)
    if problems:
        raise input_error(in_file_order(problems), reading.document)
    first, *others = (_opened(one, space) for one, space in sides)
    return replace(first, others=tuple(others))


def _opened(reading: StudyReading, space: SpaceReading) -> OpenedStudy:
    study = loaded(replace(reading, problems=()))
    assert space.space is not None
    spec = _with_switches(study.spec, space.space)
    return OpenedStudy(study=replace(study, spec=spec), space=space.space)


def _read_space_of(reading: StudyReading) -> SpaceReading:
    source = reading.data.get("space")
    if not isinstance(source, str | dict):
        return SpaceReading(space=None, problems=(), where="")
    try:
        return read_space(source, locate=reading.locate, path=("space",), folder=reading.folder)
    except InputError as error:
        # The study's own checks have a missing space already, with its place.
        untold = () if reading.problems else (Problem(message=error.message),)
        return SpaceReading(space=None, problems=untold, where="")


def _mismatches(reading: StudyReading, space: SearchSpace) -> list[Problem]:
    """Where the study and a readable space do not fit each other."""
    problems = []
    engine = reading.data.get("engine")
    kind = engine.get("kind", "vllm") if isinstance(engine, dict) else "vllm"
    if space.engines:
        label = f"a space across engines; the engine is {kind}"
        place = reading.locate(("space",), label=label)
        return [Problem(message=f"`space`: {label}", place=place)]
    if space.engine is not None and space.engine not in _TAKES_FLAGS_OF.get(kind, (kind,)):
        label = f"a space for {space.engine}; the engine is {kind}"
        place = reading.locate(("space",), label=label)
        problems.append(Problem(message=f"`space`: {label}", place=place))
    baseline = reading.data.get("baseline")
    if isinstance(baseline, dict):
        names = {_spelling(space, name): name for name in baseline}

        def locate(name: str) -> Place | None:
            return reading.locate(("baseline", names[name]))

        problems += space.check_params(_spelt(space, baseline), locate=locate)
    return problems


def _spelling(space: SearchSpace, name: str) -> str:
    plain = name.lstrip("-").replace("_", "-")
    return plain if space.knob(plain) is not None else name


def _spelt(space: SearchSpace, params: Mapping[str, Json]) -> dict[str, Json]:
    return {_spelling(space, name): value for name, value in params.items()}


def _with_switches(spec: StudySpec, space: SearchSpace) -> StudySpec:
    if not isinstance(spec.baseline, dict):
        return spec
    baseline = {
        name: knob.coerced(value) if (knob := space.knob(name)) is not None else value
        for name, value in spec.baseline.items()
    }
    return spec.model_copy(update={"baseline": baseline})
