"""The bytes of a workload file as numbered lines: compression, byte order mark, line ends."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from autotune.errors import InputError
from autotune.spec.nearest import nearest
from autotune.workload.formats.format import Line
from autotune.workload.formats.rows import MAX_LINE_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 16
_PICKLE = b"\x80"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def check_is_file(path: Path) -> None:
    """Raises InputError, with the nearest names of the folder, unless `path` is a file."""
    if path.is_file():
        return
    if path.is_dir():
        raise InputError(message=f"workload is a folder: {path}", hint="name a file inside it")
    folder = path.parent
    names = sorted(p.name for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []
    near = nearest(path.name, names)
    raise InputError(
        message=f"workload not found: {path}",
        seen=None if folder.is_dir() else f"the folder {folder} does not exist",
        hint=f"did you mean {', '.join(near)}?" if near else None,
    )


@contextmanager
def opened(path: Path) -> Iterator[Iterator[Line]]:
    """The lines of a file, decompressed (gzip, zstd) by its first bytes.

    Raises InputError for what is no text file, cannot be read, or ends in the middle.
    """
    check_is_file(path)
    try:
        with path.open("rb") as raw, _decompressed(raw, path) as stream:
            yield _lines(stream, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(message=f"cannot read workload {path}", seen=reason) from error


@contextmanager
def _decompressed(raw: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_PICKLE) or path.suffix in {".pkl", ".pickle"}:
        raise InputError(
            message=f"workload is a Python pickle: {path}",
            seen="loading one would run whatever code it holds, so pickles are never read",
            hint="SGLang writes plain lines too: --log-requests --log-requests-format json",
        )
    if magic.startswith(_GZIP):
        import gzip

        with gzip.GzipFile(fileobj=raw) as stream:
            yield cast("BinaryIO", stream)
    elif magic.startswith(_ZSTD):
        yield cast("BinaryIO", io.BufferedReader(_ZstdStream(raw)))
    elif magic.startswith(_UTF16):
        raise InputError(
            message=f"workload is not UTF-8 text: {path}",
            seen="it starts with the mark of UTF-16",
            hint="convert it first: `iconv -f UTF-16 -t UTF-8`",
        )
    else:
        yield raw


class _ZstdStream(io.RawIOBase):
    """Decompressed bytes of one or more frames; unlike the library's own reader it tells a file
    that ends in the middle from a whole one. Raises EOFError for such a file and for garbage.
    """

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw = raw
        self._library = zstandard
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._rest = b""
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        while not self._ready:
            data = self._rest or self._raw.read(_CHUNK)
            if not data:
                if not self._frame.eof:
                    raise EOFError("the compressed data ends in the middle")
                return 0
            if self._frame.eof:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._ready = self._frame.decompress(data)
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from error
            self._rest = self._frame.unused_data if self._frame.eof else b""
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._ready))
        view[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


def _lines(stream: BinaryIO, path: Path) -> Iterator[Line]:
    number = 0
    try:
        while data := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
                _skip_line(stream)
            if number == 1:
                data = data.removeprefix(BOM)
            yield Line(number, data.rstrip(b"\r\n"))
    except (EOFError, zlib.error) as error:
        raise _broken(path, str(error)) from error


def _skip_line(stream: BinaryIO) -> None:
    while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
        pass


def _broken(path: Path, why: str) -> InputError:
    return InputError(
        message=f"compressed workload is broken: {path}",
        seen=why,
        hint="it may have been cut while it was copied",
    )
