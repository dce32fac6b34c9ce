"""What the parsers of engine versions accept: tables made from their own source, and a check.

A table holds every flag of one version with its spellings, kind of value, only values and, for
JSON that becomes a configuration class, the keys. `flag_update` makes them; nothing here runs an
engine. `flag_table("vllm", "0.33.0").check(words)` says what that parser would refuse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal

from autotune.engines.help_text import EngineHelp, HelpFlag
from autotune.engines.versions import written_numbers
from autotune.spec.nearest import nearest

ValueType = Literal["switch", "int", "float", "size", "size-auto", "si-size", "json", "str"]
"""`size`: 8192, 8k (8,000), 8K (8,192); `size-auto`: that or `auto`; `si-size`: 8k or 8Ki."""

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_LEVEL = re.compile(r"-O=?([0-3])")
_SIZE = re.compile(r"\d+[kKmMgGtT]?|\d+\.\d+[kmgt]")
_SI_SIZE = re.compile(r"-?\d+|\d+(?:\.\d+)?[kMGT]|\d+[KMGT]i")
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFlag:
    """One flag. `name`: its first long spelling without dashes. `also`: further spellings that mean
    the same, `off`: those that switch it off, both with their dashes. `choices`: the only values of
    the parser; `known`: those of the configuration behind it (upper and lower case alike). `many`:
    `+`, `*` or `?` values as argparse writes it. `none`: the word None is a value too. `keys`: of a
    JSON value, each with its only values or (). `refused`: known to the parser only to refuse it.
    """

    name: str
    type: ValueType
    also: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    many: str | None = None
    none: bool = False
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default: bool | int | float | str | None = None
    refused: str | None = None

    @property
    def on(self) -> tuple[str, ...]:
        """Every spelling that gives it a value, or switches it on."""
        dashes = "--" if len(self.name) > 1 else "-"
        return (f"{dashes}{self.name}", *self.also)

    @property
    def several(self) -> bool:
        """Whether it takes several words."""
        return self.many in ("+", "*")

    def problem(self, word: str) -> str | None:
        """Why it cannot have this value, as a phrase; None if it can."""
        if self.none and word in ("None", ""):
            return None
        wrong = _TYPES[self.type](word)
        if wrong is not None:
            return f"takes {wrong}, not {_short(word)}"
        if self.choices and word not in self.choices:
            return _not_one_of(word, self.choices)
        if self.known and word.lower() not in {value.lower() for value in self.known}:
            return _not_one_of(word, self.known)
        return self._json_problem(word) if self.type == "json" and self.keys else None

    def key_problem(self, key: str, value: object = None) -> str | None:
        """Why its JSON cannot hold this key, or the key this value (None: any); None if it can."""
        if not self.keys:
            return None
        if key not in self.keys:
            near = nearest(key, self.keys)
            return f"has no key `{key}`" + (f"; nearest: {', '.join(near)}" if near else "")
        only = self.keys[key]
        if not only or value is None or isinstance(value, dict | list) or str(value) in only:
            return None
        return f"key `{key}` {_not_one_of(str(value), only)}"

    def _json_problem(self, word: str) -> str | None:
        value = json.loads(word)
        pairs = value.items() if isinstance(value, dict) else ()
        return next((p for k, v in pairs if (p := self.key_problem(k, v)) is not None), None)


@dataclass(frozen=True, kw_only=True)
class FlagTable:
    """All flags of one version. `positional`: one word without a flag is taken, the model.
    `flexible`: the parser takes underscores for dashes, JSON keys after a dot and `-O2`.
    `versions`: two where a version between them is asked about, then the flags of both.
    """

    engine: str
    versions: tuple[str, ...]
    flags: Mapping[str, TableFlag]
    positional: bool = False
    flexible: bool = False

    @property
    def where(self) -> str:
        """What it was read from, in words."""
        return f"the flag table of {self.engine} {' and '.join(self.versions)}"

    @cached_property
    def spellings(self) -> Mapping[str, TableFlag]:
        """Every spelling with its dashes -> the flag."""
        return {word: flag for flag in self.flags.values() for word in (*flag.on, *flag.off)}

    def find(self, name: str) -> TableFlag | None:
        """The flag with this spelling, with or without its dashes, as this parser reads it."""
        dashed = name if name.startswith("-") else f"--{name}"
        short = f"-{name}"
        if self.flexible and dashed.startswith("--"):
            dashed = dashed.replace("_", "-")
        return self.spellings.get(dashed) or self.spellings.get(short)

    def check(self, words: Sequence[str]) -> tuple[str, ...]:
        """What this parser refuses in the words that follow the program (`vllm serve`), as
        sentences in their order; () if it takes all of them.
        """
        problems: list[str] = []
        bare = 0
        for group in _groups(words):
            extra: Sequence[str] = group
            if group[0].startswith("-"):
                found, extra = self._group(group[0], group[1:])
                problems += found
            bare += len(extra)
            if extra and bare > (1 if self.positional else 0):
                problems.append(f"`{extra[-1]}` belongs to no flag")
        return tuple(problems)

    def help(self) -> EngineHelp:
        """The table in the form of a help text that was read."""
        return EngineHelp(
            flags=tuple(
                HelpFlag(
                    name=flag.name,
                    spellings=tuple(word.lstrip("-") for word in (*flag.on, *flag.off)),
                    kind=("switch" if flag.off else "bare") if flag.type == "switch" else "value",
                    several=flag.several,
                    choices=flag.choices or flag.known,
                )
                for flag in self.flags.values()
                if flag.refused is None
            )
        )

    def _group(self, head: str, rest: Sequence[str]) -> tuple[list[str], Sequence[str]]:
        """A flag with the words behind it: what is wrong, and the words that it does not take."""
        if self.flexible and (level := _LEVEL.fullmatch(head)):
            head = f"--optimization-level={level[1]}"
        elif self.flexible and head == "-O" and rest and _LEVEL.fullmatch(f"-O{rest[0]}"):
            head = "--optimization-level"
        name, equals, given = head.partition("=")
        key = ""
        if self.flexible:
            name, _, key = name.partition(".")
        flag, trouble = self._resolve(name)
        if flag is None:
            return [trouble], rest if len(rest) > 1 else ()
        if flag.refused is not None:
            return [f"`{name}` is refused: {flag.refused}"], rest
        if flag.type == "switch":
            return ([f"`{name}` takes no value"] if equals else []), rest
        values, extra = _values(flag, given if equals else None, rest)
        if not values and flag.many not in ("?", "*"):
            return [f"`{name}` needs a value"], extra
        if key:
            wrong = [flag.key_problem(key.partition(".")[0].removesuffix("+"))]
        else:
            wrong = [flag.problem(value) for value in values]
        return [f"`{name}` {text}" for text in wrong if text is not None], extra

    def _resolve(self, name: str) -> tuple[TableFlag | None, str]:
        """The flag of a spelling, or of the only one that begins like it, as argparse does."""
        written = name.replace("_", "-") if self.flexible and name.startswith("--") else name
        flag = self.spellings.get(written)
        if flag is not None:
            return flag, ""
        begun = [word for word in self.spellings if word.startswith(written)]
        if name.startswith("--") and len(begun) == 1:
            return self.spellings[begun[0]], ""
        if name.startswith("--") and len(begun) > 1:
            return None, f"`{name}` is no flag and could mean {', '.join(begun[:_SHOWN])}"
        near = nearest(written.lstrip("-"), [flag.name for flag in self.flags.values()])
        closest = f"; nearest: {', '.join(near)}" if near else ""
        return None, f"`{name}` is no flag of {self.engine} {' or '.join(self.versions)}{closest}"


def flag_table(engine: str, version: str | None) -> FlagTable | None:
    """The table of a version (`0.26.0`, `v0.26.1+cpu`; None: the newest there is). That of 0.26.0
    holds for all of 0.26.

    A version between two tables gets the flags of both, so that nothing is refused that it may
    have. None for a version before the first or after the last table: nothing is known of it.
    """
    there = table_versions(engine)
    if not there:
        return None
    asked = written_numbers(version) if version else written_numbers(there[-1])
    if not asked:
        return None
    numbers = [_minor(written_numbers(one)) for one in there]
    for one, number in zip(there, numbers, strict=True):
        if asked[: len(number)] == number:
            return read_table(engine, one)
    older = [one for one, number in zip(there, numbers, strict=True) if number < asked]
    newer = [one for one, number in zip(there, numbers, strict=True) if number > asked]
    if not older or not newer:
        return None
    return _both(read_table(engine, older[-1]), read_table(engine, newer[0]))


def _minor(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers[:-1] if len(numbers) > 2 and numbers[-1] == 0 else numbers


@cache
def table_versions(engine: str) -> tuple[str, ...]:
    """The versions of which there are tables, oldest first."""
    folder = files("autotune.engines") / "facts" / "flags"
    names = [entry.name for entry in folder.iterdir() if entry.name.startswith(f"{engine}-")]
    versions = (name.removeprefix(f"{engine}-").removesuffix(".json") for name in names)
    return tuple(sorted(versions, key=written_numbers))


@cache
def read_table(engine: str, version: str) -> FlagTable:
    """The table of exactly this version. Raises FileNotFoundError."""
    path = files("autotune.engines") / "facts" / "flags" / f"{engine}-{version}.json"
    return table_from_json(json.loads(path.read_text(encoding="utf-8")))


def table_from_json(data: Mapping[str, Any]) -> FlagTable:
    """A table from the content of its file."""
    return FlagTable(
        engine=data["engine"],
        versions=(data["version"],),
        positional=data.get("positional", False),
        flexible=data.get("flexible", False),
        flags={name: _flag(name, entry) for name, entry in data["flags"].items()},
    )


def _flag(name: str, entry: Mapping[str, Any]) -> TableFlag:
    values = dict(entry)
    for key in ("also", "off", "choices", "known"):
        values[key] = tuple(values.get(key, ()))
    values["keys"] = {key: tuple(only or ()) for key, only in values.get("keys", {}).items()}
    return TableFlag(name=name, **values)


def _both(old: FlagTable, new: FlagTable) -> FlagTable:
    flags = {**old.flags, **new.flags}
    for name in old.flags.keys() & new.flags.keys():
        flags[name] = _wider(old.flags[name], new.flags[name])
    return replace(new, versions=(*old.versions, *new.versions), flags=flags)


def _wider(old: TableFlag, new: TableFlag) -> TableFlag:
    """What either takes; an empty list of values stands for any."""

    def either(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*one, *other])) if one and other else ()

    keys = {key: either(old.keys.get(key, ()), new.keys.get(key, ())) for key in old.keys}
    return replace(
        new,
        type=new.type if new.type == old.type or "switch" in (old.type, new.type) else "str",
        also=tuple(dict.fromkeys([*new.also, *old.also])),
        off=tuple(dict.fromkeys([*new.off, *old.off])),
        choices=either(old.choices, new.choices),
        known=either(old.known, new.known),
        none=old.none or new.none,
        many=new.many or old.many,
        keys={**new.keys, **keys} if old.keys and new.keys else {},
        refused=new.refused if old.refused else None,
    )


def _groups(words: Sequence[str]) -> Iterator[list[str]]:
    """Each flag with the words behind it; first the words before any flag."""
    group: list[str] = []
    for word in words:
        starts = word.startswith("-") and len(word) > 1 and not _NEGATIVE.fullmatch(word)
        if starts and group:
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _values(
    flag: TableFlag, given: str | None, rest: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The words that a flag takes of those behind it, and the others."""
    if given is not None:
        return [given], rest
    count = len(rest) if flag.several else 1
    return rest[:count], rest[count:]


