"""Reading CSV lines and their cells: what every table format needs."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.workload.formats.format import Line
from autotune.workload.formats.rows import MAX_LINE_BYTES, Row, Unusable
from autotune.workload.trace import Skipped

_DELIMITERS = ",;\t"


def header_of(head: Sequence[bytes]) -> tuple[str, ...]:
    """The column names of the first non-blank line, for `sniff`; () when it is no table."""
    for data in head:
        if data.strip():
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                return ()
            names = tuple(column(name) for name in text.split(_delimiter(text)))
            return names if text.strip()[:1] not in {"{", "["} else ()
    return ()


def column(name: str) -> str:
    """A column's one spelling: lower case, underscores for blanks."""
    return name.strip().strip('"').strip().lower().replace(" ", "_")


def csv_rows(lines: Iterable[Line], *, multiline: bool = False) -> Iterator[Row | Skipped]:
    """Each row below the header as column -> cell, or why it is none.

    `multiline`: quoted cells may hold line breaks; a stray quote then swallows what follows, so
    only tables of text ask for it. Reasons: `not_utf8`, `bad_csv`, `too_many_cells`,
    `line_too_long`.
    """
    source = _Source(lines, keep_blank=multiline)
    first = next((text for text in source if text.strip()), None)
    yield from source.problems()
    if first is None:
        return
    delimiter = _delimiter(first)
    try:
        names = [column(name) for name in _cells(first, delimiter)]
    except csv.Error:
        # Without a header nothing below it can be told apart
        yield Skipped(line=source.first, reason="bad_csv")
        return
    csv.field_size_limit(MAX_LINE_BYTES)
    rows = csv.reader(source if multiline else (), delimiter=delimiter)
    while True:
        source.first = 0
        try:
            cells = next(rows) if multiline else _cells(next(source), delimiter)
        except StopIteration:
            yield from source.problems()
            return
        except csv.Error:
            yield from source.problems()
            yield Skipped(line=source.first, reason="bad_csv")
            continue
        yield from source.problems()
        if len(cells) > len(names):
            yield Skipped(line=source.first, reason="too_many_cells")
        elif any(cell.strip() for cell in cells):
            yield Row(source.first, dict(zip(names, cells, strict=False)))


def cell_number(row: Mapping[str, str], key: str) -> float:
    """A finite number. Raises Unusable (`missing_<key>`, `bad_<key>`)."""
    text = row.get(key, "").strip()
    if not text:
        raise Unusable(f"missing_{key}")
    try:
        value = float(text)
    except ValueError:
        raise Unusable(f"bad_{key}") from None
    if not math.isfinite(value):
        raise Unusable(f"bad_{key}")
    return value


def cell_count(row: Mapping[str, str], key: str) -> int:
    """A whole number of at least 0. Raises Unusable (`missing_<key>`, `bad_<key>`)."""
    value = cell_number(row, key)
    if value < 0 or not value.is_integer():
        raise Unusable(f"bad_{key}")
    return int(value)


class _Source:
    """Decoded lines for the csv module; lines that are no text are put aside. `first`: the first
    line taken since it was last set to 0.
    """

    def __init__(self, lines: Iterable[Line], *, keep_blank: bool) -> None:
        self._lines = iter(lines)
        self._keep_blank = keep_blank
        self._bad: list[Skipped] = []
        self.first = 0

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> str:
        for number, data in self._lines:
            if len(data) > MAX_LINE_BYTES:
                self._bad.append(Skipped(line=number, reason="line_too_long"))
                continue
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                self._bad.append(Skipped(line=number, reason="not_utf8"))
                continue
            if text.strip() or self._keep_blank:
                self.first = self.first or number
                return text + "\n"
        raise StopIteration

    def problems(self) -> Iterator[Skipped]:
        """The lines put aside since the last call."""
        bad, self._bad = self._bad, []
        yield from bad


def _cells(text: str, delimiter: str) -> list[str]:
    return next(csv.reader([text], delimiter=delimiter), [])


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)
