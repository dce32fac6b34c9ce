"""A study keeps the space, limits and workload that it began with: edits of its own file are found.

`study.json` is what a resume goes by; `study.yaml` beside it is the same for people, who may take
it for the file to edit. Results under one space say nothing of another, so an edit is an error;
what may change later has options of `resume` (`extending`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import yaml

from autotune.canonical import Json, canonical_json
from autotune.errors import InputError, Problem
from autotune.study.directory import StudyDirectory, read_json
from autotune.study.extending import OPTIONS, limit_text, limits_of
from autotune.study.snapshot import STUDY_FILE

_NONE: Mapping[str, Json] = MappingProxyType({})


def check_unedited(directory: StudyDirectory, limits: Mapping[str, Json] = _NONE) -> None:
    """Raise InputError where `study.yaml` says something else than the study that was begun, or
    than it with the `limits` (of `extending.limits_of`) that a resume was asked for.

    Names each knob or key with its value then and now. A file that is missing, or is no mapping any
    more, is no statement.
    """
    path = directory.path / STUDY_FILE
    try:
        now = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return
    data = read_json(directory.path / "study.json")
    then = data.get("spec") if isinstance(data, dict) else None
    if not isinstance(now, dict) or not isinstance(then, dict):
        return
    then, now = _dotted(then), _dotted(now)
    changes = list(_changes(then, now))
    if changes and not _says(limits, then, now):
        raise InputError(
            message=f"{path} was changed after the study had begun",
            problems=[Problem(message=change) for change in changes],
            so="nothing was started; the results so far belong to the study as it began",
            hint=_hint(directory, then, now),
        )


def _says(limits: Mapping[str, Json], then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether an edit is what these limits say: then the resume agrees to it."""
    edited = {key: now.get(key) for key in limits if _differ(then.get(key), now.get(key))}
    try:
        stated = limits_of(edited)
    except InputError:
        return False
    same = all(stated[key] == limits[key] for key in edited)
    return same and not any(_changes(then, {**now, **{key: then.get(key) for key in edited}}))


def _hint(directory: StudyDirectory, then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What to type instead of the edit."""
    changed = {key: now.get(key) for key in (*then, *now) if _differ(then.get(key), now.get(key))}
    options = _options(changed)
    if options:
        return f"undo the change, or say it: `autotune resume {directory.path} {options}`"
    return (
        "undo the change to go on, or begin a new study with it: "
        f"`autotune tune {directory.path / STUDY_FILE} --out ANOTHER_FOLDER`"
    )


def _options(changed: Mapping[str, Any]) -> str:
    """The change as options of `resume`; empty where they cannot make it."""
    if not changed.keys() <= OPTIONS.keys() or None in changed.values():
        return ""
    try:
        limits = limits_of(changed)
    except InputError:
        return ""
    return " ".join(f"{OPTIONS[key]} {limit_text(key, value)}" for key, value in limits.items())


def _dotted(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A study with the keys of the sections that `resume` can change as keys of their own."""
    sections = {key.partition(".")[0] for key in OPTIONS}
    flat: dict[str, Any] = {}
    for key, value in spec.items():
        if key in sections and isinstance(value, dict):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*then, *now)):
        one, other = then.get(key), now.get(key)
        if not _differ(one, other):
            continue
        if key == "space" and isinstance(one, dict) and isinstance(other, dict):
            yield from _knobs(one.get("knobs") or {}, other.get("knobs") or {})
            rest = ({k: v for k, v in side.items() if k != "knobs"} for side in (one, other))
            yield from (f"space: {change}" for change in _changes(*rest))
        else:
            yield f"{key}: {_text(one)} then, {_text(other)} now"


def _knobs(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*then, *now)):
        one, other = then.get(name), now.get(name)
        if not _differ(one, other):
            continue
        if one is None or other is None:
            yield f"knob {name}: {'new' if one is None else 'gone'}"
            continue
        yield from (f"knob {name}: {change}" for change in _changes(one, other))


def _differ(one: Any, other: Any) -> bool:
    return _canonical(one) != _canonical(other)


def _canonical(value: Any) -> str:
    try:
        return canonical_json(value)
    except (TypeError, ValueError):  # YAML has more than JSON: dates, NaN
        return str(value)


def _text(value: Json) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return "[" + ", ".join(map(_text, value)) + "]"
    text = value if isinstance(value, str) else _canonical(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
