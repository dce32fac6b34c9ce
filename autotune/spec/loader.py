"""From a study file and flags to a StudySpec; everything that is wrong is told at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from autotune.canonical import Json
from autotune.errors import InputError, Problem
from autotune.spec.checks import StudyChecks
from autotune.spec.diagnostics import in_file_order, problems_of
from autotune.spec.engines_split import SideLocator, split_engines
from autotune.spec.model import StudySpec
from autotune.spec.origins import Locator, Origin, merged, origins_of, split_path
from autotune.spec.render import problems_title
from autotune.spec.yaml_source import Document, named, read_yaml

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_SPACE_OF = {
    "vllm": "vllm",
    "sglang": "sglang",
    "simulated": "quick",
    "simulated-sglang": "sglang",
}
_DEFAULT_OBJECTIVE = "minimize e2e_p95"
_DEFAULT_TRIALS = 40
FRONT_FINALISTS = 3
"""With several objectives: the best in the first one, the knee, and one more point of the front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStudy:
    """A study as it will run.

    Paths in `spec` are resolved; names of fixed flags and baseline knobs are normalised (no leading
    dashes, dashes for underscores). `document` is None without a study file. `origins`: dotted path
    (`budget.time`, `engine.args.max-model-len`) -> where the value came from. `folder` is where
    relative paths of the study start from.
    """

    spec: StudySpec
    document: Document | None
    origins: Mapping[str, Origin]
    locate: Locator
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyReading:
    """What could be read of a study: its data and all problems; `study` only if there are none.

    `others`: of a study across engines the readings for the engines after the first.
    """

    study: LoadedStudy | None
    data: Mapping[str, Json]
    document: Document | None
    locate: Locator
    folder: Path
    problems: tuple[Problem, ...]
    others: tuple[StudyReading, ...] = ()


def load_study(path: Path, overrides: Mapping[str, Any] = _NOTHING) -> LoadedStudy:
    """Read a study file. `overrides`: dotted path -> value from a flag (None: not given).

    Raises InputError with every problem of the file and the flags, in file order.
    """
    return loaded(read_study(path, overrides))


def study_from_flags(values: Mapping[str, Any]) -> LoadedStudy:
    """A study from flags alone: dotted path -> value, such as `{"engine.kind": "vllm"}`.

    Without an objective the study minimises e2e_p95 within the limits. Raises InputError.
    """
    return loaded(read_study(None, values))


def loaded(reading: StudyReading) -> LoadedStudy:
    """The study of a reading without problems. Raises InputError otherwise."""
    if reading.study is None or reading.problems:
        raise input_error(reading.problems, reading.document)
    return reading.study


def input_error(problems: tuple[Problem, ...], document: Document | None) -> InputError:
    """The one error for all problems of a study."""
    where = document.file if document else "the flags"
    hint = (
        f"`autotune plan {where}` checks again without starting anything"
        if document
        else "`autotune tune --help` lists the flags"
    )
    return InputError(
        message=problems_title(problems, where),
        problems=problems,
        so="nothing was started",
        hint=hint,
    )


def read_study(path: Path | None, overrides: Mapping[str, Any] = _NOTHING) -> StudyReading:
    """Read a study and collect its problems instead of raising them.

    Raises InputError only for a file that cannot be opened.
    """
    document = _open(path) if path is not None else None
    flags = {split_path(key): value for key, value in overrides.items() if value is not None}
    locate = Locator(document, flags)
    folder = path.parent if path is not None else Path()
    written = document.data if document is not None and document.data is not None else {}
    problems = list(document.problems) if document is not None else []
    if document is not None and document.data is None:
        return StudyReading(
            study=None, data={}, document=document, locate=locate, folder=folder,
            problems=tuple(problems),
        )  # fmt: skip
    data = merged(written, flags)
    split = split_engines(data, folder)
    if split is None:
        return _read(data, written, path, document, locate, flags, problems)
    readings = [
        _read(side.data, side.data, path, document, SideLocator(document, flags, side), flags, [])
        for side in split.sides
    ]
    problems += [Problem(message=f"{named(at)}{label}", place=locate(at, label=label))
                 for at, label in split.wrong]  # fmt: skip
    problems += [problem for reading in readings for problem in reading.problems]
    told = in_file_order(list(dict.fromkeys(problems)))
    return replace(readings[0], problems=told, others=tuple(readings[1:]))


def _read(
    data: Mapping[str, Json],
    written: Mapping[str, Json],
    path: Path | None,
    document: Document | None,
    locate: Locator,
    flags: Mapping[tuple[str | int, ...], Any],
    problems: list[Problem],
) -> StudyReading:
    """Read a study of one engine. `data`: file and flags merged; `written`: the file alone."""
    folder = path.parent if path is not None else Path()
    written = copy.deepcopy(dict(written))
    data = _with_defaults(dict(data), path)
    checks = StudyChecks(data=data, folder=folder, locate=locate)
    problems += checks.problems()
    spec = None
    try:
        spec = StudySpec.model_validate(checks.resolved())
    except ValidationError as error:
        problems += problems_of(error, checks.resolved(), StudySpec, locate)
    study = None
    if spec is not None and not problems:
        spec = checks.normalised(spec)
        origins = origins_of(spec, checks.normal_names(written), flags)
        study = LoadedStudy(
            spec=spec, document=document, origins=origins, locate=locate, folder=folder
        )
    return StudyReading(
        study=study, data=data, document=document, locate=locate, folder=folder,
        problems=in_file_order(problems),
    )  # fmt: skip


def _open(path: Path) -> Document:
    if path.is_dir():
        raise InputError(
            message=f"{path} is a folder, not a study file",
            so="nothing was started",
            hint=f"to go on with a study: `autotune resume {path}`",
        )
    return read_yaml(path)


def _with_defaults(data: dict[str, Json], path: Path | None) -> dict[str, Json]:
    """Defaults that depend on other values; fixed ones stand in the schema."""
    engine = data.get("engine")
    kind = engine.get("kind", "vllm") if isinstance(engine, dict) else "vllm"
    if "name" not in data:
        model = data.get("model")
        data["name"] = (
            path.stem if path else Path(model).name if isinstance(model, str) else "study"
        )
    if "space" not in data and isinstance(kind, str) and kind in _SPACE_OF:
        data["space"] = _SPACE_OF[kind]
    if path is None:
        data.setdefault("objective", _DEFAULT_OBJECTIVE)
    objective, search = data.get("objective"), data.setdefault("search", {})
    if isinstance(objective, list) and len(objective) > 1 and isinstance(search, dict):
        search.setdefault("finalists", FRONT_FINALISTS)
    budget = data.setdefault("budget", {})
    if isinstance(budget, dict) and not {"time", "trials"} & budget.keys():
        budget["trials"] = _DEFAULT_TRIALS
    return data
