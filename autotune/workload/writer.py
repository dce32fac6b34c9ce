"""Canonical output: lengths, times and opaque block ids; text only where the trace carries it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import orjson

from autotune.canonical import Json
from autotune.workload.formats.canonical import HEADER, VERSION
from autotune.workload.trace import Request, Trace

ZST = ".zst"
_BATCH = 1000


def write_trace(path: Path, trace: Trace) -> None:
    """Write canonical jsonl, zstd-compressed if the name ends in `.zst`. Same trace, same bytes.
    A file that holds text can be read by its owner only.

    Raises OSError as the file system does.
    """
    if any(request.messages for request in trace.requests):
        path.touch(mode=0o600)
        path.chmod(0o600)
    if path.suffix == ZST:
        import zstandard

        with (
            path.open("wb") as raw,
            zstandard.ZstdCompressor(level=10).stream_writer(raw) as stream,
        ):
            for chunk in _chunks(trace):
                stream.write(chunk)
        return
    with path.open("wb") as plain:
        for chunk in _chunks(trace):
            plain.write(chunk)


def digest(trace: Trace) -> str:
    """Sixteen hex digits that identify the requests, whatever file they came from."""
    sha = hashlib.sha256(b"%d\n" % trace.block_size)
    for request in trace.requests:
        sha.update(orjson.dumps(_row(request)))
        sha.update(b"\n")
    return sha.hexdigest()[:16]


def _chunks(trace: Trace) -> Iterator[bytes]:
    header: dict[str, Json] = {
        HEADER: VERSION,
        "block_size": trace.block_size,
        "source": trace.source_format,
        **trace.meta,
    }
    yield orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE)
    for start in range(0, len(trace.requests), _BATCH):
        rows = trace.requests[start : start + _BATCH]
        yield b"".join(orjson.dumps(_row(r), option=orjson.OPT_APPEND_NEWLINE) for r in rows)


def _row(request: Request) -> dict[str, Json]:
    row: dict[str, Json] = {
        "t": round(request.at_s, 6),
        "in": request.input_tokens,
        "out": request.output_tokens,
    }
    if request.blocks:
        row["blocks"] = request.blocks
    if request.session is not None:
        row["session"] = request.session
    if request.turn:
        row["turn"] = request.turn
    if request.gap_s is not None:
        row["gap"] = request.gap_s
    if request.priority is not None:
        row["priority"] = request.priority
    match request.messages:
        case ():
            pass
        case (("", text),):
            row["text"] = text
        case messages:
            row["messages"] = [{"role": role, "content": text} for role, text in messages]
    return row
