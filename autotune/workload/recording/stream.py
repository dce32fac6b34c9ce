"""A passing answer: events as raw bytes, the token counts in them, the one event that goes missing.

Nothing is decoded that needs not be: what is passed on are the bytes that came.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson

_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_ERROR = re.compile(rb'(?:^|[\r\n])(?:event: ?error|data: ?\{\s*"error")')
_DATA = re.compile(rb"(?:^|[\r\n])data: ?([^\r\n]*)")
MOST_BODY = 8 << 20
"""Of an answer that is no stream; a longer one is passed on, its counts are not read."""


class Usage(NamedTuple):
    """Tokens of prompt and answer, as the server counted them."""

    input_tokens: int
    output_tokens: int


class EventSplitter:
    """Cuts a stream into events with everything that belongs to them; joined they are the stream.

    Reads may split or join events anywhere. An event ends with its blank line.
    """

    __slots__ = ("_buffer", "_searched")

    def __init__(self) -> None:
        self._buffer = b""
        self._searched = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that `chunk` completes."""
        buffer = self._buffer + chunk if self._buffer else chunk
        events: list[bytes] = []
        start, search = 0, self._searched
        while (match := _END.search(buffer, search)) is not None:
            end = match.end()
            # A line feed that belongs to this end may still come
            if end == len(buffer) and buffer.endswith(b"\r"):
                break
            events.append(buffer[start:end])
            start = search = end
        self._buffer = buffer[start:]
        self._searched = max(0, len(self._buffer) - 4)
        return events

    def finish(self) -> bytes:
        """What came after the last event."""
        rest, self._buffer, self._searched = self._buffer, b"", 0
        return rest


class AnswerTap:
    """Looks at one answer as it passes. `strip_usage`: the counts were asked for by the recorder,
    so the event that holds nothing else is taken out again.
    """

    def __init__(self, *, stream: bool, strip_usage: bool) -> None:
        self._splitter = EventSplitter() if stream else None
        self._strip = strip_usage
        self._with_usage: bytes | None = None
        self._body: list[bytes] = []
        self._size = 0
        self.events = 0
        self.failed = False

    @property
    def strips(self) -> bool:
        """Whether bytes may be taken out, so that `feed` must be asked before passing on."""
        return self._strip and self._splitter is not None

    def whole(self) -> None:
        """The answer turned out to be no stream, whatever was asked for: nothing is taken out."""
        self._splitter = None
        self._strip = False

    def feed(self, chunk: bytes) -> bytes:
        """What to pass on for `chunk`: itself, or whole events without the one taken out."""
        if self._splitter is None:
            if self._size <= MOST_BODY:
                self._body.append(chunk)
                self._size += len(chunk)
            return chunk
        events = self._splitter.feed(chunk)
        kept = [event for event in events if not self._look(event)]
        return b"".join(kept) if self._strip else chunk

    def finish(self) -> bytes:
        """What is left to pass on at the end."""
        if self._splitter is None:
            return b""
        rest = self._splitter.finish()
        if rest and self._look(rest):
            return b""
        return rest if self._strip else b""

    def usage(self) -> Usage | None:
        """The counts; None if none were seen."""
        if self._splitter is not None:
            return None if self._with_usage is None else _usage(_json_of(self._with_usage))
        return None if self._size > MOST_BODY else _usage(_parsed(b"".join(self._body)))

    def _look(self, event: bytes) -> bool:
        """Note what an event holds; True if it is to be taken out."""
        if _USAGE.search(event):
            self._with_usage = event
            if self._strip and _is_usage_alone(event):
                return True
        if _ERROR.search(event):
            self.failed = True
        elif b"data:" in event and b"[DONE]" not in event:
            self.events += 1
        return False


def _json_of(event: bytes) -> object:
    return _parsed(b"\n".join(_DATA.findall(event)))


def _parsed(data: bytes) -> object:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _is_usage_alone(event: bytes) -> bool:
    value = _json_of(event)
    return isinstance(value, dict) and value.get("choices") == []


def _usage(value: object) -> Usage | None:
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return None
    inputs, outputs = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    if not (isinstance(inputs, int) and isinstance(outputs, int)):
        return None
    return Usage(inputs, outputs)


def asking_for_usage(body: bytes, data: dict[str, object]) -> bytes | None:
    """The body of a streaming request with the counts asked for; None if the client asks itself or
    the request streams nothing. Everything else in it stays byte for byte where that can be.
    """
    if data.get("stream") is not True:
        return None
    options = data.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        return None
    if "stream_options" not in data:
        start = body.index(b"{") + 1
        return body[:start] + b'"stream_options":{"include_usage":true},' + body[start:]
    if options is not None and not isinstance(options, dict):
        return None
    asked = {**(options or {}), "include_usage": True}
    # Counts in every event are something that only both switches together turn on
    asked.pop("continuous_usage_stats", None)
    return orjson.dumps({**data, "stream_options": asked})
