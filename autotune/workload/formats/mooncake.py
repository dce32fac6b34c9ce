"""Mooncake jsonl: `timestamp`, `input_length`, `output_length`, `hash_ids` (512-token blocks).

Fields and units as in the FAST25 release of kvcache-ai/Mooncake: `timestamp` counts milliseconds,
one id per started block, an id stands for the block and everything before it. What aiperf writes
after this model is read too: `session_id` with `delay` (ms), and a text (`text_input`, `prompt`,
`messages` with `tools`, or a whole `payload`) in place of `input_length`; and time stamps in
seconds.
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
    part,
    text_in,
    whole_numbers,
)
from autotune.workload.formats.text import Prompt, Texts, prompt_of
from autotune.workload.hashing import BlockTree
from autotune.workload.trace import Message, Request, Skipped

BLOCK_SIZE = 512
TEXT_FIELDS = ("text_input", "prompt")
PROMPT_FIELDS = {"input_length", "messages", "payload", *TEXT_FIELDS}
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
            if {"timestamp", "output_length"} <= row.keys() and PROMPT_FIELDS & row.keys():
                best = max(best, 0.9 if "input_length" in row else 0.6)
        return best

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        return read_rows(lines, options, name=self.name, block_size=BLOCK_SIZE)


def read_rows(
    lines: Iterable[Line], options: ReadOptions, *, name: str, block_size: int
) -> Iterator[Item]:
    """The rows of a file of this kind, whose blocks have `block_size` tokens unless told."""
    rows = json_rows(lines)
    ahead = list(itertools.islice(rows, LOOK_AHEAD))
    unit, notes = time_unit(ahead, options.time_unit)
    reading = _Reading(0.001 if unit == "ms" else 1.0, block_size, _has_ids(ahead), options)
    yield About(
        block_size=reading.block_size,
        untimed=_is_untimed(ahead),
        notes=notes,
        meta={"source": name, "time_unit": unit},
    )
    for row in itertools.chain(ahead, rows):
        if isinstance(row, Skipped):
            yield row
            continue
        try:
            yield reading.request(row)
        except Unusable as problem:
            yield Skipped(line=row.line, reason=problem.reason)
    yield reading.texts.about()


class _Reading:
    """The state of one pass over a file: ids and sessions seen so far."""

    def __init__(self, scale: float, block_size: int, has_ids: bool, options: ReadOptions) -> None:
        self._scale = scale
        self.texts = Texts(options)
        self._has_ids = has_ids
        # A file without ids gets those of its texts, in smaller blocks
        self.block_size = options.block_size or (block_size if has_ids else self.texts.block_size)
        self._tree = None if options.raw_blocks else BlockTree()
        self._sessions: dict[str, tuple[str, int, float]] = {}

    def request(self, row: Row) -> Request:
        """One request. Raises Unusable."""
        data = row.data
        blocks = whole_numbers(data, "hash_ids")
        prompt = None
        if "input_length" in data and not self.texts.keeps:
            input_tokens = count(data, "input_length")
        else:
            prompt = self._prompt(data)
            input_tokens = prompt.tokens
        output_tokens = count(data, "output_length")
        check_lengths(input_tokens, output_tokens, len(blocks), self.block_size)
        if blocks and self._tree is not None:
            blocks = self._tree.dense(blocks)
        elif not blocks and prompt is not None and not self._has_ids:
            blocks = prompt.blocks
        session, turn, gap_s, at_s = self._place(data)
        return Request(
            at_s=at_s,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            blocks=blocks,
            session=session,
            turn=turn,
            gap_s=gap_s,
            priority=int(number(data, "priority")) if "priority" in data else None,
            line=row.line,
            messages=() if prompt is None else prompt.messages,
        )

    def _prompt(self, data: Mapping[str, Json]) -> Prompt:
        stated = count(data, "input_length") if "input_length" in data else None
        messages = _messages(data)
        if messages:
            return self.texts.prompt(messages, stated=stated, tools=data.get("tools"))
        return Prompt(count(data, "input_length"), (), ())

    def _place(self, data: Mapping[str, Json]) -> tuple[str | None, int, float | None, float]:
        """(session, turn, gap, time); sessions are renamed, for their ids may tell who it was."""
        foreign = data.get("session_id")
        if foreign is None:
            return None, 0, None, number(data, "timestamp") * self._scale
        key = str(foreign)
        known = self._sessions.get(key)
        delay_s = number(data, "delay") * self._scale if "delay" in data else None
        if delay_s is not None and delay_s < 0:
            raise Unusable("bad_delay")
        if known is None:
            name, turn = f"s{len(self._sessions)}", 0
            at_s = number(data, "timestamp") * self._scale
        else:
            name, turn = known[0], known[1] + 1
            stated = "timestamp" in data or delay_s is None
            at_s = number(data, "timestamp") * self._scale if stated else known[2] + (delay_s or 0)
        self._sessions[key] = (name, turn, at_s)
        return name, turn, delay_s if turn else None, at_s


def _messages(data: Mapping[str, Json]) -> tuple[Message, ...]:
    """The text of a row; () when it has none."""
    for field in TEXT_FIELDS:
        if field in data:
            return (("", text_in(data, field)),)
    if "messages" in data:
        return prompt_of(data)
    if "payload" in data:
        return prompt_of(part(data, "payload"))
    return ()


def _has_ids(rows: Sequence[Row | Skipped]) -> bool:
    return any(isinstance(row, Row) and row.data.get("hash_ids") for row in rows)


def _is_untimed(rows: Sequence[Row | Skipped]) -> bool:
    found = [row for row in rows if isinstance(row, Row)]
    return bool(found) and not any("timestamp" in row.data for row in found)


def time_unit(
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
