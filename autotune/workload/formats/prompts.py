"""Tables of prompts or of lengths (csv, jsonl, json): columns found by their names.

The column names are guidellm's defaults and those of vidur's processed traces. A table with a
prompt needs an answer length per row, or one for all; a table without needs both lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from autotune.canonical import Json
from autotune.workload.formats.cells import cell_count, csv_rows, header_of
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.instants import Instants
from autotune.workload.formats.rows import Row, Unusable, check_lengths, json_rows, objects_of
from autotune.workload.formats.rows import count as json_count
from autotune.workload.formats.text import Prompt, Texts, messages_of
from autotune.workload.trace import Message, Request, Skipped

TEXT = ("prompt", "instruction", "question", "input", "context", "content", "text")
SYSTEM = ("system_prompt", "system", "prefix")
INPUT = ("prompt_tokens_count", "input_tokens_count", "prompt_tokens", "input_tokens",
         "num_prefill_tokens", "input_length")  # fmt: skip
OUTPUT = ("output_tokens_count", "completion_tokens_count", "output_tokens", "completion_tokens",
          "num_decode_tokens", "output_length", "max_tokens")  # fmt: skip
TIME = ("timestamp", "relative_timestamp", "arrived_at", "arrival_time")
LOOK_AHEAD = 50
SURE, UNSURE = 0.35, 0.2


class PromptsFormat:
    """Any table with a column of prompts or of lengths."""

    name = "prompts"
    title = "table of prompts or lengths (csv, jsonl, json; columns by name)"

    def sniff(self, head: Sequence[bytes]) -> float:
        names = set(header_of(head))
        if len(names) < 2:
            names = {key for row in objects_of(head, arrays=True) for key in row}
        lengths = bool(names.intersection(OUTPUT))
        if lengths and names.intersection((*INPUT, *TEXT, "messages")):
            return SURE
        return UNSURE if names.intersection((*TEXT, "messages")) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        rows = _rows(lines)
        ahead = list(islice(rows, LOOK_AHEAD))
        known = [row for row in ahead if isinstance(row, Row)]
        timed = any(_first(row.data, TIME) is not None for row in known)
        reading = _Reading(options, timed=timed)
        yield About(
            block_size=reading.texts.block_size,
            untimed=bool(known) and not timed,
            meta={"source": self.name},
        )
        for row in chain(ahead, rows):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                yield reading.request(row)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
        yield reading.texts.about()


class _Reading:
    def __init__(self, options: ReadOptions, *, timed: bool) -> None:
        self.texts = Texts(options)
        self._options = options
        self._timed = timed
        self._instants = Instants()

    def request(self, row: Row) -> Request:
        """One request. Raises Unusable."""
        data = row.data
        stated = _count(data, INPUT)
        prompt = self._prompt(data, stated)
        outputs = _count(data, OUTPUT)
        if outputs is None:
            outputs = self._options.output_tokens
        if outputs is None:
            raise Unusable("missing_output_tokens")
        check_lengths(prompt.tokens, outputs, 0, 1)
        return Request(
            at_s=self._time(data),
            input_tokens=prompt.tokens,
            output_tokens=outputs,
            blocks=prompt.blocks,
            line=row.line,
            messages=prompt.messages,
        )

    def _prompt(self, data: Mapping[str, Json], stated: int | None) -> Prompt:
        messages = _messages(data)
        if messages:
            return self.texts.prompt(messages, stated=stated)
        if stated is None:
            raise Unusable("missing_prompt")
        return Prompt(stated, (), ())

    def _time(self, data: Mapping[str, Json]) -> float:
        if not self._timed:
            return 0.0
        name = _first(data, TIME)
        if name is None:
            raise Unusable("missing_timestamp")
        seconds = self._instants.value(data[name], name)
        return seconds / 1000 if self._options.time_unit == "ms" else seconds


def _rows(lines: Iterable[Line]) -> Iterator[Row | Skipped]:
    source = iter(lines)
    first = next((line for line in source if line.data.strip()), None)
    if first is None:
        return
    whole = chain([first], source)
    if first.data.lstrip()[:1] in {b"{", b"["}:
        yield from json_rows(whole, arrays=True)
    else:
        yield from csv_rows(whole, multiline=True)


def _first(data: Mapping[str, Json], names: Sequence[str]) -> str | None:
    """The first of these columns that has a value."""
    return next((n for n in names if data.get(n) is not None and data[n] != ""), None)


def _count(data: Mapping[str, Json], names: Sequence[str]) -> int | None:
    name = _first(data, names)
    if name is None:
        return None
    return cell_count(data, name) if isinstance(data[name], str) else json_count(data, name)


def _messages(data: Mapping[str, Json]) -> tuple[Message, ...]:
    """The prompt of a row; () when it has none. Raises Unusable."""
    if isinstance(data.get("messages"), list):
        return messages_of(data["messages"])
    name = next((name for name in TEXT if data.get(name) is not None), None)
    if name is None:
        return ()
    if not isinstance(data[name], str):
        raise Unusable(f"bad_{name}")
    system = next((data[key] for key in SYSTEM if isinstance(data.get(key), str)), "")
    if not system:
        return (("", data[name]),)
    return (("system", system), ("user", data[name]))


FORMAT = PromptsFormat()
