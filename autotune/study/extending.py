"""Going on further than a study was begun for: its budget and its confirm pairs may change.

They say how long a study goes on, not what it measures, so the results so far stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from autotune.canonical import Json
from autotune.errors import InputError, Problem
from autotune.spec.diagnostics import problems_of
from autotune.spec.model import BudgetSpec, SearchSpec
from autotune.spec.origins import Locator, merged, split_path
from autotune.spec.render import problems_title
from autotune.spec.units import format_duration
from autotune.study.directory import StudyDirectory, read_json, write_json, write_text
from autotune.study.prepared import PreparedStudy
from autotune.study.snapshot import STUDY_FILE, study_yaml

OPTIONS = {"budget.time": "--budget", "budget.trials": "--trials", "search.repeats": "--repeats"}
"""What may change after a study has begun -> the option of `resume`."""
_SECTIONS: Mapping[str, type[BaseModel]] = {"budget": BudgetSpec, "search": SearchSpec}


def limits_of(flags: Mapping[str, Any]) -> dict[str, Json]:
    """The values as a study keeps them; `flags`: dotted path -> value, of those in `OPTIONS`.

    Raises InputError with every one that `tune` would not take either.
    """
    locate = Locator(None, _split(flags))
    limits: dict[str, Json] = {}
    problems: list[Problem] = []
    for section, model in _SECTIONS.items():
        data = _within(section, flags)
        try:
            valid = model.model_validate(data).model_dump(mode="json")
        except ValidationError as error:
            problems += problems_of(error, data, model, locate, (section,))
        else:
            limits |= {f"{section}.{name}": valid[name] for name in data}
    if problems:
        raise InputError(
            message=problems_title(problems, "the flags"),
            problems=problems,
            so="nothing was changed or started",
            hint="`autotune resume --help` lists the flags",
        )
    return limits


def extend(
    study: PreparedStudy, directory: StudyDirectory, limits: Mapping[str, Json]
) -> tuple[PreparedStudy, list[str]]:
    """Change a study and its files; returns it and one sentence per limit that is another now.

    Call with the study's lock held.
    """
    path = directory.path / "study.json"
    then = read_json(path)
    notes = [
        f"{name}: {limit_text(name, _at(then['spec'], name))} then, {limit_text(name, value)} now"
        for name, value in limits.items()
        if _at(then["spec"], name) != value
    ]
    if not notes:
        return study, []
    now = extended(then, limits)
    # What counts comes last; after a death between the two the same resume goes on
    write_text(directory.path / STUDY_FILE, study_yaml(_header(directory), now["spec"]))
    write_json(path, now)
    return _with_limits(study, limits), notes


def extended(data: Mapping[str, Json], limits: Mapping[str, Json]) -> dict[str, Json]:
    """What `study.json` holds, with other limits in every copy of the study's spec."""
    paths = _split(limits)
    now = merged(data, paths)
    now["spec"] = merged(now["spec"], paths)
    if "sides" in now:
        now["sides"] = [{**side, "spec": merged(side["spec"], paths)} for side in now["sides"]]
    return now


def limit_text(name: str, value: Json) -> str:
    """A limit as its option takes it."""
    if value is None:
        return "nothing"
    return format_duration(value) if name == "budget.time" else str(value)


def _with_limits(study: PreparedStudy, limits: Mapping[str, Json]) -> PreparedStudy:
    """The study as it would be read back from its changed files."""
    sections = {
        section: getattr(study.spec, section).model_copy(update=_within(section, limits))
        for section in _SECTIONS
    }
    return replace(
        study,
        spec=study.spec.model_copy(update=sections),
        sides=tuple(_with_limits(side, limits) for side in study.sides),
    )


def _header(directory: StudyDirectory) -> str:
    """The comment on top of `study.yaml`; nothing if the file is gone."""
    try:
        lines = (directory.path / STUDY_FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        return ""
    end = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:end])


def _split(values: Mapping[str, Any]) -> dict[tuple[str | int, ...], Any]:
    return {split_path(path): value for path, value in values.items()}


def _within(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{section}."
    return {path.removeprefix(start): v for path, v in values.items() if path.startswith(start)}


def _at(spec: Mapping[str, Json], name: str) -> Json:
    section, key = name.split(".")
    return (spec.get(section) or {}).get(key)
