"""From a pydantic validation error to problems with places, in the words of a user's file."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from autotune.canonical import Json
from autotune.errors import Place, Problem
from autotune.spec.expressions import ExpressionError
from autotune.spec.nearest import nearest, offer
from autotune.spec.yaml_source import named

Path = tuple[str | int, ...]
Locate = Callable[..., Place | None]
"""`Document.place` or its like: (path, *, key, label, offset, length) -> where that stands."""


def nowhere(
    path: Sequence[str | int],
    *,
    key: bool = False,
    label: str = "",
    offset: int = 0,
    length: int | None = None,
) -> Place | None:
    """Locate for values that stand in no file."""
    return None


def problems_of(
    error: ValidationError, data: Json, model: type[BaseModel], locate: Locate, prefix: Path = ()
) -> list[Problem]:
    """One problem per fault. `data` is what was validated; it stands at `prefix` in the document.

    The branches of a union become one sentence ("expected text or a whole number").
    """
    by_path: dict[Path, list[Any]] = {}
    for detail in error.errors(include_url=False):
        by_path.setdefault(_real_path(detail["loc"], data, detail["type"]), []).append(detail)
    deeper = {path[:n] for path in by_path for n in range(len(path)) if path[:n] in by_path}
    problems = []
    for path, details in by_path.items():
        whole = [d for d in details if d["type"] not in _SHAPES] if path in deeper else details
        if whole:
            problems.append(_problem(path, whole, data, model, locate, prefix))
    return problems


def _problem(
    path: Path,
    details: Sequence[Any],
    data: Json,
    model: type[BaseModel],
    locate: Locate,
    prefix: Path,
) -> Problem:
    kind = details[0]["type"]
    if kind == "missing":
        label = f"`{path[-1]}` is missing"
        place = locate((*prefix, *path[:-1]), key=True, label=label) if len(path) > 1 else None
        return Problem(message=f"{named((*prefix, *path[:-1]))}{label}", place=place)
    if kind == "extra_forbidden":
        label = _unknown_key(path, model)
        place = locate((*prefix, *path), key=True, label=label)
        return Problem(message=f"{named((*prefix, *path))}{label}", place=place)
    fault = next((d["ctx"]["error"] for d in details if d["type"] == "value_error"), None)
    span: dict[str, int] = {}
    if isinstance(fault, ExpressionError):
        label, span = fault.message, {"offset": fault.offset, "length": fault.length}
    elif fault is not None:
        label = str(fault)
    else:
        label = _expectation(details, _value_at(data, path))
    place = locate((*prefix, *path), label=label, **span)
    return Problem(message=f"{named((*prefix, *path))}{label}", place=place)


_SHAPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _expectation(details: Iterable[Any], value: Json) -> str:
    """`expected text or a whole number of at least 1`, with what stands there where that helps."""
    wanted: list[str] = []
    shapes = {detail["type"] for detail in details}
    for detail in details:
        ctx = detail.get("ctx", {})
        match detail["type"]:
            case "literal_error":
                text = ctx["expected"].replace("'", "`")
                close = offer(value, text.split("`")[1::2]) if isinstance(value, str) else ""
                text += close
            case "greater_than":
                text = f"more than {ctx['gt']:g}"
            case "greater_than_equal":
                text = f"at least {ctx['ge']:g}"
            case "less_than_equal":
                text = f"at most {ctx['le']:g}"
            case "too_short":
                text = f"at least {ctx['min_length']} of them"
            case "too_long":
                text = f"at most {ctx['max_length']} of them"
            case "none_required":
                continue
            case "int_type" if "float_type" in shapes:
                continue
            case kind if kind in _SHAPES:
                text = _SHAPES[kind]
            case _:
                text = detail["msg"][:1].lower() + detail["msg"][1:]
        if text not in wanted:
            wanted.append(text)
    return f"{_found(value, shapes)}expected {' or '.join(wanted)}"


def _found(value: Json, shapes: set[str]) -> str:
    if value is None:
        return "empty; "
    if (
        isinstance(value, str)
        and shapes & {"int_type", "float_type"}
        and "string_type" not in shapes
    ):
        return "text; "
    if isinstance(value, bool | int | float) and "string_type" in shapes:
        return f"{'true or false' if isinstance(value, bool) else 'a number'}; "
    return ""


def _unknown_key(path: Path, model: type[BaseModel]) -> str:
    name = str(path[-1])
    owner = model_at(model, path[:-1])
    known = list(owner.model_fields) if owner else []
    if not nearest(name, known):
        for section, field in model.model_fields.items():
            inner = _model_in(field.annotation)
            if inner is not None and inner is not owner and name in inner.model_fields:
                return f"unknown key here; it belongs under `{section}`"
    return f"unknown key{offer(name, known)}"


def model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model that describes the mapping at `path`, if one does."""
    current: type[BaseModel] | None = model
    for step in path:
        if current is None:
            return None
        if isinstance(step, str) and step in current.model_fields:
            current = _model_in(current.model_fields[step].annotation)
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(inner) for inner in typing.get_args(annotation))
    return next((model for model in found if model is not None), None)


def _real_path(loc: Sequence[str | int], data: Json, kind: str) -> Path:
    """Pydantic's location without its names of union branches."""
    path: list[str | int] = []
    current: Json = data
    for index, step in enumerate(loc):
        if _has_step(current, step):
            current = current[step]
        elif not (kind == "missing" and index == len(loc) - 1):
            continue
        path.append(step)
    return tuple(path)


def _has_step(data: Json, step: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(step, int) and step < len(data)
    return isinstance(data, Mapping) and step in data


def _value_at(data: Json, path: Path) -> Json:
    for step in path:
        data = data[step]
    return data


def in_file_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems by file and place, each place once; those without a place first."""
    unique: dict[object, Problem] = {}
    for problem in problems:
        place = problem.place
        unique.setdefault(
            (place.file, place.line, place.column) if place else problem.message, problem
        )
    files = list(dict.fromkeys(p.place.file for p in unique.values() if p.place))
    return tuple(
        sorted(
            unique.values(),
            key=lambda p: (
                (files.index(p.place.file), p.place.line, p.place.column) if p.place else (-1, 0, 0)
            ),
        )
    )
