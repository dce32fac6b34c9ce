"""Where each value of a study came from, and the flags that may set it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from autotune.canonical import Json
from autotune.errors import Place
from autotune.spec.masking import mask_secrets
from autotune.spec.yaml_source import Document

Origin = Literal["study file", "flag", "default"]
Path = tuple[str | int, ...]

_FREE_KEYS = ("engine.args", "engine.env", "baseline", "space")
"""Mappings whose keys are the user's: the rest of a dotted path below them is one key."""

_FLAGS = {
    "engine.kind": "--engine",
    "workload.path": "--workload",
    "constraints": "--slo",
    "budget.time": "--budget",
}


def split_path(dotted: str) -> Path:
    """`engine.args.cc.mode` -> ("engine", "args", "cc.mode")."""
    for free in _FREE_KEYS:
        if dotted.startswith(f"{free}."):
            return (*free.split("."), dotted[len(free) + 1 :])
    return tuple(dotted.split("."))


def merged(data: Mapping[str, Json], overrides: Mapping[Path, Any]) -> dict[str, Json]:
    """A copy of `data` with each override at its path; a non-mapping in the way is left alone."""
    result = copy.deepcopy(dict(data))
    for path, value in overrides.items():
        current: Any = result
        for step in path[:-1]:
            if current.get(step) is None:
                current[step] = {}
            current = current[step]
            if not isinstance(current, dict):
                break
        else:
            current[path[-1]] = copy.deepcopy(value)
    return result


class Locator:
    """Places of values in a study: in its file, or on the command line if a flag set them."""

    def __init__(self, document: Document | None, overrides: Mapping[Path, Any]) -> None:
        self._document = document
        self._overrides = overrides

    def __call__(
        self,
        path: Sequence[str | int],
        *,
        key: bool = False,
        label: str = "",
        offset: int = 0,
        length: int | None = None,
    ) -> Place | None:
        """Where the value at `path` stands; None if it was neither in a file nor in a flag."""
        flagged = self.flagged(path)
        if flagged is not None:
            return self._on_command_line(flagged, path, label, offset, length)
        if self._document is None:
            return None
        return self._document.place(path, key=key, label=label, offset=offset, length=length)

    def flagged(self, path: Sequence[str | int]) -> Path | None:
        """The path of the flag that set the value at `path`, if one did."""
        return next(
            (
                tuple(path[:n])
                for n in range(1, len(path) + 1)
                if tuple(path[:n]) in self._overrides
            ),
            None,
        )

    def _on_command_line(
        self, flagged: Path, path: Sequence[str | int], label: str, offset: int, length: int | None
    ) -> Place:
        value = self._overrides[flagged]
        rest = path[len(flagged) :]
        if isinstance(value, list) and rest and isinstance(rest[0], int) and rest[0] < len(value):
            value = value[rest[0]]
        dotted = ".".join(map(str, flagged))
        flag = _FLAGS.get(dotted, f"--{str(flagged[-1]).replace('_', '-')}")
        shown = str(value)
        size = len(shown) - offset if length is None else length
        return Place(
            file="the flags",
            line=1,
            column=len(flag) + 2 + offset,
            length=max(1, size),
            text=mask_secrets(f"{flag} {shown}"),
            label=label,
        )


def origins_of(
    spec: BaseModel, file_data: Mapping[str, Json], overrides: Mapping[Path, Any]
) -> dict[str, Origin]:
    """Dotted path of every value of the spec -> where it came from."""
    origins: dict[str, Origin] = {}
    for path in _leaves(spec):
        dotted = ".".join(path)
        if any(path[:n] in overrides for n in range(1, len(path) + 1)):
            origins[dotted] = "flag"
        else:
            origins[dotted] = "study file" if _has(file_data, path) else "default"
    return origins


def _leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(value, BaseModel):
        pairs = [(name, getattr(value, name)) for name in type(value).model_fields]
    elif isinstance(value, dict) and value and ".".join(path) in _FREE_KEYS and path != ("space",):
        pairs = list(value.items())
    else:
        return [path]
    return [leaf for name, inner in pairs for leaf in _leaves(inner, (*path, name))]


def _has(data: Json, path: Sequence[str]) -> bool:
    for step in path:
        if not isinstance(data, Mapping) or step not in data:
            return False
        data = data[step]
    return True
