"""Mooncake jsonl: `timestamp`, `input_length`, `output_length`, `hash_ids` (512-token blocks).

Fields and units as in the FAST25 release of kvcache-ai/Mooncake: `timestamp` counts milliseconds,
one id per started block, an id stands for the block and everything before it. Variants that other
tools write are read too: `session_id` with `delay` (ms), a prompt text in place of `input_length`,
time stamps in seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.canonical import Json
from autotune.workload.formats.format import About, Item, Line, ReadOptions, TimeUnit
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
from autotune.workload.trace import Request, Skipped

BLOCK_SIZE = 512
TEXT_FIELDS = ("text_input", "prompt")
BYTES_PER_TOKEN = 4
"""A rule of thumb for text whose tokenizer is unknown; said in a note."""
LOOK_AHEAD = 2000
ABSURD_RATE = 200.0
PLAUSIBLE_RATE = 20.0
"""Requests per second. Read as milliseconds a file is absurd above the first; read as seconds it is
plausible below the second. Only a file that is both is taken for seconds."""


class MooncakeFormat:
    """The traces of the Mooncake project and what other tools write after their model."""

    name = "mooncake"
    title = "Mooncake jsonl (timestamps in ms, 512-token block hashes)"

    def sniff(self, head: Sequence[bytes]) -> float:
        best = 0.0
        for row in objects_of(head):
            if {"timestamp", "output_length"} <= row.keys():
                best = max(best, 0.9 if "input_length" in row else 0.6)
        return best

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        block_size = options.block_size or BLOCK_SIZE
        rows = json_rows(lines)
        ahead = list(itertools.islice(rows, LOOK_AHEAD))
        unit, notes = _unit(ahead, options.time_unit)
        yield About(
            block_size=block_size, notes=notes, meta={"source": self.name, "time_unit": unit}
        )
        reading = _Reading(0.001 if unit == "ms" else 1.0, block_size)
        for row in itertools.chain(ahead, rows):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                yield reading.request(row)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
        yield About(notes=reading.notes())


class _Reading:
    """The state of one pass over a file: ids and sessions seen so far."""

    def __init__(self, scale: float, block_size: int) -> None:
        self._scale = scale
        self._block_size = block_size
        self._ids: dict[tuple[int, int], int] = {}
        self._sessions: dict[str, tuple[str, int, float]] = {}
        self._estimated = 0

    def request(self, row: Row) -> Request:
        """One request. Raises Unusable."""
        data = row.data
        raw = whole_numbers(data, "hash_ids")
        input_tokens, estimated = _input_tokens(data)
        output_tokens = count(data, "output_length")
        check_lengths(input_tokens, output_tokens, len(raw), self._block_size)
        session, turn, gap_s, at_s = self._place(data)
        self._estimated += estimated
        return Request(
            at_s=at_s,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            blocks=self._dense(raw),
            session=session,
            turn=turn,
            gap_s=gap_s,
            priority=int(number(data, "priority")) if "priority" in data else None,
            line=row.line,
        )

    def notes(self) -> tuple[str, ...]:
        """What the user should know about the rows read."""
        if not self._estimated:
            return ()
        note = (
            f"{self._estimated} prompts had text but no length: lengths are estimated at "
            f"{BYTES_PER_TOKEN} bytes per token, and the text was dropped"
        )
        return (note,)

    def _dense(self, raw: tuple[int, ...]) -> tuple[int, ...]:
        """Foreign ids as 0, 1, 2, ...; an id below another parent is another block, so the result
        is always a tree, whatever the source hashed.
        """
        parent, dense = -1, []
        for foreign in raw:
            parent = self._ids.setdefault((parent, foreign), len(self._ids))
            dense.append(parent)
        return tuple(dense)

    def _place(self, data: Mapping[str, Json]) -> tuple[str | None, int, float | None, float]:
        """(session, turn, gap, time); sessions are renamed, for their ids may tell who it was."""
        foreign = data.get("session_id")
        if foreign is None:
            return None, 0, None, number(data, "timestamp") * self._scale
        key = str(foreign)
        known = self._sessions.get(key)
        delay_s = number(data, "delay") * self._scale if "delay" in data else None
        if known is None:
            name, turn = f"s{len(self._sessions)}", 0
            at_s = number(data, "timestamp") * self._scale
        else:
            name, turn = known[0], known[1] + 1
            stated = "timestamp" in data or delay_s is None
            at_s = number(data, "timestamp") * self._scale if stated else known[2] + (delay_s or 0)
        self._sessions[key] = (name, turn, at_s)
        return name, turn, delay_s if turn else None, at_s


def _input_tokens(data: Mapping[str, Json]) -> tuple[int, bool]:
    """(prompt tokens, whether they are an estimate from the text)."""
    if "input_length" not in data:
        for field in TEXT_FIELDS:
            text = data.get(field)
            if isinstance(text, str):
                return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN), True
    return count(data, "input_length"), False


def _unit(
    ahead: Sequence[Row | Skipped], stated: TimeUnit | None
) -> tuple[TimeUnit, tuple[str, ...]]:
    """The unit of `timestamp`: as stated, else ms unless that is absurd and seconds are not."""
    if stated is not None:
        return stated, ()
    stamps = [
        float(row.data["timestamp"])
        for row in ahead
        if isinstance(row, Row) and type(row.data.get("timestamp")) in {int, float}
    ]
    span = max(stamps, default=0.0) - min(stamps, default=0.0)
    if span <= 0:
        return "ms", ()
    rate = len(stamps) / span
    if rate * 1000 > ABSURD_RATE and rate <= PLAUSIBLE_RATE:
        note = (
            f"timestamps are taken as seconds: as milliseconds they would mean {rate * 1000:,.0f} "
            f"requests/s, as seconds {rate:.3g}; state the time unit if that is wrong"
        )
        return "s", (note,)
    return "ms", ()


FORMAT = MooncakeFormat()
