"""The tree of a condition. Each term has a value under a mapping name -> value; None is unknown."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.canonical import Json
from autotune.spec.units import plain_number
from autotune.spec.versions import version_key


class Term(Protocol):
    """A node. `str()` gives a text that reads back as the same tree."""

    def value(self, values: Mapping[str, Json]) -> Json:
        """The value, or None where it is unknown."""
        ...

    def names(self) -> Iterator[Name]:
        """The names in it, in the order written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A knob, fixed flag or fact, and where it stands in the text."""

    name: str
    offset: int = 0

    def value(self, values: Mapping[str, Json]) -> Json:
        return values.get(self.name)

    def names(self) -> Iterator[Name]:
        yield self

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A value as such; `written` is its text (0.30 is a version when compared with one)."""

    value_: Json
    written: str = ""

    def value(self, values: Mapping[str, Json]) -> Json:
        return self.value_

    def names(self) -> Iterator[Name]:
        return iter(())

    def __str__(self) -> str:
        if isinstance(self.value_, bool):
            return "true" if self.value_ else "false"
        if isinstance(self.value_, str):
            quote = "'" if '"' in self.value_ else '"'
            return f"{quote}{self.value_}{quote}"
        return self.written or plain_number(self.value_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Or:
    """True if one term is, False if all are false."""

    terms: tuple[Term, ...]

    def value(self, values: Mapping[str, Json]) -> Json:
        known = [truth(term.value(values)) for term in self.terms]
        return True if True in known else None if None in known else False

    def names(self) -> Iterator[Name]:
        return (name for term in self.terms for name in term.names())

    def __str__(self) -> str:
        return f"({' or '.join(map(str, self.terms))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class And:
    """False if one term is, True if all are true."""

    terms: tuple[Term, ...]

    def value(self, values: Mapping[str, Json]) -> Json:
        known = [truth(term.value(values)) for term in self.terms]
        return False if False in known else None if None in known else True

    def names(self) -> Iterator[Name]:
        return (name for term in self.terms for name in term.names())

    def __str__(self) -> str:
        return f"({' and '.join(map(str, self.terms))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Not:
    """The opposite of a yes or no."""

    term: Term

    def value(self, values: Mapping[str, Json]) -> Json:
        known = truth(self.term.value(values))
        return None if known is None else not known

    def names(self) -> Iterator[Name]:
        return self.term.names()

    def __str__(self) -> str:
        return f"(not {self.term})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two values compared: numbers, versions, or equal texts and switches."""

    op: str
    left: Term
    right: Term

    def value(self, values: Mapping[str, Json]) -> Json:
        left, right = self.left.value(values), self.right.value(values)
        left, right = _as_written(self.left, left, right), _as_written(self.right, right, left)
        return _compare(self.op, left, right)

    def names(self) -> Iterator[Name]:
        yield from self.left.names()
        yield from self.right.names()

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Whether a value is among literal ones."""

    term: Term
    values: tuple[Literal, ...]
    inside: bool

    def value(self, values: Mapping[str, Json]) -> Json:
        value = self.term.value(values)
        if value is None:
            return None
        found = any(
            _compare("==", value, _as_written(item, item.value_, value)) for item in self.values
        )
        return found == self.inside

    def names(self) -> Iterator[Name]:
        return self.term.names()

    def __str__(self) -> str:
        word = "in" if self.inside else "not in"
        return f"({self.term} {word} [{', '.join(map(str, self.values))}])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Numbers combined."""

    op: str
    left: Term
    right: Term

    def value(self, values: Mapping[str, Json]) -> Json:
        left, right = self.left.value(values), self.right.value(values)
        if not (_is_number(left) and _is_number(right)):
            return None
        try:
            result = _ARITHMETIC[self.op](left, right)
        except (ZeroDivisionError, OverflowError):
            return None
        return result if math.isfinite(result) else None

    def names(self) -> Iterator[Name]:
        yield from self.left.names()
        yield from self.right.names()

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Negation:
    """A number with its sign turned."""

    term: Term

    def value(self, values: Mapping[str, Json]) -> Json:
        value = self.term.value(values)
        return -value if _is_number(value) else None

    def names(self) -> Iterator[Name]:
        return self.term.names()

    def __str__(self) -> str:
        return f"(- {self.term})"


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}


_SWITCH_WORDS = {"on": True, "off": False}


def truth(value: Json) -> bool | None:
    """Yes or no of a boolean, or of the words on and off (as fixed flags may stand in a study)."""
    if isinstance(value, str):
        return _SWITCH_WORDS.get(value)
    return value if isinstance(value, bool) else None


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_written(term: Term, value: Json, other: Json) -> Json:
    """A number compared with a text counts as text: engine versions are texts."""
    if isinstance(term, Literal) and isinstance(other, str) and _is_number(value):
        return str(term)
    return value


def _compare(op: str, left: Json, right: Json) -> bool | None:
    if _is_number(left) and _is_number(right):
        return _COMPARE[op](left, right)
    if isinstance(left, str) and isinstance(right, str):
        keys = version_key(left), version_key(right)
        if None not in keys and "." in left + right and left[0].isdigit():
            return _COMPARE[op](*keys)
        return _COMPARE[op](left, right) if op in ("==", "!=") else None
    if left is None or right is None:
        return None
    if op not in ("==", "!="):
        return None
    if isinstance(left, bool) != isinstance(right, bool):
        left, right = (value if truth(value) is None else truth(value) for value in (left, right))
    same = isinstance(left, bool) == isinstance(right, bool) and left == right
    return same == (op == "==")
