"""A study keeps the space, limits and workload that it began with: edits of its own file are found.

`study.json` is what a resume goes by; `study.yaml` beside it is the same for people, who may take
it for the file to edit. Results under one space say nothing of another, so an edit is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from autotune.canonical import Json, canonical_json
from autotune.errors import InputError, Problem
from autotune.study.directory import StudyDirectory, read_json

FILE = "study.yaml"


def check_unedited(directory: StudyDirectory) -> None:
    """Raise InputError where `study.yaml` says something else than the study that was begun.

    Names each knob or key with its value then and now. A file that is missing, or is no mapping any
    more, is no statement.
    """
    path = directory.path / FILE
    try:
        now = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return
    then = read_json(directory.path / "study.json").get("spec")
    if not isinstance(now, dict) or not isinstance(then, dict):
        return
    changes = list(_changes(then, now))
    if changes:
        raise InputError(
            message=f"{path} was changed after the study had begun",
            problems=[Problem(message=change) for change in changes],
            so="nothing was started; the results so far belong to the study as it began",
            hint=f"undo the change to go on, or begin a new study with it: "
            f"`autotune tune {path} --out ANOTHER_FOLDER`",
        )


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*then, *now)):
        one, other = then.get(key), now.get(key)
        if canonical_json(one) == canonical_json(other):
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
        if canonical_json(one) == canonical_json(other):
            continue
        if one is None or other is None:
            yield f"knob {name}: {'new' if one is None else 'gone'}"
            continue
        yield from (f"knob {name}: {change}" for change in _changes(one, other))


def _text(value: Json) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return "[" + ", ".join(map(_text, value)) + "]"
    text = value if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
