"""Reading search spaces: shipped ones, files, and knobs written inside a study file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from autotune.canonical import Json
from autotune.errors import InputError, Problem
from autotune.space.candidate import ENGINE, MODEL
from autotune.space.engines_space import EnginePart, across
from autotune.space.knob import Kind, Knob, KnobError, switch_value
from autotune.space.naming import check_names
from autotune.space.search_space import First, SearchSpace
from autotune.spec.checks import flag_name, is_space_path
from autotune.spec.conditions import Condition, parse_condition
from autotune.spec.diagnostics import Locate, in_file_order, nowhere, problems_of
from autotune.spec.expressions import TIMES, ExpressionError
from autotune.spec.model import Real, Whole
from autotune.spec.nearest import offer
from autotune.spec.resources import shipped
from autotune.spec.yaml_source import Document, named, read_yaml, scalar

Path_ = tuple[str | int, ...]


class _KnobEntry(BaseModel):
    """A knob as written."""

    model_config = ConfigDict(extra="forbid")

    type: Kind | None = None
    values: list[Any] | None = None
    range: Annotated[list[Whole | Real], Field(min_length=2, max_length=2)] | None = None
    log: StrictBool = False
    step: Whole | Real | str | None = None
    when: str | StrictBool | None = None
    lossy: StrictBool = False
    versions: str | None = None
    why: str = ""
    env: str | None = None
    flag: str | None = None
    name: str | None = None


class _FirstEntry(BaseModel):
    """A setting to be tried first, as written."""

    model_config = ConfigDict(extra="forbid")

    params: Annotated[dict[str, Any], Field(min_length=1)]
    why: str = ""
    when: str | StrictBool | None = None
    source: str | None = None


class _SpaceEntry(BaseModel):
    """A search space as written."""

    model_config = ConfigDict(extra="forbid")

    engine: Literal["vllm", "sglang", "simulated", "simulated-sglang", "generic"] | None = None
    description: str = ""
    knobs: Annotated[dict[str, Any], Field(min_length=1)]
    rules: list[Any] = Field(default_factory=list)
    first: list[Any] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceReading:
    """What could be read of a space (None: nothing), and all that is wrong with it."""

    space: SearchSpace | None
    problems: tuple[Problem, ...]
    where: str


def read_space(
    source: str | Path | Mapping[str, Json],
    *,
    locate: Locate = nowhere,
    path: Sequence[str | int] = (),
    folder: Path | None = None,
) -> SpaceReading:
    """As `load_space`, with the problems as a value and places by `locate`. Raises InputError for a
    file or name that is not there.
    """
    if isinstance(source, Mapping):
        return _read(source, "the space", locate, tuple(path))
    if isinstance(source, str) and not is_space_path(source):
        file, title = shipped("search_spaces", source), f"{source}.yaml"
    else:
        file, title = _find(Path(source), folder), str(source)
    document = read_yaml(file, title)
    if document.data is None:
        return SpaceReading(space=None, problems=document.problems, where=title)
    if isinstance(document.data, Mapping) and "engines" in document.data:
        return _read_engines(document, file)
    reading = _read(document.data, file.stem, document.place, ())
    problems = in_file_order([*document.problems, *reading.problems])
    return replace(reading, problems=problems, where=title)


class _EnginesEntry(BaseModel):
    """A space across engines as written: kind -> a space's name, path or content."""

    model_config = ConfigDict(extra="forbid")

    engines: Annotated[
        dict[
            Literal["vllm", "sglang", "simulated", "simulated-sglang", "generic"],
            str | dict[str, Any],
        ],
        Field(min_length=1),
    ]
    description: str = ""


