"""What a program says of its own flags: its `--help`, read. Pure.

Read are the layouts of argparse (Python 3.9 to 3.14) and of click: an option's line begins with two
spaces and a dash; its explanation follows after two spaces or on deeper lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.canonical import Json

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OPTION = re.compile(r"^ {2}(?=--?[A-Za-z0-9?])")
_GAP = re.compile(r"\s{2,}")
_QUOTED = re.compile(r"\[\s*'.*?\]|\[\s*\".*?\]")
_CHOICES = re.compile(r"\{([^{}]*)\}")
_BARS = re.compile(r"\[([^\[\]|]+(?:\|[^\[\]|]+)+)\]")
_SPELLING = re.compile(r"(?<![\w<.=-])--?[A-Za-z0-9?][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpFlag:
    """One flag. `name` is its first long spelling without dashes, `spellings` all of them (also the
    negative ones), without dashes. `switch`: it has a `--no-` form; `bare`: it takes no value;
    `value`: it takes one or, if `several`, many. `choices`: the only values, () where not shown.
    """

    name: str
    spellings: tuple[str, ...]
    kind: Literal["switch", "bare", "value"]
    several: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHelp:
    """All flags of one program, by every spelling."""

    flags: tuple[HelpFlag, ...]

    def find(self, name: str) -> HelpFlag | None:
        """The flag with this spelling (no dashes in front; `_` and `-` are the same; what follows a
        dot is a key inside its value), or None.
        """
        head = _plain(name.partition(".")[0])
        return next(
            (flag for flag in self.flags if any(_plain(s) == head for s in flag.spellings)), None
        )

    def abbreviated(self, name: str) -> HelpFlag | None:
        """The only flag that begins like this: argparse takes it for that one."""
        head = _plain(name)
        found = {f.name: f for f in self.flags for s in f.spellings if _plain(s).startswith(head)}
        return next(iter(found.values())) if len(found) == 1 else None

    @property
    def names(self) -> list[str]:
        """The flags' names, for offering the nearest one."""
        return [flag.name for flag in self.flags]

    def to_json(self) -> list[Json]:
        return [
            {
                "name": flag.name,
                "spellings": list(flag.spellings),
                "kind": flag.kind,
                "several": flag.several,
                "choices": list(flag.choices),
            }
            for flag in self.flags
        ]

    @classmethod
    def from_json(cls, data: Iterable[Mapping[str, Json]]) -> EngineHelp:
        """The inverse of `to_json`. Raises KeyError or TypeError for anything else."""
        return cls(
            flags=tuple(
                HelpFlag(
                    name=entry["name"],
                    spellings=tuple(entry["spellings"]),
                    kind=entry["kind"],
                    several=entry["several"],
                    choices=tuple(entry["choices"]),
                )
                for entry in data
            )
        )


def parse_help(text: str) -> EngineHelp:
    """The flags that a help text lists, each once; none in a text that is no help."""
    found: dict[str, HelpFlag] = {}
    for line in _COLOUR.sub("", text).splitlines():
        if _OPTION.match(line):
            for flag in _flag(_GAP.split(line.strip(), maxsplit=1)[0]):
                found.setdefault(flag.name, flag)
    return EngineHelp(flags=tuple(found.values()))


def _flag(head: str) -> Iterator[HelpFlag]:
    """The flag of an option's line, its explanation cut off: `--tp-size N, -tp N`."""
    # A list in quotes names well-known values of a flag that takes others too
    plain = _QUOTED.sub(" VALUE ", head)
    listed = _CHOICES.search(plain) or _BARS.search(plain)
    choices = re.split(r"[,|]", listed[1]) if listed else []
    outside = _BARS.sub(" VALUE ", _CHOICES.sub(" VALUE ", plain))
    words = _SPELLING.findall(outside)
    long = [word[2:] for word in words if word.startswith("--")]
    if not long:
        return
    negative = {f"no-{name}" for name in long} & set(long)
    rest = _SPELLING.sub(" ", outside).replace(",", " ").replace("/", " ").split()
    kind: Literal["switch", "bare", "value"] = "value" if rest else "bare"
    yield HelpFlag(
        name=next(name for name in long if name not in negative),
        spellings=tuple(dict.fromkeys([*long, *(w[1:] for w in words if not w.startswith("--"))])),
        kind="switch" if negative and not rest else kind,
        several="..." in outside,
        choices=tuple(choice.strip() for choice in choices),
    )


def _plain(name: str) -> str:
    return name.replace("_", "-")
