"""From a workload file to a `Trace`: recognised, sorted by time, all lines accounted for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.canonical import Json
from autotune.errors import InputError, Problem
from autotune.workload.formats.format import About, Format, Item, Line, ReadOptions, TimeUnit
from autotune.workload.formats.registry import formats, named, recognise
from autotune.workload.source import opened
from autotune.workload.trace import Request, Skipped, Trace

HEAD_LINES = 50
MAX_LISTED = 20
SLOW_GAP_S = 60.0
FAST_RATE = 1000.0
"""Mean gaps and mean rates above these are told to the user: the time unit may be wrong."""


def read_trace(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002 - the word users know from the study file
    strict: bool = False,
    time_unit: TimeUnit | None = None,
    block_size: int | None = None,
) -> Trace:
    """Read a workload of any known format.

    Lenient by default: lines that cannot be used are in `Trace.skipped` with line number and
    reason; `strict` refuses a file that has any. `time_unit` and `block_size` (tokens per block id)
    override the format's own. Requests are ordered by time, ties in file order, the earliest at
    0 s, times resolved to microseconds.

    Raises InputError: no such file, not a workload, unknown format, no usable request, strict and
    lines that cannot be used.
    """
    options = ReadOptions(time_unit=time_unit, block_size=block_size)
    with opened(path) as lines:
        head = list(itertools.islice(lines, HEAD_LINES))
        chosen = named(format) if format is not None else _recognised(path, head)
        found = _collect(chosen.read(itertools.chain(head, lines), options))
    if strict and found.skipped:
        raise _refusal(path, found.skipped)
    if not found.requests:
        raise _nothing_usable(path, chosen, found.skipped)
    requests = ordered(found.requests)
    return Trace(
        requests=requests,
        block_size=found.block_size,
        source_format=chosen.name,
        skipped=tuple(found.skipped),
        notes=(*found.notes, *_rate_notes(requests), *_block_notes(requests, found.skipped)),
        meta=found.meta,
    )


def ordered(requests: Iterable[Request]) -> tuple[Request, ...]:
    """By time, ties in the order given, the earliest at 0 s, times rounded to microseconds."""
    by_time = sorted(requests, key=lambda request: request.at_s)
    if not by_time:
        return ()
    base = by_time[0].at_s
    return tuple(replace(request, at_s=round(request.at_s - base, 6)) for request in by_time)


@dataclass(slots=True)
class _Found:
    requests: list[Request] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    meta: dict[str, Json] = field(default_factory=dict)
    block_size: int = 512


def _collect(items: Iterator[Item]) -> _Found:
    found = _Found()
    for item in items:
        match item:
            case Request():
                found.requests.append(item)
            case Skipped():
                found.skipped.append(item)
            case About():
                found.block_size = item.block_size or found.block_size
                found.notes.extend(item.notes)
                found.meta.update(item.meta)
    return found


def _recognised(path: Path, head: Sequence[Line]) -> Format:
    if not any(line.data.strip() for line in head):
        raise InputError(message=f"workload is empty: {path}")
    chosen = recognise([line.data for line in head])
    if chosen is not None:
        return chosen
    binary = any(b"\0" in line.data for line in head)
    raise InputError(
        message=f"not a workload: {path}",
        seen="it is not a text file"
        if binary
        else f"the first lines fit none of the known formats: {', '.join(formats())}",
        hint=None if binary else "name the format if you know it",
    )


def _refusal(path: Path, skipped: Sequence[Skipped]) -> InputError:
    numbers = ", ".join(str(s.line) for s in skipped[:MAX_LISTED])
    more = f" and {len(skipped) - MAX_LISTED} more" if len(skipped) > MAX_LISTED else ""
    return InputError(
        message=f"workload has {len(skipped)} unusable lines: {path}",
        problems=[Problem(message=f"line {s.line}: {s.reason}") for s in skipped[:MAX_LISTED]],
        seen=f"lines {numbers}{more}",
        hint="mend them, or read leniently to leave them out",
    )


def _nothing_usable(path: Path, chosen: Format, skipped: Sequence[Skipped]) -> InputError:
    first: dict[str, int] = {}
    for skip in skipped:
        first.setdefault(skip.reason, skip.line)
    reasons = Counter(skip.reason for skip in skipped).most_common()
    told = "; ".join(f"{n} lines {why} (first: line {first[why]})" for why, n in reasons)
    return InputError(
        message=f"workload has no usable request: {path}",
        seen=f"read as {chosen.name}: {told or 'no rows'}",
    )


def _rate_notes(requests: Sequence[Request]) -> list[str]:
    span = requests[-1].at_s
    if len(requests) < 2 or span <= 0:
        return []
    rate = len(requests) / span
    shape = f"{len(requests):,} requests in {span:,.6g} s ({rate:,.3g}/s)"
    if rate > FAST_RATE:
        return [f"{shape} is very fast: are the times in another unit?"]
    if span / (len(requests) - 1) > SLOW_GAP_S:
        return [f"{shape} is very slow: are the times in another unit?"]
    return []


def _block_notes(requests: Sequence[Request], skipped: Sequence[Skipped]) -> list[str]:
    mismatched = sum(skip.reason == "hash_mismatch" for skip in skipped)
    if mismatched <= len(requests):
        return []
    return [
        f"{mismatched} rows have not one block id per block: state the block size if it is another"
    ]