def _read_engines(document: Document, file: Path) -> SpaceReading:
    data, title = document.data, document.file
    try:
        entry = _EnginesEntry.model_validate(data)
    except ValidationError as error:
        problems = problems_of(error, data, _EnginesEntry, document.place)
        return SpaceReading(space=None, problems=tuple(problems), where=title)
    parts: list[EnginePart] = []
    found = list(document.problems)
    for kind, source in entry.engines.items():
        place = document.place(("engines", kind), label="of this engine")
        try:
            reading = read_space(
                source, locate=document.place, path=("engines", kind), folder=file.parent
            )
        except InputError as error:
            found.append(Problem(message=error.message, place=place))
            continue
        found += reading.problems
        if reading.space is not None:
            parts.append(EnginePart(kind=kind, space=reading.space))
    space = across(file.stem, parts) if parts and not found else None
    return SpaceReading(space=space, problems=in_file_order(found), where=title)


def _find(file: Path, folder: Path | None) -> Path:
    beside = (folder or Path()) / file
    return beside if beside.exists() else file


def _read(data: Mapping[str, Json], name: str, locate: Locate, prefix: Path_) -> SpaceReading:
    reader = _SpaceReader(locate, prefix)
    space = reader.space(data, name)
    return SpaceReading(space=space, problems=in_file_order(reader.problems), where=name)


