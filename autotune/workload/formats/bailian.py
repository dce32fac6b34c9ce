"""Bailian (Qwen) traces jsonl: 16-token block hashes, seconds, turns linked to their parents.

Fields of alibaba-edu/qwen-bailian-usagetraces: `chat_id`, `parent_chat_id` (-1 for a first turn),
`timestamp` (s), `input_length`, `output_length`, `type`, `turn`, `hash_ids` (salted, one per
started block of 16 tokens).
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
    whole_numbers,
)
from autotune.workload.formats.sessions import Sessions
from autotune.workload.hashing import BlockTree
from autotune.workload.trace import Request, Skipped

BLOCK_SIZE = 16
FIELDS = {"chat_id", "parent_chat_id", "input_length", "output_length"}
NO_PARENT = -1


class BailianFormat:
    """The usage traces of Qwen on Bailian."""

    name = "bailian"
    title = "Bailian/Qwen usage traces jsonl (seconds, 16-token block hashes, parent links)"

    def sniff(self, head: Sequence[bytes]) -> float:
        return 1.0 if any(row.keys() >= FIELDS for row in objects_of(head)) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        size = options.block_size or BLOCK_SIZE
        yield About(block_size=size, meta={"source": self.name})
        reading = _Reading(options, size)
        for row in json_rows(lines):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                request = reading.request(row)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
                continue
            yield from reading.placed(row.data, request)
        yield from reading.sessions.flush()


class _Reading:
    """Which conversation each chat belongs to."""

    def __init__(self, options: ReadOptions, block_size: int) -> None:
        self._scale = 1e-3 if options.time_unit == "ms" else 1.0
        self._block_size = block_size
        self._tree = None if options.raw_blocks else BlockTree()
        self._roots: dict[int, str] = {}
        self.sessions = Sessions()

    def request(self, row: Row) -> Request:
        """One request, without its session. Raises Unusable."""
        data = row.data
        blocks = whole_numbers(data, "hash_ids")
        inputs, outputs = count(data, "input_length"), count(data, "output_length")
        at_s = number(data, "timestamp") * self._scale
        count(data, "chat_id")
        check_lengths(inputs, outputs, len(blocks), self._block_size)
        if self._tree is not None:
            blocks = self._tree.dense(blocks)
        return Request(
            at_s=at_s, input_tokens=inputs, output_tokens=outputs, blocks=blocks, line=row.line
        )

    def placed(self, data: Mapping[str, Json], request: Request) -> Iterator[Request]:
        """The request in its conversation: that of its parent, else one of its own."""
        chat, parent = data["chat_id"], data.get("parent_chat_id", NO_PARENT)
        root = self._roots.get(int(parent)) if isinstance(parent, int | float) else None
        self._roots[int(chat)] = root or str(chat)
        yield from self.sessions.place(self._roots[chat], request)


FORMAT = BailianFormat()
