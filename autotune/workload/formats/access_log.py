"""Access logs of a proxy (nginx) that carry token counts.

Combined lines with `prompt_tokens=12 completion_tokens=34` (and, if there, `request_time=0.5`,
`session=...`) behind them, or one JSON object per line with the same names. A proxy writes a line
when the answer has ended; the arrival is that time less `request_time`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson

from autotune.canonical import Json
from autotune.workload.formats.cells import cell_count, cell_number
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.instants import Instants
from autotune.workload.formats.logs import WHOLE_SECONDS, Passed
from autotune.workload.formats.rows import MAX_LINE_BYTES, Unusable, check_lengths
from autotune.workload.formats.sessions import Sessions
from autotune.workload.trace import Request, Skipped

INPUT = ("prompt_tokens", "input_tokens", "tokens_in")
OUTPUT = ("completion_tokens", "output_tokens", "tokens_out")
TIME = ("msec", "time_iso8601", "time_local", "time", "ts", "@timestamp", "timestamp")
DURATION = ("request_time", "upstream_response_time", "rt", "duration_s")
SESSION = ("session", "session_id", "conversation_id")
ASKED = {"request", "request_uri", "uri", "path", "status"}
_COMBINED = re.compile(r'\S+ \S+ \S+ \[([^]]+)\] "([^"]*)" (\d{3})\b')
_PAIR = re.compile(r'([A-Za-z_@]\w*)="?([^\s"]+)"?')


class AccessLogFormat:
    """The access log of a proxy in front of an engine."""

    name = "access_log"
    title = "access log with token counts (combined with key=value, or json)"

    def sniff(self, head: Sequence[bytes]) -> float:
        for data in head:
            try:
                row = _fields(data)
            except Unusable:
                continue
            if row is not None and _first(row, INPUT) and _first(row, OUTPUT):
                timed = _first(row, TIME) is not None and "startTime" not in row
                if timed and ASKED & row.keys():
                    return 0.8
        return 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        yield About(meta={"source": self.name})
        reading = _Reading(options)
        for line in lines:
            if not line.data.strip():
                continue
            try:
                row = _fields(line.data)
                if row is None or _first(row, INPUT) is None:
                    reading.passed(line.number)
                    continue
                key, request, end_s = reading.request(row, line.number)
            except Unusable as problem:
                yield Skipped(line=line.number, reason=problem.reason)
                continue
            yield from reading.sessions.place(key, request, end_s)
        yield from reading.sessions.flush()
        yield reading.passed.about()
        yield reading.about()


class _Reading:
    def __init__(self, options: ReadOptions) -> None:
        self.passed = Passed()
        self.sessions = Sessions()
        self._scale = 1e-3 if options.time_unit == "ms" else 1.0
        self._instants = Instants()
        self._requests = 0
        self._timed = 0
        self._whole = True

    def request(self, row: Mapping[str, str], line: int) -> tuple[str, Request, float]:
        """(session key, request, end of the answer). Raises Unusable."""
        if not row.get("status", "200").startswith("2"):
            raise Unusable("failed_in_recording")
        inputs = cell_count(row, _first(row, INPUT) or INPUT[0])
        outputs = cell_count(row, _first(row, OUTPUT) or OUTPUT[0])
        if outputs == 0:
            raise Unusable("failed_in_recording")
        check_lengths(inputs, outputs, 0, 1)
        name = _first(row, TIME)
        if name is None:
            raise Unusable("missing_time")
        end_s = self._instants.value(row[name], name)
        spent_s = 0.0
        lasted = _first(row, DURATION)
        if lasted is not None:
            spent_s = cell_number(row, lasted) * self._scale
            self._timed += 1
        self._requests += 1
        self._whole &= end_s.is_integer() and spent_s.is_integer()
        request = Request(
            at_s=end_s - max(0.0, spent_s), input_tokens=inputs, output_tokens=outputs, line=line
        )
        return row.get(_first(row, SESSION) or "", ""), request, end_s

    def about(self) -> About:
        """What the times of the log are worth."""
        notes = []
        if self._timed < self._requests:
            notes.append(
                f"{self._requests - self._timed} lines have no request_time: the time of their "
                "answer's end stands for their arrival"
            )
        if self._requests > 1 and self._whole:
            notes.append(WHOLE_SECONDS)
        return About(notes=tuple(notes))


def _fields(data: bytes) -> dict[str, str] | None:
    """The fields of a line as text; None for a line of another kind. Raises Unusable."""
    if len(data) > MAX_LINE_BYTES:
        raise Unusable("line_too_long")
    try:
        text = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise Unusable("not_utf8") from None
    if text.startswith("{"):
        try:
            value: Json = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise Unusable("not_json") from None
        scalar = str | int | float
        return {k: str(v) for k, v in value.items() if isinstance(v, scalar) and v != "-"}
    found = _COMBINED.match(text)
    if found is None:
        return None
    pairs = {name: value for name, value in _PAIR.findall(text[found.end() :]) if value != "-"}
    return {"time_local": found[1], "request": found[2], "status": found[3], **pairs}


def _first(row: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((name for name in names if row.get(name)), None)


FORMAT = AccessLogFormat()
