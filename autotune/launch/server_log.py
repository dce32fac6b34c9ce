"""The server's log: written masked, for its owner's eyes only; read from its end or as it grows."""

from __future__ import annotations

import codecs
import os
import re
import threading
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from autotune.engines.redaction import mask

_LONGEST_LINE = 1 << 20
_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")


class MaskedLog:
    """Takes the raw output of a server in pieces and writes it line by line, masked.

    Thread-safe. A disk that is full loses lines, never blocks the server: `error` keeps the reason.
    An older file of the same name is kept as `NAME.1`, `NAME.2`, ...
    """

    def __init__(self, path: Path, secrets: Collection[str]) -> None:
        self.path = path
        self.error: OSError | None = None
        self._secrets = tuple(secrets)
        self._lock = threading.Lock()
        self._set_aside()
        self._file: BinaryIO | None = self._open()
        self._reset()

    def feed(self, data: bytes) -> None:
        """Take the next piece of output; ignored after `close`."""
        with self._lock:
            if self._file is not None:
                self._take(self._decoder.decode(data))

    def restart(self) -> None:
        """Begin again with an empty file, open even if it was closed."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = self._open()
            self._reset()

    def close(self) -> None:
        """Write what is left of the last line and close; idempotent."""
        with self._lock:
            if self._file is None:
                return
            self._take(self._decoder.decode(b"", final=True))
            if self._rest:
                self._write([self._rest.rstrip("\r")])
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.fchmod(handle, 0o600)
        return os.fdopen(handle, "wb", buffering=0)

    def _set_aside(self) -> None:
        if self.path.exists():
            number = 1
            while (older := self.path.with_name(f"{self.path.name}.{number}")).exists():
                number += 1
            self.path.rename(older)

    def _reset(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._dropping = False

    def _take(self, text: str) -> None:
        *lines, self._rest = _LINE_END.split(self._rest + text)
        if lines and self._dropping:
            self._dropping = False
            lines = lines[1:]
        self._write(lines)
        if self._dropping:
            self._rest = ""
        elif len(self._rest) > _LONGEST_LINE:
            # Cutting first and masking each half could leave half a secret: the tail is dropped.
            self._write([self._rest[:_LONGEST_LINE] + " (cut: longer than 1 MiB)"])
            self._rest, self._dropping = "", True

    def _write(self, lines: list[str]) -> None:
        if not lines or self._file is None:
            return
        text = "".join(mask(line, self._secrets) + "\n" for line in lines)
        try:
            self._file.write(text.encode())
        except OSError as error:
            self.error = error


class LogFollower:
    """Reads a growing log from its beginning, whole lines only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """The lines that were completed since the last call; empty if there is no file."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def size(self) -> int:
        """Bytes in the file now; 0 if there is none."""
        if self._path is None or not self._path.exists():
            return 0
        return self._path.stat().st_size


def log_tail(path: Path | None, count: int = 50) -> list[str]:
    """The last `count` lines of a log, oldest first; empty if there is no file."""
    if path is None or count <= 0:
        return []
    try:
        with path.open("rb") as file:
            position = file.seek(0, os.SEEK_END)
            data = b""
            while position > 0 and data.count(b"\n") <= count:
                step = min(64 * 1024, position)
                position -= step
                file.seek(position)
                data = file.read(step) + data
    except FileNotFoundError:
        return []
    lines = data.decode(errors="replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return lines[-count:]


def log_head(path: Path, count: int) -> list[str]:
    """The first `count` lines of a log; empty if there is no file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n") for line in islice(file, count)]
    except FileNotFoundError:
        return []
