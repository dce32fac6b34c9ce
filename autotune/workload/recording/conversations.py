"""Which requests are turns of one conversation, and how long after the last answer they came."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from autotune.workload.recording.prefixes import CHUNK_BYTES, PrefixMemory
from autotune.workload.recording.prompt import Prompt

MOST_REMEMBERED = 100_000
"""Conversations that can go on; the one that rested longest is forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A place in a conversation: `gap_s` seconds after the last answer, None for the first turn."""

    session: str
    turn: int
    gap_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """An answered turn, and the chunk behind which its prompt had `rest` more bytes."""

    turn: Turn
    end_s: float
    chunk: bytes
    rest: int


class Conversations:
    """Tells sessions: by the name that a client sends, else by a prompt that continues another one.

    Names are numbered in order of appearance; they are not in what is written.
    """

    def __init__(self, memory: PrefixMemory, *, most: int = MOST_REMEMBERED) -> None:
        self._memory = memory
        self._most = most
        self._named: OrderedDict[str, tuple[Turn, float]] = OrderedDict()
        self._ends: OrderedDict[bytes, list[_End]] = OrderedDict()
        self._rests: dict[bytes, dict[int, int]] = {}
        self.count = 0

    def named(self, name: str, at_s: float, end_s: float) -> Turn:
        """The place of a request, come at `at_s` and answered at `end_s`, in a named session. One
        that came before the last answer waits for nothing, so it is a session of its own.
        """
        before = self._named.get(name)
        if before is None:
            turn = self._first()
        elif at_s < before[1]:
            return self._first()
        else:
            turn = _next(before[0], at_s - before[1])
        self._named[name] = (turn, end_s)
        self._named.move_to_end(name)
        if len(self._named) > self._most:
            self._named.popitem(last=False)
        return turn

    def grown(self, prompt: Prompt, chain: list[bytes], at_s: float, end_s: float) -> Turn:
        """The place of a request in the conversation that its prompt continues: the longest prompt
        that was answered before it came and that it begins with. Each is continued once.

        `chain` as of `PrefixMemory.chain`. A text shorter than a chunk that is no chat continues
        nothing and is not continued: too many texts begin so.
        """
        turn = self._continued(prompt, chain, at_s) or self._first()
        size = len(prompt.content)
        if prompt.chat or size >= CHUNK_BYTES:
            tail = self._memory.tail(chain, prompt.content, size)
            end = _End(turn=turn, end_s=end_s, chunk=chain[-1], rest=size % CHUNK_BYTES)
            self._ends.setdefault(tail, []).append(end)
            rests = self._rests.setdefault(end.chunk, {})
            rests[end.rest] = rests.get(end.rest, 0) + 1
            if len(self._ends) > self._most:
                for forgotten in self._ends.popitem(last=False)[1]:
                    self._forget(forgotten)
        return turn

    def _continued(self, prompt: Prompt, chain: list[bytes], at_s: float) -> Turn | None:
        for place in range(len(chain) - 1, -1, -1):
            for rest in sorted(self._rests.get(chain[place], ()), reverse=True):
                size = place * CHUNK_BYTES + rest
                if size >= len(prompt.content):
                    continue
                tail = self._memory.tail(chain, prompt.content, size)
                answered = [end for end in self._ends.get(tail, ()) if end.end_s <= at_s]
                if answered:
                    last = max(answered, key=lambda end: end.end_s)
                    self._ends[tail].remove(last)
                    if not self._ends[tail]:
                        del self._ends[tail]
                    self._forget(last)
                    return _next(last.turn, at_s - last.end_s)
        return None

    def _forget(self, end: _End) -> None:
        rests = self._rests[end.chunk]
        rests[end.rest] -= 1
        if not rests[end.rest]:
            del rests[end.rest]
        if not rests:
            del self._rests[end.chunk]

    def _first(self) -> Turn:
        self.count += 1
        return Turn(session=f"s{self.count - 1}", turn=0, gap_s=None)


def _next(turn: Turn, gap_s: float) -> Turn:
    return Turn(session=turn.session, turn=turn.turn + 1, gap_s=round(gap_s, 6))
