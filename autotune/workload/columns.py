"""A workload as columns of numbers: what statistics need, in memory that does not follow from the
number of block ids per request. A million rows fit in a few dozen MB.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.workload.formats.format import Item, ReadOptions, TimeUnit
from autotune.workload.reader import (
    Told,
    block_notes,
    check_found,
    encoder,
    items_of,
    rate_notes,
    read_trace,
)
from autotune.workload.reuse import ReuseCounter
from autotune.workload.statistics import hit_tokens
from autotune.workload.timing import Arrivals
from autotune.workload.trace import Request, Skipped, Trace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

NO_TIMES = (
    "the file records no arrival times; before it can be replayed they must be chosen "
    "(`--arrivals poisson --rate 2`, or `workload: {arrivals: ...}` in the study file)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One entry per request, by time: arrival (s, the first at 0), prompt and answer tokens, and
    prompt tokens that an infinite prefix cache would hold (None without block ids). `timed` is
    False when the file records no times and none were chosen.
    """

    at_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    hit_tokens: Ints | None
    sessions: int
    block_size: int
    source_format: str
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    timed: bool = True

    @property
    def duration_s(self) -> float:
        """Time from the first to the last arrival."""
        return float(self.at_s[-1]) if len(self.at_s) else 0.0


def columns_of(trace: Trace) -> Columns:
    """The columns of a trace."""
    import numpy as np

    requests = trace.requests
    known = any(request.blocks for request in requests)
    hits = hit_tokens(requests, trace.block_size) if known else None
    return Columns(
        at_s=np.array([r.at_s for r in requests], dtype=np.float64),
        input_tokens=np.array([r.input_tokens for r in requests], dtype=np.int64),
        output_tokens=np.array([r.output_tokens for r in requests], dtype=np.int64),
        hit_tokens=None if hits is None else np.array(hits, dtype=np.int64),
        sessions=len({r.session for r in requests if r.session is not None}),
        block_size=trace.block_size,
        source_format=trace.source_format,
        skipped=trace.skipped,
        notes=trace.notes,
    )


def read_columns(
    path: Path,
    *,
    format: str | None = None,  # noqa: A002 - the word users know from the study file
    strict: bool = False,
    time_unit: TimeUnit | None = None,
    block_size: int | None = None,
    output_tokens: int | None = None,
    arrivals: Arrivals | None = None,
    tokenizer: Path | None = None,
    model: str | None = None,
) -> Columns:
    """Read a workload of any known format row by row, keeping numbers only.

    Arguments and errors as for `reader.read_trace`, but a file without arrival times is read, and
    said to have none. Prefix reuse counts rows in file order: where times are not, what a request
    shares is counted for the one that stands later in the file.
    """
    if arrivals is not None:
        return columns_of(
            read_trace(
                path, format=format, strict=strict, time_unit=time_unit, block_size=block_size,
                output_tokens=output_tokens, arrivals=arrivals, tokenizer=tokenizer, model=model,
            )
        )  # fmt: skip
    options = ReadOptions(
        time_unit=time_unit,
        block_size=block_size,
        output_tokens=output_tokens,
        encoder=encoder(tokenizer, model),
        raw_blocks=True,
    )
    filling = _Filling()
    with items_of(path, format, options) as (chosen, items):
        for item in items:
            filling.take(item)
    told = filling.told
    timed = not told.untimed
    check_found(
        path, chosen, len(filling.at_s), replace(told, untimed=False), strict=strict, arrivals=None
    )
    columns = filling.columns(chosen.name, timed=timed)
    span_s = columns.duration_s
    notes = [*told.notes, *rate_notes(len(columns.at_s), span_s)]
    notes += block_notes(len(columns.at_s), told.skipped)
    if not timed:
        notes.append(NO_TIMES)
    return replace(columns, notes=tuple(notes))


class _Filling:
    """Columns that grow row by row."""

    def __init__(self) -> None:
        self.told = Told()
        self.at_s = array("d")
        self._inputs = array("q")
        self._outputs = array("q")
        self._sessions: set[str] = set()
        self._reuse = ReuseCounter()

    def take(self, item: Item) -> None:
        if not isinstance(item, Request):
            self.told.take(item)
            return
        self.at_s.append(item.at_s)
        self._inputs.append(item.input_tokens)
        self._outputs.append(item.output_tokens)
        self._reuse.add(item.blocks)
        if item.session is not None:
            self._sessions.add(item.session)

    def columns(self, source_format: str, *, timed: bool) -> Columns:
        """The columns by time, ties in file order."""
        import numpy as np

        at_s = np.frombuffer(self.at_s, dtype=np.float64)
        inputs = np.frombuffer(self._inputs, dtype=np.int64)
        outputs = np.frombuffer(self._outputs, dtype=np.int64)
        leading = self._reuse.leading()
        hits = None
        if leading is not None:
            hits = np.minimum(leading * self.told.block_size, inputs)
        if np.any(at_s[1:] < at_s[:-1]):
            order = np.argsort(at_s, kind="stable")
            at_s, inputs, outputs = at_s[order], inputs[order], outputs[order]
            hits = None if hits is None else hits[order]
        return Columns(
            at_s=np.round(at_s - at_s[0], 6),
            input_tokens=inputs,
            output_tokens=outputs,
            hit_tokens=hits,
            sessions=len(self._sessions),
            block_size=self.told.block_size,
            source_format=source_format,
            skipped=tuple(self.told.skipped),
            timed=timed,
        )
