"""Reading JSON lines and their fields: what every line-wise JSON format needs."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson

from autotune.canonical import Json
from autotune.workload.formats.format import Line
from autotune.workload.trace import Skipped

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A longer line is no workload row."""


_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{},]')


class Row(NamedTuple):
    """A line that is a JSON object."""

    line: int
    data: Mapping[str, Json]


class Unusable(Exception):
    """A row that cannot be used; the argument is the snake_case reason."""

    @property
    def reason(self) -> str:
        return str(self.args[0])


def json_rows(lines: Iterable[Line], *, arrays: bool = False) -> Iterator[Row | Skipped]:
    """Each non-blank line as an object, or why it is none. `arrays`: a file that begins with `[` is
    one list of objects, however it is broken into lines.

    Reasons: `not_utf8`, `not_json` (a cut line, NaN), `not_an_object`, `line_too_long`.
    """
    for number, data in _elements(lines) if arrays else lines:
        if not data.strip():
            continue
        if len(data) > MAX_LINE_BYTES:
            yield Skipped(line=number, reason="line_too_long")
            continue
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            yield Skipped(line=number, reason=why_not_json(data))
            continue
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            yield Skipped(line=number, reason="not_an_object")


def objects_of(head: Sequence[bytes], *, arrays: bool = False) -> list[Mapping[str, Json]]:
    """The JSON objects among the first lines of a file, for `sniff`."""
    rows = json_rows((Line(i, data) for i, data in enumerate(head, 1)), arrays=arrays)
    return [row.data for row in rows if isinstance(row, Row)]


def _elements(lines: Iterable[Line]) -> Iterator[Line]:
    """The elements of a JSON list as lines of their own, numbered by where they begin.

    Strings of JSON hold no line breaks, so each line is looked at by itself. What follows the list,
    and a file that is none, is passed on line by line.
    """
    source = iter(lines)
    first = next((line for line in source if line.data.strip()), None)
    if first is None:
        return
    if not first.data.lstrip().startswith(b"["):
        yield first
        yield from source
        return
    yield from _split(Line(first.number, first.data.lstrip()[1:]), source)
    yield from source


def _split(first: Line, rest: Iterator[Line]) -> Iterator[Line]:
    """Elements up to the end of the list."""
    parts: list[bytes] = []
    begin, depth = 0, 0
    for number, data in itertools.chain([first], rest):
        start = 0
        for token in _TOKEN.finditer(data):
            mark = token.group()
            if depth == 0 and mark in b",]":
                parts.append(data[start : token.start()])
                start = token.end()
                if any(part.strip() for part in parts):
                    yield Line(begin or number, b" ".join(parts))
                parts, begin = [], 0
                if mark == b"]":
                    return
            elif mark in b"{[":
                depth += 1
            elif mark in b"}]":
                depth -= 1
        if data[start:].strip():
            begin = begin or number
            parts.append(data[start:])
    if parts:
        yield Line(begin, b" ".join(parts))


def number(row: Mapping[str, Json], key: str) -> float:
    """A finite number. Raises Unusable (`missing_<key>`, `bad_<key>`)."""
    value = row.get(key)
    if value is None:
        raise Unusable(f"missing_{key}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Unusable(f"bad_{key}")
    return float(value)


def count(row: Mapping[str, Json], key: str) -> int:
    """A whole number of at least 0. Raises Unusable (`missing_<key>`, `bad_<key>`)."""
    value = number(row, key)
    if value < 0 or not value.is_integer():
        raise Unusable(f"bad_{key}")
    return int(value)


def text_in(row: Mapping[str, Json], key: str) -> str:
    """A text. Raises Unusable (`missing_<key>`, `bad_<key>`)."""
    value = row.get(key)
    if value is None:
        raise Unusable(f"missing_{key}")
    if not isinstance(value, str):
        raise Unusable(f"bad_{key}")
    return value


def part(row: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    """An object inside an object; empty when absent. Raises Unusable (`bad_<key>`)."""
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unusable(f"bad_{key}")
    return value


def whole_numbers(row: Mapping[str, Json], key: str) -> tuple[int, ...]:
    """A list of whole numbers; () when absent. Raises Unusable (`bad_<key>`)."""
    value = row.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise Unusable(f"bad_{key}")
    return tuple(value)


def check_lengths(input_tokens: int, output_tokens: int, blocks: int, block_size: int) -> None:
    """Lengths that can be replayed. Raises Unusable: `no_input`, `no_output` (the request failed
    when it was recorded), `hash_mismatch` (ids given, but not one per started block).
    """
    if input_tokens < 1:
        raise Unusable("no_input")
    if output_tokens < 1:
        raise Unusable("no_output")
    if blocks and blocks != -(-input_tokens // block_size):
        raise Unusable("hash_mismatch")


def why_not_json(data: bytes) -> str:
    """The reason for bytes that are no JSON: `not_utf8` or `not_json`."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "not_utf8"
    return "not_json"
