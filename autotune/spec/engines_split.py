"""A study across engines, taken apart: for each kind of engine the study that it is alone.

Every value under `engine:`, the `baseline` and the `space` may be a mapping by kind; all else is
shared. What comes out is read, checked and resolved as any study of one engine is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from autotune.canonical import Json
from autotune.errors import InputError, Place
from autotune.spec.checks import is_space_path
from autotune.spec.model import EngineSpec
from autotune.spec.origins import Locator
from autotune.spec.origins import Path as Keys
from autotune.spec.resources import find_shipped
from autotune.spec.yaml_source import Document, read_yaml

KINDS: tuple[str, ...] = get_args(EngineSpec.model_fields["kind"].annotation)
SPEAKS_LIKE = {"simulated": "vllm", "simulated-sglang": "sglang"}
"""Simulated kind -> the engine whose flags it takes: a space for that one serves it."""
_SHARED = ("launcher", "gpus", "gpus_per_trial", "port")
"""What all engines of a study have in common: they run one after another in the same place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideData:
    """The data of one engine's study. `moved`: a path in it -> where that stands in the file;
    `opaque`: paths of which only the whole has a place.
    """

    kind: Json
    data: dict[str, Json]
    moved: Mapping[Keys, Keys]
    opaque: frozenset[Keys] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """All sides, the baseline's first, and what is wrong: (path, label)."""

    sides: tuple[SideData, ...]
    wrong: Sequence[tuple[Keys, str]] = field(default=())


class SideLocator(Locator):
    """Places of one side's values in the file of the whole study."""

    def __init__(
        self, document: Document | None, overrides: Mapping[Keys, Json], side: SideData
    ) -> None:
        super().__init__(document, overrides)
        self._side = side

    def __call__(
        self,
        path: Sequence[str | int],
        *,
        key: bool = False,
        label: str = "",
        offset: int = 0,
        length: int | None = None,
    ) -> Place | None:
        where, whole = self._where(path)
        if whole:
            return super().__call__(where, label=label)
        return super().__call__(where, key=key, label=label, offset=offset, length=length)

    def flagged(self, path: Sequence[str | int]) -> Keys | None:
        return super().flagged(self._where(path)[0])

    def _where(self, path: Sequence[str | int]) -> tuple[Keys, bool]:
        """The path in the file, and whether it stands for everything below it."""
        for size in range(len(path), 0, -1):
            head = tuple(path[:size])
            if head in self._side.moved:
                whole = head in self._side.opaque and size < len(path)
                rest = () if whole else tuple(path[size:])
                return (*self._side.moved[head], *rest), whole
        return tuple(path), False


def split_engines(data: Mapping[str, Json], folder: Path) -> Split | None:
    """The sides of a study whose `engine.kind` is a list; None for a study of one engine.

    `folder`: where the study's relative paths start from.
    """
    engine = data.get("engine")
    kinds = engine.get("kind") if isinstance(engine, Mapping) else None
    if not isinstance(kinds, list) or not kinds:
        return None
    wrong = _wrong_kinds(kinds)
    wrong += [
        (("engine", name), f"one for all engines of a study: {name} cannot differ between them")
        for name in _SHARED
        if isinstance(engine, Mapping) and _by_kind(engine.get(name))
    ]
    space, path, inside = _spaces(data.get("space"), folder)
    sides = []
    for index, kind in enumerate(kinds):
        side = _side(data, kind, index)
        if space is not None and isinstance(kind, str):
            own = next((k for k in (kind, SPEAKS_LIKE.get(kind)) if k in space), None)
            if own is None:
                wrong.append((("space",), f"no space for {kind}"))
                side.data.pop("space", None)
            else:
                side.data["space"] = copy.deepcopy(space[own])
                moved = {**side.moved, ("space",): (*path, own) if inside else path}
                opaque = frozenset() if inside else frozenset({("space",)})
                side = SideData(kind=kind, data=side.data, moved=moved, opaque=opaque)
        sides.append(side)
    return Split(sides=tuple(sides), wrong=tuple(wrong))


def _wrong_kinds(kinds: Sequence[Json]) -> list[tuple[Keys, str]]:
    wrong: list[tuple[Keys, str]] = []
    for index, kind in enumerate(kinds):
        if kind in kinds[:index]:
            wrong.append((("engine", "kind", index), f"named twice: {kind}"))
    if len({kind in tuple(SPEAKS_LIKE) for kind in kinds}) > 1:
        label = "a simulated engine compares with no real one"
        wrong.append((("engine", "kind"), label))
    return wrong


def _side(data: Mapping[str, Json], kind: Json, index: int) -> SideData:
    """The study of one kind, its space still as written."""
    own = copy.deepcopy(dict(data))
    moved: dict[Keys, Keys] = {("engine", "kind"): ("engine", "kind", index)}
    engine: dict[str, Json] = {}
    for name, value in own["engine"].items():
        if not _by_kind(value):
            engine[name] = value
        elif kind in tuple(value):
            engine[name] = value[kind]
            moved["engine", name] = ("engine", name, str(kind))
    own["engine"] = {**engine, "kind": kind}
    if _by_kind(own.get("baseline")):
        own["baseline"] = own["baseline"].get(str(kind), {})
        moved[("baseline",)] = ("baseline", str(kind))
    elif index > 0:
        # What runs today runs on one engine: the first that is named
        own["baseline"] = {}
    return SideData(kind=kind, data=own, moved=moved)


def _by_kind(value: Json) -> bool:
    return isinstance(value, Mapping) and bool(value) and set(value) <= set(KINDS)


def _spaces(value: Json, folder: Path) -> tuple[Mapping[str, Json] | None, Keys, bool]:
    """The spaces by kind (None: one for all, or the defaults), where they stand, and whether each
    has a place of its own in the study file.
    """
    if isinstance(value, Mapping):
        if _by_kind(value):
            return value, ("space",), True
        inner = value.get("engines")
        return (inner, ("space", "engines"), True) if _by_kind(inner) else (None, (), False)
    file = _space_file(value, folder) if isinstance(value, str) else None
    if file is None:
        return None, (), False
    try:
        written = read_yaml(file).data
    except InputError:
        return None, (), False  # the reader of spaces will say so
    inner = written.get("engines") if isinstance(written, Mapping) else None
    if not isinstance(inner, Mapping) or not _by_kind(inner):
        return None, (), False
    return {kind: _beside(one, file) for kind, one in inner.items()}, ("space",), False


def _space_file(text: str, folder: Path) -> Path | None:
    if not is_space_path(text):
        return find_shipped("search_spaces", text)
    return next((path for path in (folder / text, Path(text)) if path.is_file()), None)


def _beside(space: Json, file: Path) -> Json:
    """A path in a space file is meant from that file."""
    if isinstance(space, str) and is_space_path(space) and (file.parent / space).is_file():
        return str((file.parent / space).resolve())
    return space
