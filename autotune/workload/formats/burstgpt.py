"""BurstGPT csv: `Timestamp` (seconds, not from zero), `Request tokens`, `Response tokens`, ...

Both layouts of HPMLL/BurstGPT: six columns, and eight with `Session ID` and `Elapsed time`. A
`Response tokens` of 0 marks a request that failed when it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from autotune.workload.formats.cells import cell_count, cell_number, csv_rows, header_of
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.rows import Unusable, check_lengths
from autotune.workload.formats.sessions import Sessions
from autotune.workload.trace import Request, Skipped

COLUMNS = {"timestamp", "request_tokens", "response_tokens"}


class BurstGptFormat:
    """The csv files of BurstGPT."""

    name = "burstgpt"
    title = "BurstGPT (csv, six or eight columns)"

    def sniff(self, head: Sequence[bytes]) -> float:
        return 1.0 if set(header_of(head)) >= COLUMNS else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        yield About(meta={"source": self.name})
        scale = 1e-3 if options.time_unit == "ms" else 1.0
        sessions = Sessions()
        for row in csv_rows(lines):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                request, end_s = _request(row.data, row.line, scale)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
                continue
            yield from sessions.place(row.data.get("session_id", "").strip(), request, end_s)
        yield from sessions.flush()


def _request(data: Mapping[str, str], line: int, scale: float) -> tuple[Request, float | None]:
    """(the request, when it was answered). Raises Unusable."""
    inputs = cell_count(data, "request_tokens")
    outputs = cell_count(data, "response_tokens")
    at_s = cell_number(data, "timestamp") * scale
    if outputs == 0:
        raise Unusable("failed_in_recording")
    check_lengths(inputs, outputs, 0, 1)
    elapsed = data.get("elapsed_time", "").strip()
    end_s = at_s + cell_number(data, "elapsed_time") * scale if elapsed else None
    return Request(at_s=at_s, input_tokens=inputs, output_tokens=outputs, line=line), end_s


FORMAT = BurstGptFormat()