class _SpaceReader:
    """Builds one space and collects what is wrong with it."""

    def __init__(self, locate: Locate, prefix: Path_) -> None:
        self.problems: list[Problem] = []
        self._locate = locate
        self._prefix = prefix

    def space(self, data: Mapping[str, Json], name: str) -> SearchSpace:
        bare = not _SpaceEntry.model_fields.keys() & data.keys()
        under: Path_ = () if bare else ("knobs",)
        entry = self._validated(_SpaceEntry, {"knobs": dict(data)} if bare else dict(data), ())
        raw_knobs = data if bare else data.get("knobs")
        generic = data.get("engine") == "generic"
        built: dict[str, Knob] = {}
        origin: dict[str, Path_] = {}
        for key, value in raw_knobs.items() if isinstance(raw_knobs, Mapping) else ():
            knob = self._knob(key, value, (*under, key), plain=generic)
            if knob is not None and knob.name in built:
                first = origin[knob.name][-1]
                self._complain((*under, key), f"the same flag as `{first}`", key=True)
            elif knob is not None:
                built[knob.name], origin[knob.name] = knob, (*under, key)
        raw_rules = data.get("rules")
        rules = [
            (self._condition(text, ("rules", index)), ("rules", index))
            for index, text in enumerate(raw_rules if isinstance(raw_rules, list) else ())
        ]
        conditions: list[tuple[Condition, Path_]] = [
            (knob.when, (*origin[knob.name], "when")) for knob in built.values() if knob.when
        ]
        conditions += [(rule, path) for rule, path in rules if rule is not None]
        raw_first = data.get("first")
        entries: list[First] = []
        for index, value in enumerate(raw_first if isinstance(raw_first, list) else ()):
            entry_path: Path_ = ("first", index)
            found = self._first(value, entry_path, built)
            entries += [found] if found is not None else []
            if found is not None and found.when is not None:
                conditions.append((found.when, (*entry_path, "when")))
        for condition, path in conditions:
            for fault in check_names(condition, built):
                self._complain(path, fault.message, offset=fault.offset, length=fault.length)
        return SearchSpace(
            name=name,
            knobs=tuple(built.values()),
            rules=tuple(rule for rule, _ in rules if rule is not None),
            engine=None if entry is None else entry.engine,
            first=tuple(entries),
        )

    def _first(self, value: Json, path: Path_, knobs: Mapping[str, Knob]) -> First | None:
        entry = self._validated(_FirstEntry, value, path)
        if entry is None:
            return None
        before = len(self.problems)
        when = None if entry.when is None else self._condition(entry.when, (*path, "when"))
        params: dict[str, Json] = {}
        for written, setting in entry.params.items():
            at = (*path, "params", written)
            knob = knobs.get(written) or knobs.get(flag_name(written))
            if knob is None:
                self._complain(at, f"unknown knob{offer(written, knobs)}", key=True)
                continue
            try:
                params[knob.name] = knob.coerced(setting)
            except ValueError as error:
                self._complain(at, str(error))
                continue
            if params[knob.name] not in knob.grid():
                values = ", ".join(map(str, knob.grid()))
                self._complain(at, f"not among the values of the knob: {values}")
        if len(self.problems) > before:
            return None
        return First(params=params, why=entry.why, when=when, source=entry.source)

    def _knob(self, key: str, value: Json, path: Path_, *, plain: bool) -> Knob | None:
        shorthand = isinstance(value, list)
        if not isinstance(value, list | dict):
            label = "expected a list of values or a mapping; a fixed value belongs to engine.args"
            self._complain(path, label)
            return None
        entry = self._validated(_KnobEntry, {"values": value} if shorthand else value, path)
        if entry is None:
            return None
        name = entry.name or key
        if entry.env is None and not plain:
            name = flag_name(name)
        before = len(self.problems)
        if name == ENGINE:
            label = "the choice among engines; for a flag of that name: another name, and `flag`"
            self._complain(path, label, key=True)
        if name == MODEL and not entry.lossy:
            label = "another checkpoint answers otherwise; it needs `lossy: true`"
            self._complain(path, label, key=True)
        kind = entry.type or _kind_of(entry)
        if entry.type is None and _is_yes_no(entry.values):
            self._complain(path if shorthand else (*path, "values"), _YES_NO)
        when = None if entry.when is None else self._condition(entry.when, (*path, "when"))
        step, multiply = self._step(entry.step, (*path, "step"))
        try:
            knob = Knob(
                name=name,
                kind=kind,
                values=_values_of(entry, kind),
                low=entry.range[0] if entry.range else None,
                high=entry.range[1] if entry.range else None,
                log=entry.log,
                step=step,
                multiply=multiply,
                when=when,
                lossy=entry.lossy,
                versions=entry.versions,
                why=entry.why,
                env=entry.env,
                flag=entry.flag.lstrip("-") if entry.flag else None,
            )
        except KnobError as error:
            at: Path_ = path if shorthand or error.key == "type" else (*path, error.key)
            at = at if error.index is None else (*at, error.index)
            self._complain(at, error.message, key=error.index is None and at == path)
            return None
        return knob if len(self.problems) == before else None

    def _step(self, step: int | float | str | None, path: Path_) -> tuple[int | float | None, bool]:
        if not isinstance(step, str):
            return step, False
        try:
            factor = scalar(step[1:]) if step[:1] in TIMES else None
        except ValueError:
            factor = None
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            self._complain(path, "expected a number, or a factor such as x2")
            return None, False
        return factor, True

    def _condition(self, text: Json, path: Path_) -> Condition | None:
        try:
            return parse_condition(text)
        except ExpressionError as error:
            self._complain(path, error.message, offset=error.offset, length=error.length)
        except ValueError as error:
            self._complain(path, str(error))
        return None

    def _validated(self, model: Any, data: Json, path: Path_) -> Any:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            self.problems += problems_of(error, data, model, self._locate, (*self._prefix, *path))
            return None

    def _complain(self, path: Path_, label: str, *, key: bool = False, **span: int) -> None:
        full = (*self._prefix, *path)
        place = self._locate(full, key=key, label=label, **span)
        self.problems.append(Problem(message=f"{named(full)}{label}", place=place))


_YES_NO = "yes and no are texts; a switch is {type: switch}, or [on, off]"


def _kind_of(entry: _KnobEntry) -> Kind:
    """The kind of a knob that does not say it: by its values."""
    if _is_switch(entry.values):
        return "switch"
    values: Sequence[Any] = entry.range or [
        value for value in entry.values or () if value is not None
    ]
    if values and all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return "int"
    if values and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return "float"
    return "choice"


def _values_of(entry: _KnobEntry, kind: Kind) -> tuple[Json, ...] | None:
    if entry.values is None or (kind == "switch" and entry.type is None):
        return None
    return tuple(entry.values)


def _is_switch(values: Sequence[Json] | None) -> bool:
    if values is None or len(values) != 2:
        return False
    return {switch_value(value) for value in values} == {True, False}


def _is_yes_no(values: Sequence[Json] | None) -> bool:
    return bool(values) and all(value in ("yes", "no") for value in values or ())
