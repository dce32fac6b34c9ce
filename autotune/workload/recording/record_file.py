"""The file that a recording appends to, line by line, and puts aside when it is large."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from autotune.canonical import Json
from autotune.workload.formats.canonical import HEADER, VERSION
from autotune.workload.recording.prefixes import BLOCK_SIZE


class RecordFile:
    """Canonical jsonl, readable by its owner only. Every line is written when it is given.

    A file that has reached `rotate_bytes` becomes `NAME.1.jsonl` (then `.2`, ...) and a new one
    begins, with a header of its own; times and block ids go on, so that the parts one after the
    other are one recording. Methods raise OSError as the file system does.
    """

    def __init__(self, path: Path, *, rotate_bytes: int) -> None:
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._part = 0
        self._size = 0
        self._torn = False
        self._file = self._begin()
        self.rotated: list[Path] = []

    @property
    def paths(self) -> list[Path]:
        """All files written, oldest first."""
        return [*self.rotated, self._path]

    def write(self, row: dict[str, Json]) -> None:
        """Append a row."""
        if self._size >= self._rotate_bytes:
            self._rotate()
        self._append(row)

    def close(self) -> None:
        """Write through to the disk; nothing may be written after."""
        if self._file >= 0:
            file, self._file = self._file, -1
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def _begin(self) -> int:
        # Exclusive: a file that somebody else has put there meanwhile is not overwritten
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._part += 1
        self._size = 0
        self._file = file
        self._append(
            {
                HEADER: VERSION,
                "block_size": BLOCK_SIZE,
                "source": "recorded",
                "title": "live traffic as recorded: lengths, times, opaque block ids",
                "part": self._part,
            }
        )
        return file

    def _append(self, row: dict[str, Json]) -> None:
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        # After a disk was full in the middle of a line, the next one stands on its own
        rest = b"\n" + line if self._torn else line
        while rest:
            written = os.write(self._file, rest)
            self._torn = written < len(rest)
            self._size += written
            rest = rest[written:]

    def _rotate(self) -> None:
        name = f"{self._path.stem}.{self._part}{self._path.suffix}"
        aside = self._path.with_name(name)
        if aside.exists():
            raise FileExistsError(17, "File exists", str(aside))
        self.close()
        self._path.rename(aside)
        self.rotated.append(aside)
        self._begin()
