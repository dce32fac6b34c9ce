"""From what passed through the proxy to rows of a workload; nothing of it is kept but numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.canonical import Json
from autotune.workload.recording.conversations import Conversations
from autotune.workload.recording.prefixes import PrefixMemory
from autotune.workload.recording.prompt import UnrecordableError, prompt_of
from autotune.workload.recording.stream import Usage


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One completion or chat request on its way. Times in seconds from the start of the recording.

    `failed` is why there is nothing to record; `cut` that the client left before the end. `events`
    counts those of the answer, which stand in for tokens where no counts came.
    """

    at_s: float
    chat: bool
    body: Mapping[str, Json]
    session_name: str | None = None
    usage: Usage | None = None
    events: int = 0
    end_s: float = 0.0
    cut: bool = False
    failed: str | None = None


@dataclass(slots=True, kw_only=True)
class Summary:
    """What a recording has seen so far. `requests` counts completion and chat requests that came;
    `skipped` requests that are not in the file, by
    reason; `other` requests to other routes; `estimated` rows whose lengths the server did not
    tell; `lost` rows that could not be written.
    """

    requests: int = 0
    recorded: int = 0
    estimated: int = 0
    cut: int = 0
    other: int = 0
    lost: int = 0
    sessions: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def unaccounted(self) -> int:
        """Requests that came and left no trace at all; none, unless something is broken."""
        return self.requests - self.recorded - self.lost - self.skipped.total()


class Recorder:
    """Turns finished exchanges into rows. `write` appends one and raises OSError if it cannot."""

    def __init__(self, write: Callable[[dict[str, Json]], None]) -> None:
        self._write = write
        self._memory = PrefixMemory()
        self._conversations = Conversations(self._memory)
        self.summary = Summary()

    def finish(self, exchange: Exchange) -> None:
        """Write the exchange's row, or count why there is none. Call once, when it has ended."""
        try:
            row = self._row(exchange)
        except UnrecordableError as problem:
            self.summary.skipped[problem.reason] += 1
            return
        self.summary.sessions = self._conversations.count
        try:
            self._write(row)
        except OSError:
            # The traffic goes on; the end tells what is missing
            self.summary.lost += 1
            return
        self.summary.recorded += 1
        self.summary.estimated += "estimated" in row
        self.summary.cut += exchange.cut

    def _row(self, exchange: Exchange) -> dict[str, Json]:
        if exchange.failed is not None:
            raise UnrecordableError(exchange.failed)
        body = exchange.body
        if (body.get("n") or 1) != 1:
            raise UnrecordableError("several_answers")
        prompt = prompt_of(body, chat=exchange.chat)
        counted = exchange.usage
        usage = counted or Usage(prompt.likely_tokens, exchange.events)
        if usage.input_tokens < 1:
            raise UnrecordableError("no_input")
        if usage.output_tokens < 1:
            raise UnrecordableError("cut_before_answer" if exchange.cut else "no_output")
        chain = self._memory.chain(prompt)
        at_s, end_s = exchange.at_s, exchange.end_s
        if exchange.session_name is not None:
            turn = self._conversations.named(exchange.session_name, at_s, end_s)
        else:
            turn = self._conversations.grown(prompt, chain, at_s, end_s)
        row: dict[str, Json] = {
            "t": round(at_s, 6),
            "in": usage.input_tokens,
            "out": usage.output_tokens,
            "blocks": self._memory.blocks(prompt, chain, usage.input_tokens),
            "session": turn.session,
        }
        if turn.turn:
            row["turn"] = turn.turn
        if turn.gap_s is not None:
            row["gap"] = turn.gap_s
        if type(body.get("priority")) is int:
            row["priority"] = body["priority"]
        if counted is None:
            row["estimated"] = True
        return row
