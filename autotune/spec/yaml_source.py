"""Strict YAML with places: what a user wrote, as data, and where each piece of it stands.

YAML 1.2 on PyYAML's scanner: only true and false are booleans (yes, no, on, off are text), 010 is
ten, 12:30:45 is text; numbers that YAML 1.1 readers take as text (1e3, 1_000), repeated keys and
tags are problems. Problems are collected, so that a file's faults are told all at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.canonical import Json
from autotune.errors import InputError, Place, Problem
from autotune.spec.masking import mask_secrets
from autotune.spec.units import plain_number

_PLAIN = "tag:autotune,2026:plain"
_STR = "tag:yaml.org,2002:str"
_COLLECTIONS = {"tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}
_LINE_END = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?")
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
_GROUPED = re.compile(r"[-+]?[0-9]{1,3}(?:_[0-9]{3})+")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class _PlacingLoader(yaml.SafeLoader):
    """Composes nodes only; marks unquoted scalars so that we resolve them ourselves."""

    yaml_implicit_resolvers: dict[Any, Any] = {None: [(_PLAIN, re.compile(""))]}  # noqa: RUF012


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file: `data` (JSON values), its `text` without byte order mark, `problems` found.

    `data` is what could be read even where there are problems; None for an unreadable file.
    """

    data: Json
    file: str
    text: str
    problems: tuple[Problem, ...] = ()
    root: yaml.Node | None = None

    def place(
        self,
        path: Sequence[str | int],
        *,
        key: bool = False,
        label: str = "",
        offset: int = 0,
        length: int | None = None,
    ) -> Place:
        """Where the value (or with `key` its key) at `path` stands.

        `offset` and `length` narrow the place to characters within a one-line text value. A path
        that is not in the file gives the place of its deepest part that is.
        """
        key_node, node, found = self._walk(path)
        if node is None:
            return self.at(0, 0, 1, label)
        block = isinstance(node, yaml.CollectionNode) and not node.flow_style
        empty = node.start_mark.index == node.end_mark.index
        if key_node is not None and (key or block or empty or not found):
            node = key_node
        line, column = node.start_mark.line, node.start_mark.column
        end = node.end_mark.column if node.end_mark.line == line else len(self._line(line))
        if isinstance(node, yaml.ScalarNode) and found and not key and (offset or length):
            shift = 1 if node.style in ("'", '"') else 0
            first = column + shift
            if self._line(line)[first : first + len(node.value)] == node.value:
                rest = len(node.value) - offset
                return self.at(line, first + offset, rest if length is None else length, label)
        return self.at(line, column, end - column, label)

    def at(self, line: int, column: int, length: int = 1, label: str = "") -> Place:
        """A place from zero-based line and column, kept inside the text."""
        text = self._line(line)
        column = min(column, len(text))
        length = max(1, min(length, len(text) - column))
        shown = mask_secrets(text)
        return Place(
            file=self.file, line=line + 1, column=column + 1, length=length, text=shown, label=label
        )

    def _line(self, number: int) -> str:
        lines = _LINE_END.split(self.text)
        return lines[number] if number < len(lines) else ""

    def _walk(self, path: Sequence[str | int]) -> tuple[yaml.Node | None, yaml.Node | None, bool]:
        """The key and value nodes at `path`, or at its deepest part, and whether all was found."""
        key_node, node = None, self.root
        for step in path:
            pair = _child(node, step)
            if pair is None:
                return key_node, node, False
            key_node, node = pair
        return key_node, node, True


