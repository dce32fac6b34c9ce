"""From a workload file to a `Trace`: recognised, sorted by time, all lines accounted for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.canonical import Json
from autotune.errors import InputError, Problem
from autotune.workload.formats.format import (
    About,
    Encoder,
    Format,
    Item,
    Line,
    ReadOptions,
    TimeUnit,
)
from autotune.workload.formats.registry import formats, named, recognise
from autotune.workload.formats.rows import MAX_LINE_BYTES
from autotune.workload.source import opened
from autotune.workload.timing import Arrivals, arriving
from autotune.workload.tokens import encoder_of, encoder_of_model
from autotune.workload.trace import Request, Skipped, Trace

HEAD_LINES = 50
MAX_LISTED = 20
MAX_TOKENS = 1_000_000_000
MAX_TIME_S = 1e11
"""Larger values are no lengths and times: a field was misread, or a file broken."""
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
    output_tokens: int | None = None,
    arrivals: Arrivals | None = None,
    keep_text: bool = False,
    tokenizer: Path | None = None,
    model: str | None = None,
) -> Trace:
    """Read a workload of any known format.

    Lenient by default: lines that cannot be used are in `Trace.skipped` with line number and
    reason; `strict` refuses a file that has any. `time_unit` and `block_size` (tokens per block id)
    override the format's own; `output_tokens` is the answer length of rows that state none.
    `arrivals` gives times to a file that records none, and replaces recorded ones. Text is counted
    with `tokenizer` (a folder or `tokenizer.json`), else with that of `model` if it lies on this
    machine, else estimated; it is dropped unless `keep_text`. Requests are ordered by time, ties in
    file order, the earliest at 0 s, times resolved to microseconds.

    Raises InputError: no such file, not a workload, unknown format, no usable request, no arrival
    times, strict and lines that cannot be used.
    """
    options = ReadOptions(
        time_unit=time_unit,
        block_size=block_size,
        output_tokens=output_tokens,
        keep_text=keep_text,
        encoder=encoder(tokenizer, model),
    )
    with items_of(path, format, options) as (chosen, items):
        found = _collect(items)
    check_found(path, chosen, len(found.requests), found, strict=strict, arrivals=arrivals)
    if arrivals is not None:
        found.requests = arriving(found.requests, arrivals)
        found.notes.append(arrivals.note)
    requests = ordered(found.requests)
    mute = sum(not request.messages for request in requests) if keep_text else 0
    if 0 < mute < len(requests):
        found.notes.append(
            f"{mute} of {len(requests)} requests have no text: token ids are sent for all"
        )
    span_s = requests[-1].at_s
    return Trace(
        requests=requests,
        block_size=found.block_size,
        source_format=chosen.name,
        skipped=tuple(found.skipped),
        notes=(
            *found.notes,
            *rate_notes(len(requests), span_s),
            *block_notes(len(requests), found.skipped),
        ),
        meta=found.meta,
    )


def encoder(tokenizer: Path | None, model: str | None) -> Encoder | None:
    """How text becomes tokens: by the tokenizer stated, else by the model's own if it is at hand.

    Raises InputError for a stated tokenizer that cannot be used.
    """
    if tokenizer is not None:
        return encoder_of(tokenizer)
    return None if model is None else encoder_of_model(model)


@contextmanager
def items_of(
    path: Path, name: str | None, options: ReadOptions
) -> Iterator[tuple[Format, Iterator[Item]]]:
    """(the format of a file, by name or recognised; its items, one after another).

    Raises InputError: no such file, not a workload, unknown format.
    """
    with opened(path) as lines:
        head = list(itertools.islice(lines, HEAD_LINES))
        chosen = named(name) if name is not None else _recognised(path, head)
        items = chosen.read(itertools.chain(head, lines), options)
        yield chosen, map(_plausible, items)


def _plausible(item: Item) -> Item:
    """The item, or why its numbers cannot be (`too_long`, `bad_time`)."""
    if isinstance(item, Request):
        if item.input_tokens > MAX_TOKENS or item.output_tokens > MAX_TOKENS:
            return Skipped(line=item.line, reason="too_long")
        if not -MAX_TIME_S < item.at_s < MAX_TIME_S:
            return Skipped(line=item.line, reason="bad_time")
    return item


def ordered(requests: Iterable[Request]) -> tuple[Request, ...]:
    """By time, ties in the order given, the earliest at 0 s, times rounded to microseconds."""
    by_time = sorted(requests, key=lambda request: request.at_s)
    if not by_time:
        return ()
    base = by_time[0].at_s
    return tuple(replace(request, at_s=round(request.at_s - base, 6)) for request in by_time)


@dataclass(slots=True)
class Told:
    """What a file told besides its requests."""

    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    meta: dict[str, Json] = field(default_factory=dict)
    block_size: int = 512
    untimed: bool = False

    def take(self, item: Skipped | About) -> None:
        """Add one item."""
        if isinstance(item, Skipped):
            self.skipped.append(item)
            return
        self.block_size = item.block_size or self.block_size
        self.untimed |= item.untimed
        self.notes.extend(item.notes)
        self.meta.update(item.meta)


@dataclass(slots=True)
class _Found(Told):
    requests: list[Request] = field(default_factory=list)


def _collect(items: Iterator[Item]) -> _Found:
    found = _Found()
    for item in items:
        if isinstance(item, Request):
            found.requests.append(item)
        else:
            found.take(item)
    return found


def check_found(
    path: Path,
    chosen: Format,
    requests: int,
    told: Told,
    *,
    strict: bool,
    arrivals: Arrivals | None,
) -> None:
    """Raises InputError for a file that cannot be used as it was read."""
    if strict and told.skipped:
        raise _refusal(path, told.skipped)
    if not requests:
        raise _nothing_usable(path, chosen, told.skipped)
    if told.untimed and arrivals is None:
        raise InputError(
            message=f"workload has no arrival times: {path}",
            seen=f"read as {chosen.name}: {requests:,} requests, none of which says when it came",
            hint="choose them: `workload: {arrivals: {process: poisson, rate: 2}}` in the study "
            "file, or `autotune workload convert FILE -o OUT --arrivals poisson --rate 2`",
        )


def _recognised(path: Path, head: Sequence[Line]) -> Format:
    if not any(line.data.strip() for line in head):
        raise InputError(message=f"workload is empty: {path}")
    huge = next((line.number for line in head if len(line.data) > MAX_LINE_BYTES), None)
    if huge is not None:
        raise InputError(
            message=f"not a workload: {path}",
            seen=f"line {huge} is longer than {MAX_LINE_BYTES >> 20} MiB",
            hint="a JSON list on one line becomes one object a line with `jq -c '.[]'`",
        )
    chosen = recognise([line.data for line in head])
    if chosen is not None:
        return chosen
    binary = any(b"\0" in line.data for line in head) or not any(map(_is_text, head))
    raise InputError(
        message=f"not a workload: {path}",
        seen="it is not a text file"
        if binary
        else f"the first lines fit none of the known formats: {', '.join(formats())}",
        hint=None if binary else "name the format if you know it",
    )


def _is_text(line: Line) -> bool:
    try:
        return bool(line.data.decode("utf-8").strip())
    except UnicodeDecodeError:
        return False


def _refusal(path: Path, skipped: Sequence[Skipped]) -> InputError:
    numbers = ", ".join(str(s.line) for s in skipped[:MAX_LISTED])
    more = f" and {len(skipped) - MAX_LISTED} more" if len(skipped) > MAX_LISTED else ""
    return InputError(
        message=f"workload has {len(skipped)} unusable lines: {path}",
        problems=[Problem(message=f"line {s.line}: {s.reason}") for s in skipped[:MAX_LISTED]],
        seen=f"lines {numbers}{more}",
        hint="mend them, or read leniently to leave them out",
    )


_HINTS: Mapping[str, str] = {
    "missing_output_tokens": "state one answer length for all: in the study file `workload: "
    "{output_tokens: 128}`, or `autotune workload convert FILE -o OUT --output-tokens 128`",
    "no_prompt_length": "vLLM tells prompts only at VLLM_LOGGING_LEVEL=DEBUG; or record live "
    "traffic with `autotune workload record`",
}


def _nothing_usable(path: Path, chosen: Format, skipped: Sequence[Skipped]) -> InputError:
    first: dict[str, int] = {}
    for skip in skipped:
        first.setdefault(skip.reason, skip.line)
    reasons = Counter(skip.reason for skip in skipped).most_common()
    told = "; ".join(f"{n} lines {why} (first: line {first[why]})" for why, n in reasons)
    return InputError(
        message=f"workload has no usable request: {path}",
        seen=f"read as {chosen.name}: {told or 'no rows'}",
        hint=next((_HINTS[why] for why, _ in reasons if why in _HINTS), None),
    )


def rate_notes(requests: int, span_s: float) -> list[str]:
    """A doubt about the unit of the times, where the rate is absurd."""
    if requests < 2 or span_s <= 0:
        return []
    rate = requests / span_s
    shape = f"{requests:,} requests in {span_s:,.6g} s ({rate:,.3g}/s)"
    if rate > FAST_RATE:
        return [f"{shape} is very fast: are the times in another unit?"]
    if span_s / (requests - 1) > SLOW_GAP_S:
        return [f"{shape} is very slow: are the times in another unit?"]
    return []


def block_notes(requests: int, skipped: Sequence[Skipped]) -> list[str]:
    """A doubt about the block size, where most rows do not fit it."""
    mismatched = sum(skip.reason == "hash_mismatch" for skip in skipped)
    if mismatched <= requests:
        return []
    return [
        f"{mismatched} rows have not one block id per block: state the block size if it is another"
    ]
