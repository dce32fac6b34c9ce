"""aiperf single-turn and multi-turn jsonl: texts with `timestamp` or `delay` (ms).

Single: `text` or `texts`, `timestamp`, `delay`, `role`, `session_id`, `output_length`. Multi:
`session_id` and `turns`, each like a single one; the prompt of a later turn extends the prompt and
the answer before it, whose text the file does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from autotune.canonical import Json
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.outputs import output_tokens
from autotune.workload.formats.rows import Row, Unusable, json_rows, number, objects_of
from autotune.workload.formats.text import Texts
from autotune.workload.trace import Message, Request, Skipped

TEXTS = {"text", "texts"}
SINGLE = {"timestamp", "delay", "role", "session_id", "output_length", "images", "image"}
LOOK_AHEAD = 200


@dataclass(slots=True)
class _Session:
    """A conversation so far: its tokens and messages, and where it stands."""

    name: str
    data: bytes = b""
    messages: list[Message] = field(default_factory=list)
    turn: int = 0
    at_s: float = 0.0


class AiperfFormat:
    """The single-turn and multi-turn inputs of aiperf."""

    name = "aiperf"
    title = "aiperf single-turn and multi-turn jsonl (text, ms)"

    def sniff(self, head: Sequence[bytes]) -> float:
        rows = objects_of(head)
        if any(isinstance(row.get("turns"), list) for row in rows):
            return 0.9
        return 0.7 if any(TEXTS & row.keys() and SINGLE & row.keys() for row in rows) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        rows = json_rows(lines)
        ahead = list(islice(rows, LOOK_AHEAD))
        reading = _Reading(options, untimed=not any(_is_timed(row) for row in ahead))
        yield About(
            block_size=reading.texts.block_size,
            untimed=reading.untimed,
            meta={"source": self.name, "time_unit": options.time_unit or "ms"},
        )
        for row in chain(ahead, rows):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                yield from reading.requests(row)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
        yield reading.texts.about()


class _Reading:
    """The sessions seen so far."""

    def __init__(self, options: ReadOptions, *, untimed: bool) -> None:
        self.texts = Texts(options)
        self.untimed = untimed
        self._options = options
        self._scale = 1.0 if options.time_unit == "s" else 1e-3
        self._sessions: dict[str, _Session] = {}

    def requests(self, row: Row) -> list[Request]:
        """The requests of a row, all or none. Raises Unusable."""
        turns = row.data.get("turns")
        if turns is None:
            key = row.data.get("session_id")
            session = self._session(None if key is None else str(key))
            return [self._turn(row.data, session, row.line, named=key is not None)]
        if not isinstance(turns, list) or not turns:
            raise Unusable("bad_turns")
        if not all(isinstance(turn, dict) for turn in turns):
            raise Unusable("bad_turns")
        session = _Session(f"s{len(self._sessions)}")
        found = [self._turn(turn, session, row.line, named=True) for turn in turns]
        self._sessions[f"line {row.line}"] = session
        return found

    def _session(self, key: str | None) -> _Session:
        if key is None:
            return _Session("")
        return self._sessions.setdefault(key, _Session(f"s{len(self._sessions)}"))

    def _turn(
        self, data: Mapping[str, Json], session: _Session, line: int, *, named: bool
    ) -> Request:
        message = (str(data.get("role") or "user"), _text(data))
        outputs = output_tokens(data, ("output_length",), self._options)
        at_s, gap_s = self._time(data, session)
        encoded = session.data + self.texts.encoded([message])
        messages = [*session.messages, message]
        prompt = self.texts.of(encoded, messages)
        request = Request(
            at_s=at_s,
            input_tokens=prompt.tokens,
            output_tokens=outputs,
            blocks=prompt.blocks,
            session=session.name if named else None,
            turn=session.turn,
            gap_s=gap_s,
            line=line,
            messages=prompt.messages,
        )
        session.data = encoded + self.texts.unknown(outputs)
        session.messages, session.at_s = messages, at_s
        session.turn += 1
        return request

    def _time(self, data: Mapping[str, Json], session: _Session) -> tuple[float, float | None]:
        """(time, gap before this turn)."""
        delay_s = number(data, "delay") * self._scale if data.get("delay") is not None else None
        if delay_s is not None and delay_s < 0:
            raise Unusable("bad_delay")
        stated = data.get("timestamp") is not None
        if session.turn and not stated:
            return session.at_s + (delay_s or 0.0), delay_s or 0.0
        if self.untimed:
            return 0.0, None
        return number(data, "timestamp") * self._scale, delay_s if session.turn else None


def _is_timed(row: Row | Skipped) -> bool:
    if isinstance(row, Skipped):
        return False
    turns = row.data.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else row.data
    return isinstance(first, dict) and first.get("timestamp") is not None


def _text(data: Mapping[str, Json]) -> str:
    """The text of a turn. Raises Unusable."""
    text, texts = data.get("text"), data.get("texts")
    if isinstance(texts, list):
        parts = [
            content
            for entry in texts
            for content in (entry.get("contents") or () if isinstance(entry, dict) else (entry,))
        ]
        if not all(isinstance(content, str) for content in parts):
            raise Unusable("bad_texts")
        text = "".join(parts)
    if text is None:
        raise Unusable("missing_text")
    if not isinstance(text, str):
        raise Unusable("bad_text")
    if not text.strip():
        raise Unusable("empty_prompt")
    return text


FORMAT = AiperfFormat()
