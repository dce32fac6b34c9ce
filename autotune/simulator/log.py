"""Log lines in vLLM's or SGLang's form, every one marked as simulated."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from autotune.clock import Clock, SystemClock


class ServerLog:
    """Writes whole lines and flushes, so that a reader of the pipe sees them at once."""

    def __init__(self, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._stream = stream or sys.stdout
        self._clock = clock or SystemClock()
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

    def rank(self, text: str) -> None:
        """An INFO line of the process that runs the model."""
        self.say("scheduler", text, process="EngineCore")

    def traceback(self, error: str, where: str) -> None:
        """An uncaught exception: `error` is its last line, `where` the place in the source."""
        self.plain(f"Traceback (most recent call last):\n  {where} (simulated)\n{error}")

    def _levelled(self, level: str, source: str, text: str, process: str) -> None:
        stamp = self._clock.utcnow().strftime("%m-%d %H:%M:%S")
        for line in text.splitlines():
            self._write(f"({process} pid={self._pid}) {level} {stamp} [simulated {source}] {line}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class SglangLog(ServerLog):
    """The same in SGLang's form: a time, the rank of a child, no level and no process."""

    child_failed = False
    """Whether a child has failed: the server then ends itself by signal 9."""

    def rank(self, text: str) -> None:
        """A line of the first rank."""
        self._write(f"[{self._stamp()} TP0] {text} (simulated)")

    def plain(self, text: str, process: str = "APIServer") -> None:
        """Lines without a time."""
        for line in text.splitlines():
            self._write(line)

    def access(self, peer: str, method: str, path: str, status: int, reason: str) -> None:
        """An access line as uvicorn writes it."""
        request = f'"{method} {path} HTTP/1.1" {status} {reason}'
        self._write(f"[{self._stamp()}] INFO:     {peer} - {request} (simulated)")

    def child_fails(self, error: str, where: str) -> None:
        """A child ends with this exception; `where` is the function that raised it."""
        self.child_failed = True
        self._write(
            f"[{self._stamp()} TP0] Scheduler hit an exception: Traceback (most recent call last):"
        )
        self.plain(f'  File "sglang/srt/model_executor/model_runner.py", in {where} (simulated)')
        self.plain(error)
        words = "Received sigquit from a child process. It usually means the child failed."
        self._levelled("ERROR", "engine", words, "")

    def _levelled(self, level: str, source: str, text: str, process: str) -> None:
        word = "" if level == "INFO" else f"{level}: "
        for line in text.splitlines():
            self._write(f"[{self._stamp()}] {word}{line} (simulated)")

    def _stamp(self) -> str:
        return self._clock.utcnow().strftime("%Y-%m-%d %H:%M:%S")