def _child(node: yaml.Node | None, step: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return None, node.value[step]
    return None


def read_yaml(path: Path, file: str | None = None) -> Document:
    """Read and parse a file, called `file` in places. Raises InputError if it cannot be read."""
    name = file or str(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(message=f"no file {name}", so="nothing was started") from None
    except OSError as error:
        raise InputError(
            message=f"{name} cannot be read", seen=error.strerror, so="nothing was started"
        ) from None
    return parse_yaml(raw, name)


def parse_yaml(source: str | bytes, file: str) -> Document:
    """Parse a text (bytes are UTF-8). Never raises for what is in it: see `Document.problems`."""
    try:
        text = source.decode() if isinstance(source, bytes) else source
    except UnicodeDecodeError as error:
        return _undecodable(error, file)
    text = text.removeprefix("\ufeff")
    empty = Document(data=None, file=file, text=text)
    try:
        root = yaml.compose(text, Loader=_PlacingLoader)
    except yaml.MarkedYAMLError as error:
        return _with_problem(empty, *_syntax(error))
    except yaml.reader.ReaderError as error:
        before = _LINE_END.split(text[: error.position])
        message = f"a character that is not text (U+{ord(text[error.position]):04X})"
        return _with_problem(empty, message, len(before) - 1, len(before[-1]))
    except RecursionError:
        return _with_problem(empty, "nested too deeply", 0, 0)
    if root is None or not isinstance(root, yaml.MappingNode):
        kind = "list" if isinstance(root, yaml.SequenceNode) else "text"
        found = "empty" if root is None or not root.value else f"a {kind}, not a mapping"
        return _with_problem(empty, f"{found}; expected `key: value` lines", 0, 0)
    document = Document(data=None, file=file, text=text, root=root)
    reader = _Reader(document)
    data = reader.build(root, ())
    return Document(data=data, file=file, text=text, root=root, problems=tuple(reader.problems))


def scalar(text: str) -> Json:
    """One value as it would be read from a file, for `NAME=VALUE` flags. Raises ValueError."""
    value, complaint = _resolve(text)
    if complaint:
        raise ValueError(complaint)
    return value


def _with_problem(document: Document, message: str, line: int, column: int) -> Document:
    problem = Problem(message=message, place=document.at(line, column, label=message))
    return Document(data=None, file=document.file, text=document.text, problems=(problem,))


def _undecodable(error: UnicodeDecodeError, file: str) -> Document:
    raw = error.object
    text = raw.decode(errors="replace").removeprefix("\ufeff")
    before = _LINE_END.split(raw[: error.start].decode(errors="replace").removeprefix("\ufeff"))
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    message = f"{'UTF-16' if wide else 'not UTF-8'} (byte 0x{raw[error.start]:02X}); save as UTF-8"
    document = Document(data=None, file=file, text="" if wide else text)
    return _with_problem(document, message, len(before) - 1, len(before[-1]))


_REWORDED = (
    ("found character '\\t'", "a tab; YAML indents with spaces"),
    ("mapping values are not allowed", "a second `:` in one value; put the text in quotes"),
    ("cannot start any token", "a value that starts with a special character; put it in quotes"),
    ("but found another document", "a second document; keep one"),
    ("found duplicate anchor", "an anchor that is defined twice"),
    ("found undefined alias", "an alias without its anchor"),
    ("could not find expected ':'", "a line without `:`"),
    ("expected <block end>, but found", "indentation that fits no line above"),
    ("expected ',' or ']'", "a list that is not closed by ]"),
    ("expected ',' or '}'", "a mapping that is not closed by }"),
    ("found unexpected end of stream", "a quote that is not closed"),
)


def _syntax(error: yaml.MarkedYAMLError) -> tuple[str, int, int]:
    """Message, line and column (from 0) of a text that is no YAML at all."""
    problem = error.problem or error.context or "not YAML"
    mark = error.problem_mark or error.context_mark
    if error.context_mark and ("end of stream" in problem or "<stream end>" in problem):
        mark = error.context_mark
    message = next(
        (ours for theirs, ours in _REWORDED if theirs in problem), f"not YAML: {problem}"
    )
    return message, mark.line if mark else 0, mark.column if mark else 0


class _Reader:
    """Builds the data of one document from its nodes and collects problems on the way."""

    def __init__(self, document: Document) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self._open: set[int] = set()
        self._built: dict[int, Json] = {}

    def build(self, node: yaml.Node, path: tuple[str | int, ...]) -> Json:
        if id(node) in self._built:
            return self._built[id(node)]
        if id(node) in self._open:
            self._complain(node, path, "an alias to what contains it")
            return None
        self._open.add(id(node))
        value = self._build(node, path)
        self._open.discard(id(node))
        self._built[id(node)] = value
        return value

    def _build(self, node: yaml.Node, path: tuple[str | int, ...]) -> Json:
        if node.tag not in {_PLAIN, _STR, *_COLLECTIONS}:
            self._complain(
                node, path, f"a tag ({node.tag.rpartition(':')[2]}); write the plain value"
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        if node.tag == _STR:
            return node.value
        value, complaint = _resolve(node.value)
        if complaint:
            self._complain(node, path, complaint)
        return value

    def _mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> dict[str, Json]:
        result: dict[str, Json] = {}
        first: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._complain(key, path, "a key that is not text")
                continue
            if key.value in first:
                again = f"repeated key; first on line {first[key.value]}"
                self._complain(key, (*path, key.value), again)
                continue
            first[key.value] = key.start_mark.line + 1
            result[key.value] = self.build(value, (*path, key.value))
        return result

    def _complain(self, node: yaml.Node, path: tuple[str | int, ...], label: str) -> None:
        mark, end = node.start_mark, node.end_mark
        length = end.column - mark.column if end.line == mark.line else 10**6
        place = self._document.at(mark.line, mark.column, length, label=label)
        self.problems.append(Problem(message=f"{named(path)}{label}", place=place))


def dotted(path: Sequence[str | int]) -> str:
    """`engine.args.port`, `constraints[1]`: a path as users read it; items count from 1."""
    text = ""
    for step in path:
        text += f"[{step + 1}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def named(path: Sequence[str | int]) -> str:
    """The path in backticks with a colon, to stand before what is wrong with it."""
    return f"`{dotted(path)}`: " if path else ""


def _resolve(text: str) -> tuple[Json, str | None]:
    """The value of an unquoted scalar, and what is wrong with it, if anything."""
    if text in _CONSTANTS:
        return _CONSTANTS[text], None
    if _INT.fullmatch(text):
        if len(text) > 300:
            return text, "a number that is too large"
        base = {"0x": 16, "0o": 8}.get(text[:2], 10)
        return int(text[2:] if base != 10 else text, base), None
    if _FLOAT.fullmatch(text) or _EXPONENT.fullmatch(text):
        value = float(text)
        if not math.isfinite(value):
            return text, "a number that is too large"
        if _FLOAT.fullmatch(text):
            return value, None
        plain = _plain(value)
        return plain, (
            f"text, not a number: YAML 1.1 reads {text} as text; write {plain_number(plain)}"
        )
    if _GROUPED.fullmatch(text):
        number = int(text)
        return number, f"text, not a number: YAML 1.2 reads {text} as text; write {number}"
    if _NOT_FINITE.fullmatch(text):
        return text, "not a finite number"
    return text, None


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value
