"""Weka agent traces jsonl: one session a line with its requests, sub-agents nested inside.

Fields: `id`, `block_size`, `hash_id_scope`, `requests` [{`t` (s), `type`, `in`, `out`, `hash_ids`,
`api_time` (s), `think_time`}]; a request of type `subagent` holds `requests` of its own. Sub-agents
run beside their parent, so each becomes a session of its own.
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

BLOCK_SIZE = 64
FIELDS = {"requests", "hash_id_scope"}
MAX_NESTING = 20


class WekaFormat:
    """Agent sessions with nested sub-agents."""

    name = "weka"
    title = "Weka agent sessions jsonl (nested sub-agents, block hashes)"

    def sniff(self, head: Sequence[bytes]) -> float:
        return 1.0 if any(row.keys() >= FIELDS for row in objects_of(head)) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        yield About(block_size=options.block_size or BLOCK_SIZE, meta={"source": self.name})
        sessions = Sessions()
        size = options.block_size
        tree = BlockTree()
        for row in json_rows(lines):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                own = count(row.data, "block_size") if "block_size" in row.data else BLOCK_SIZE
                size = size or own
                if own != size and options.block_size is None:
                    raise Unusable("other_block_size")
                yield About(block_size=size)
                play = _Play(row, size, tree, options)
                turns = play.turns(row.data, f"{row.line}", 0)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
                continue
            for key, request, end_s in turns:
                yield from sessions.place(key, request, end_s)
            yield from (Skipped(line=row.line, reason=reason) for reason in play.problems)
        yield from sessions.flush()


_Turn = tuple[str, Request, float | None]


class _Play:
    """One line: its requests and those of its sub-agents."""

    def __init__(self, row: Row, block_size: int, tree: BlockTree, options: ReadOptions) -> None:
        self._line = row.line
        self._block_size = block_size
        self._tree = tree
        self._scope = row.line if row.data.get("hash_id_scope") == "local" else 0
        self._scale = 1e-3 if options.time_unit == "ms" else 1.0
        self.problems: list[str] = []

    def turns(self, data: Mapping[str, Json], key: str, depth: int) -> list[_Turn]:
        """The requests of a session and below it.

        Raises Unusable: `bad_requests`, `no_requests`.
        """
        requests = data.get("requests")
        if not isinstance(requests, list) or depth > MAX_NESTING:
            raise Unusable("bad_requests")
        if not requests:
            raise Unusable("no_requests")
        found: list[_Turn] = []
        for index, entry in enumerate(requests):
            try:
                if not isinstance(entry, dict):
                    raise Unusable("not_an_object")
                if "requests" in entry:
                    found += self.turns(entry, f"{key}/{index}", depth + 1)
                else:
                    found.append((key, *self._request(entry)))
            except Unusable as problem:
                self.problems.append(problem.reason)
        return found

    def _request(self, data: Mapping[str, Json]) -> tuple[Request, float | None]:
        blocks = whole_numbers(data, "hash_ids")
        inputs, outputs = count(data, "in"), count(data, "out")
        at_s = number(data, "t") * self._scale
        check_lengths(inputs, outputs, len(blocks), self._block_size)
        request = Request(
            at_s=at_s,
            input_tokens=inputs,
            output_tokens=outputs,
            blocks=self._tree.dense(blocks, scope=self._scope),
            line=self._line,
        )
        spent = number(data, "api_time") * self._scale if "api_time" in data else None
        return request, None if spent is None else at_s + spent


FORMAT = WekaFormat()
