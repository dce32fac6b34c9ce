"""The flags of an engine over its versions: its parsers' tables, and what only people know.

The tables say which versions have a flag and what it takes; `facts/*.yaml` adds exact versions
between two tables, what replaced a flag that is gone, and flags that no version ever had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autotune.engines.flag_table import FlagTable, TableFlag, read_table, table_versions
from autotune.engines.versions import applies, written_numbers

Kind = Literal["switch", "bare", "int", "size", "float", "str", "json", "ints", "strs"]
"""`switch`: `--x` and its negative; `bare`: `--x` only; `size`: a whole number or text such as 8k;
`ints`/`strs`: several words after one flag; `json`: one word of JSON."""

NEVER = "0"
"""`until` of a flag that no version of the engine ever had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One command-line flag: its name without dashes, its kind, and the versions that have it.

    `lacking`: the newest version before `since` that was read and lacks it; versions in between are
    given the benefit. None: every version before `since` lacks it.
    """

    name: str
    kind: Kind
    since: str | None = None
    lacking: str | None = None

    @property
    def negative(self) -> str | None:
        """The word that switches it off; None where there is none."""
        return f"--no-{self.name}" if self.kind == "switch" else None

    @property
    def several(self) -> bool:
        """Whether it takes several words."""
        return self.kind in ("ints", "strs")

    def applies(self, version: str | None) -> bool:
        """Whether `version` has this flag, as far as is known."""
        if applies(version, self.since):
            return True
        # Of 0.26, all of 0.26.x lacks it
        return self.lacking is not None and not applies(version, until=self.lacking)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A flag that is gone: last version that had it (`NEVER`: none), first one known to lack it,
    what to use now ("": nothing is known), and the first version that takes it once more, if any.
    """

    name: str
    until: str
    gone_since: str
    instead: str
    again: str | None = None

    def gone(self, version: str | None) -> bool:
        """Whether `version` is known to lack it; an unknown version only if no version had it."""
        if self.until == NEVER:
            return True
        if version is None or (self.again is not None and applies(version, self.again)):
            return False
        return written_numbers(version) >= written_numbers(self.gone_since)

    def sentence(self, engine: str) -> str:
        """What became of it: "`x` is gone from vllm since 0.18; instead: y"."""
        what = f"gone from {engine} since {self.gone_since}"
        if self.until == NEVER:
            what = f"not a flag of {engine}"
        return f"`{self.name}` is {what}" + (f"; instead: {self.instead}" if self.instead else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFlags:
    """All flags of an engine, those that are gone, and other spellings -> the flag's own name."""

    flags: Mapping[str, Flag]
    removed: Mapping[str, Removed]
    aliases: Mapping[str, str]


def known_flags(engine: str, data: Mapping[str, Any]) -> KnownFlags:
    """What the tables and the facts file of an engine (`data`) say together."""
    tables = [read_table(engine, version) for version in table_versions(engine)]
    told = {name: version for version, names in data.get("since", {}).items() for name in names}
    apart = {*data.get("managed", {}), *data.get("secrets", {})}
    kinds: dict[str, Kind] = {}
    owners: dict[str, str] = {}
    # Newest first: an older version may have given the same flag another first spelling
    for table in reversed(tables):
        for flag in table.flags.values():
            name = next((owners[word] for word in flag.on if word in owners), flag.name)
            kinds.setdefault(name, _kind(flag))
            for word in flag.on:
                owners.setdefault(word, name)
    aliases = {word.lstrip("-"): name for word, name in owners.items()}
    kinds |= {name: kind for kind, names in data.get("kinds", {}).items() for name in names}
    flags = {}
    for name, kind in kinds.items():
        if name not in apart:
            since, lacking = _since(name, tables)
            if name in told:
                since, lacking = told[name], None
            flags[name] = Flag(name=name, kind=kind, since=since, lacking=lacking)
    removed = {name: gone for name in kinds if (gone := _gone(name, tables)) is not None}
    for name, entry in data.get("removed", {}).items():
        removed[name] = _removed(name, entry, removed.get(name))
    for name, instead in data.get("elsewhere", {}).items():
        removed[name] = Removed(name=name, until=NEVER, gone_since=NEVER, instead=instead)
    known = {name: flag for name, flag in aliases.items() if name not in kinds}
    return KnownFlags(flags=flags, removed=removed, aliases={**known, **data.get("aliases", {})})


def _kind(flag: TableFlag) -> Kind:
    if flag.type == "switch":
        return "switch" if flag.off else "bare"
    if flag.several:
        return "ints" if flag.type == "int" else "strs"
    if flag.type == "size-auto" or flag.type == "si-size":
        return "size"
    return flag.type


def _has(table: FlagTable, name: str) -> bool:
    flag = table.find(name)
    return flag is not None and flag.refused is None


def _since(name: str, tables: list[FlagTable]) -> tuple[str | None, str | None]:
    """(first version read that has it, the one before that lacks it); (None, None): all have it."""
    first = next((at for at, table in enumerate(tables) if _has(table, name)), 0)
    return (_minor(tables[first]), _minor(tables[first - 1])) if first > 0 else (None, None)


def _gone(name: str, tables: list[FlagTable]) -> Removed | None:
    """That the newest versions lack a flag that older ones had; None if it is there."""
    having = [at for at, table in enumerate(tables) if _has(table, name)]
    if having and having[-1] == len(tables) - 1:
        return None
    words = [flag.refused for t in tables if (flag := t.find(name)) and flag.refused]
    if not having:
        first = next(at for at, table in enumerate(tables) if table.find(name))
        until, since = f"before {_minor(tables[first])}", _minor(tables[first])
    else:
        until, since = _minor(tables[having[-1]]), _minor(tables[having[-1] + 1])
    return Removed(name=name, until=until, gone_since=since, instead=words[-1] if words else "")


def _removed(name: str, entry: Mapping[str, str], read: Removed | None) -> Removed:
    """What people know of a flag that is gone, over what the tables say."""
    until = entry.get("until") or (read.until if read is not None else NEVER)
    since = entry.get("from") or (read.gone_since if read is not None else None)
    if "until" in entry and "from" not in entry:
        *head, last = written_numbers(until)
        since = ".".join(str(part) for part in (*head, last + 1))
    return Removed(
        name=name,
        until=until,
        gone_since=since or until,
        instead=entry.get("instead", ""),
        again=entry.get("again"),
    )


def _minor(table: FlagTable) -> str:
    """The version without a trailing zero, so that 0.12 stands for all of 0.12."""
    version = table.versions[0]
    return version.removesuffix(".0") if version.count(".") > 1 else version
