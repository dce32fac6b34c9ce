"""Log lines in vLLM's form, every one marked as simulated."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import TextIO


class ServerLog:
    """Writes whole lines and flushes, so that a reader of the pipe sees them at once."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._pid = os.getpid()

    def say(self, source: str, text: str, process: str = "APIServer") -> None:
        """An INFO line; `source` is the file name vLLM would show."""
        self._levelled("INFO", source, text, process)

    def caution(self, source: str, text: str, process: str = "APIServer") -> None:
        """A WARNING line."""
        self._levelled("WARNING", source, text, process)

    def fail(self, source: str, text: str, process: str = "EngineCore") -> None:
        """An ERROR line."""
        self._levelled("ERROR", source, text, process)

    def plain(self, text: str, process: str = "APIServer") -> None:
        """Lines without level, as an uncaught traceback prints them."""
        for line in text.splitlines():
            self._write(f"({process} pid={self._pid}) {line}")

    def access(self, peer: str, method: str, path: str, status: int, reason: str) -> None:
        """An access line as uvicorn writes it."""
        self._write(
            f'(APIServer pid={self._pid}) INFO:     {peer} - "{method} {path} HTTP/1.1" '
            f"{status} {reason} (simulated)"
        )

    def _levelled(self, level: str, source: str, text: str, process: str) -> None:
        stamp = datetime.now(UTC).strftime("%m-%d %H:%M:%S")
        for line in text.splitlines():
            self._write(f"({process} pid={self._pid}) {level} {stamp} [simulated {source}] {line}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()
