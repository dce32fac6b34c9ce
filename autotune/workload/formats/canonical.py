"""autotune's own format: one JSON object per request, lengths and opaque block ids, never text.

    {"autotune_trace": 1, "block_size": 512, "source": "mooncake"}
    {"t": 0.0, "in": 900, "out": 8, "blocks": [0, 1]}
    {"t": 3.2, "in": 950, "out": 20, "session": "s0", "turn": 1, "gap": 2.0, "priority": 1}

The header row is optional; `t` is seconds, resolved to microseconds. Only when the user kept the
text, a row has it too: `"text"` for a plain prompt, else `"messages"` as of the chat interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.canonical import Json
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.rows import (
    Row,
    Unusable,
    check_lengths,
    count,
    json_rows,
    number,
    objects_of,
    text_in,
    whole_numbers,
)
from autotune.workload.formats.text import messages_of
from autotune.workload.trace import Message, Request, Skipped

HEADER = "autotune_trace"
VERSION = 1
DEFAULT_BLOCK_SIZE = 512
TEXT_KEYS = frozenset({"text", "messages"})


class CanonicalFormat:
    """The format of `workload.jsonl.zst` in a study directory and of the shipped workloads."""

    name = "canonical"
    title = "autotune's own jsonl (also .zst)"

    def sniff(self, head: Sequence[bytes]) -> float:
        objects = objects_of(head)
        if objects and HEADER in objects[0]:
            return 1.0
        return 0.9 if any({"t", "in", "out"} <= row.keys() for row in objects) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        scale = 1e-3 if options.time_unit == "ms" else 1.0
        block_size = options.block_size or DEFAULT_BLOCK_SIZE
        keep_text = options.keep_text
        dropped = 0
        yield About(block_size=block_size)
        for row in json_rows(lines):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                if HEADER in row.data:
                    about = _header(row.data, options)
                    block_size = about.block_size or block_size
                    yield about
                else:
                    yield _request(row, scale, block_size, keep_text=keep_text)
                    dropped += not keep_text and not TEXT_KEYS.isdisjoint(row.data)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
        if dropped:
            yield About(notes=(f"the text of {dropped} requests was dropped (keep_text)",))


def _header(data: Mapping[str, Json], options: ReadOptions) -> About:
    if data[HEADER] != VERSION:
        raise Unusable("unknown_trace_version")
    size = options.block_size
    if size is None and "block_size" in data:
        size = count(data, "block_size")
        if size < 1:
            raise Unusable("bad_block_size")
    meta = {key: value for key, value in data.items() if key not in {HEADER, "block_size"}}
    return About(block_size=size, meta=meta)


def _request(row: Row, scale: float, block_size: int, *, keep_text: bool) -> Request:
    data = row.data
    blocks = whole_numbers(data, "blocks")
    if any(block < 0 for block in blocks):
        raise Unusable("bad_blocks")
    request = Request(
        at_s=number(data, "t") * scale,
        input_tokens=count(data, "in"),
        output_tokens=count(data, "out"),
        blocks=blocks,
        session=_session(data),
        turn=count(data, "turn") if "turn" in data else 0,
        gap_s=None if data.get("gap") is None else _gap(data) * scale,
        priority=None if data.get("priority") is None else int(number(data, "priority")),
        line=row.line,
        messages=_messages(data) if keep_text else (),
    )
    check_lengths(request.input_tokens, request.output_tokens, len(blocks), block_size)
    return request


def _gap(data: Mapping[str, Json]) -> float:
    gap = number(data, "gap")
    if gap < 0:
        raise Unusable("bad_gap")
    return gap


def _session(data: Mapping[str, Json]) -> str | None:
    value = data.get("session")
    if value is None or isinstance(value, str):
        return value
    raise Unusable("bad_session")


def _messages(data: Mapping[str, Json]) -> tuple[Message, ...]:
    if "text" in data:
        return (("", text_in(data, "text")),)
    return messages_of(data["messages"]) if "messages" in data else ()


FORMAT = CanonicalFormat()