def _not_one_of(word: str, only: Sequence[str]) -> str:
    near = nearest(word, only)
    shown = [*only[:_SHOWN], "..."] if len(only) > _SHOWN else only
    closest = f"nearest: {', '.join(near)}" if near else f"it takes {', '.join(shown)}"
    return f"does not take {_short(word)}; {closest}"


def _short(word: str) -> str:
    return word if len(word) <= 60 else word[:59] + "…"


def _number(convert: Callable[[str], object], what: str) -> Callable[[str], str | None]:
    def wrong(word: str) -> str | None:
        try:
            convert(word)
        except ValueError:
            return what
        return None

    return wrong


_WHOLE = _number(int, "a whole number")
_TYPES: Mapping[ValueType, Callable[[str], str | None]] = {
    "switch": lambda word: None,
    "str": lambda word: None,
    "int": _WHOLE,
    "float": _number(float, "a number"),
    "json": _number(json.loads, "JSON"),
    "size": lambda word: None if _SIZE.fullmatch(word) else _WHOLE(word) and "a size such as 8k",
    "size-auto": lambda word: (
        None if word.lower() == "auto" or _SIZE.fullmatch(word) else _WHOLE(word) and "a size"
    ),
    "si-size": lambda word: None if _SI_SIZE.fullmatch(word) else "a size such as 8k or 8Ki",
}
