"""Server-sent events from bytes, as the WHATWG grammar has it: only CR, LF and CRLF end a line.

Works on bytes throughout. Splitting decoded text by lines would also split at U+2028, U+2029 and
U+0085, which engines send unescaped inside JSON strings.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event: the joined `data:` lines, and the `event:` name (`message` if none was sent)."""

    data: bytes
    name: str = "message"


class SseParser:
    """Incremental parser; reads may split or join events anywhere, also within CRLF or a BOM.

    Comments, `id:`, `retry:` and unknown fields are skipped; an event without data is none.
    """

    __slots__ = ("_data", "_name", "_start", "_swallow_lf", "_tail")

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._name = b""
        self._start = True
        self._swallow_lf = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events completed by `chunk`, in order."""
        pending = self._start or self._swallow_lf or self._tail or self._data or self._name
        if not pending and chunk.startswith(b"data: ") and _is_one_line(chunk):
            # Nearly every read is one event of one line, which needs no splitting.
            return [SseEvent(chunk[6:-2])]
        if self._start:
            chunk = self._tail + chunk
            self._tail = b""
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._tail = chunk
                return []
            self._start = False
            chunk = chunk.removeprefix(_BOM)
        if self._swallow_lf and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._swallow_lf = False
        if b"\r" in chunk:
            self._swallow_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._tail + chunk if self._tail else chunk).split(b"\n")
        self._tail = lines.pop()
        return self._events(lines)

    @property
    def incomplete(self) -> bool:
        """Whether an event was begun whose end was not read yet."""
        return bool(self._tail or self._data)

    def finish(self) -> list[SseEvent]:
        """What the end of the stream leaves over: at most one event whose closing blank line is
        missing. The grammar drops it; servers do end so after `[DONE]`. Its last line may be cut.
        """
        tail, self._tail = self._tail, b""
        return self._events([tail, b""] if tail else [b""])

    def _events(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line:
                if self._data:
                    data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
                    name = self._name.decode("utf-8", "replace") if self._name else "message"
                    events.append(SseEvent(data, name))
                    self._data = []
                self._name = b""
            elif line.startswith(b"event:"):
                self._name = line[6:].removeprefix(b" ")
            elif line == b"data":
                self._data.append(b"")
        return events


def _is_one_line(chunk: bytes) -> bool:
    """Whether a chunk is one line and the blank line that closes its event."""
    return chunk.endswith(b"\n\n") and chunk.find(b"\n") == len(chunk) - 2 and b"\r" not in chunk
