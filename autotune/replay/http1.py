"""One HTTP/1.1 answer from bytes: status, the few headers that matter, the body without framing.

Decodes RFC 9112 as far as a client of a streaming POST meets it: interim answers, chunked bodies
with extensions and trailers, bodies by length and bodies that end with the connection.
"""

from __future__ import annotations

from enum import Enum, auto

MAX_HEAD = 64 << 10
MAX_LINE = 8 << 10


class NotHttpError(ValueError):
    """What came is not an HTTP/1.1 answer."""


class _State(Enum):
    HEAD = auto()
    SIZE = auto()
    DATA = auto()
    AFTER_DATA = auto()
    TRAILER = auto()
    LENGTH = auto()
    UNTIL_CLOSE = auto()
    DONE = auto()


class AnswerDecoder:
    """Incremental decoder of one answer; reads may split it anywhere.

    `at_chunk` is True exactly between two chunks, when nothing is held back: a caller may then take
    a read that is one whole chunk apart by itself.
    """

    __slots__ = (
        "_held", "_left", "_state", "at_chunk", "content_type", "keep_alive", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self._state = _State.HEAD
        self._held = b""
        self._left = 0
        self.at_chunk = False
        self.status: int | None = None
        self.content_type = ""
        self.keep_alive = False

    @property
    def done(self) -> bool:
        """Whether the answer is complete."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces of the body in `data`. Raises NotHttpError; bytes after the end are dropped
        and the connection is not to be used again (`keep_alive` False).
        """
        pieces: list[bytes] = []
        data = self._held + data if self._held else data
        self._held = b""
        at = 0
        while at < len(data) and self._state is not _State.DONE:
            before = at
            at = self._step(data, at, pieces)
            if at == before and self._state in _NEEDS_MORE:
                self._held = data[at:]
                self._limit()
                break
        if self._state is _State.DONE and at < len(data):
            self.keep_alive = False
        self.at_chunk = self._state is _State.SIZE and not self._held
        return pieces

    def close(self) -> bool:
        """The connection ended in good order. Whether the answer is complete now."""
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.DONE
        self.keep_alive = False
        return self.done

    def _limit(self) -> None:
        most = MAX_HEAD if self._state is _State.HEAD else MAX_LINE
        if len(self._held) > most:
            raise NotHttpError("a line of the answer is too long")

    def _step(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Take one element; returns where the next begins, `at` itself if it is not whole."""
        state = self._state
        if state is _State.HEAD:
            return self._head(data, at)
        if state is _State.SIZE:
            return self._size(data, at)
        if state is _State.UNTIL_CLOSE:
            pieces.append(data[at:])
            return len(data)
        if state in (_State.DATA, _State.LENGTH):
            piece = data[at : at + self._left]
            pieces.append(piece)
            self._left -= len(piece)
            if not self._left:
                self._state = _State.AFTER_DATA if state is _State.DATA else _State.DONE
            return at + len(piece)
        line, after = _line(data, at)
        if line is None:
            return at
        if state is _State.AFTER_DATA:
            if line:
                raise NotHttpError("a chunk is longer than it says")
            self._state = _State.SIZE
        elif not line:  # the blank line after the trailers
            self._state = _State.DONE
        return after

    def _size(self, data: bytes, at: int) -> int:
        line, after = _line(data, at)
        if line is None:
            return at
        digits = line.partition(b";")[0].strip()
        if not digits or digits.strip(b"0123456789abcdefABCDEF"):
            raise NotHttpError("a chunk does not say its length")
        self._left = int(digits, 16)
        self._state = _State.DATA if self._left else _State.TRAILER
        return after

    def _head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            if not b"HTTP/1.".startswith(data[at : at + 7]):
                raise NotHttpError("the answer does not begin like HTTP")
            return at
        first, *lines = data[at:end].split(b"\r\n")
        version, _, rest = first.partition(b" ")
        code = rest[:3]
        if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
            raise NotHttpError("the answer does not begin like HTTP")
        status = int(code)
        if 100 <= status < 200:
            return end + 4
        self.status = status
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip() or b"\0" in line:
                raise NotHttpError("a header line of the answer is broken")
            headers[name.lower()] = value.strip()
        self._read_headers(headers, version)
        return end + 4

    def _read_headers(self, headers: dict[bytes, bytes], version: bytes) -> None:
        kind = headers.get(b"content-type", b"").partition(b";")[0]
        self.content_type = kind.strip().lower().decode("latin-1")
        options = headers.get(b"connection", b"").lower()
        self.keep_alive = b"keep-alive" in options or (
            version != b"HTTP/1.0" and b"close" not in options
        )
        length = headers.get(b"content-length")
        if self.status in (204, 304):
            self._state = _State.DONE
        elif b"chunked" in headers.get(b"transfer-encoding", b"").lower():
            self._state = _State.SIZE
        elif length is not None:
            if not length.isdigit():
                raise NotHttpError("the answer's length is not a number")
            self._left = int(length)
            self._state = _State.LENGTH if self._left else _State.DONE
        else:
            self._state = _State.UNTIL_CLOSE
            self.keep_alive = False


_NEEDS_MORE = {_State.HEAD, _State.SIZE, _State.AFTER_DATA, _State.TRAILER}


def _line(data: bytes, at: int) -> tuple[bytes | None, int]:
    """The line at `at` without its CRLF (a bare LF is taken too), and where the next begins."""
    end = data.find(b"\n", at)
    if end < 0:
        return None, at
    return data[at:end].removesuffix(b"\r"), end + 1
