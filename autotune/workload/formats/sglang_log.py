"""SGLang request logs: JSON lines (`--log-requests-format json`), and the text form.

A line may have a date in front. `request.finished` holds lengths and the latency, and
`request.received` the arrival: {`timestamp`, `event`, `rid`, `obj` {`text`, `input_ids`}, `out`
{`meta_info` {`prompt_tokens`, `completion_tokens`, `e2e_latency` (s), `finish_reason`}}}. Without
the received line the arrival is the finish less the latency. Dumps (`.pkl`) are never loaded.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson

from autotune.canonical import Json
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.instants import Instants
from autotune.workload.formats.logs import Passed
from autotune.workload.formats.rows import (
    MAX_LINE_BYTES,
    Unusable,
    check_lengths,
    count,
    number,
    part,
    why_not_json,
)
from autotune.workload.formats.text import Prompt, Texts
from autotune.workload.trace import Request, Skipped

RECEIVED, FINISHED = "request.received", "request.finished"
CUT = 2048
"""Log level 2 cuts texts and id lists to this length, with `...` in their middle."""
_DATE = re.compile(rb"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_FINISH = re.compile(rb"Finish: obj=")
_FIELDS = {
    name: re.compile(rb"'%s': ([-+.\deE]+)" % name.encode())
    for name in ("prompt_tokens", "completion_tokens", "e2e_latency")
}
_ABORTED = re.compile(rb"'type': 'abort'")


class SglangLogFormat:
    """The request log of an SGLang server."""

    name = "sglang_log"
    title = "SGLang request log (json or text lines)"

    def sniff(self, head: Sequence[bytes]) -> float:
        for data in head:
            if _FINISH.search(data) and b"'meta_info'" in data:
                return 0.9
            try:
                entry = _entry(data)
            except Unusable:
                continue
            if entry is not None and entry.get("event") in (RECEIVED, FINISHED):
                return 1.0
        return 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        reading = _Reading(options)
        yield About(block_size=reading.texts.block_size, meta={"source": self.name})
        for line in lines:
            if not line.data.strip():
                continue
            try:
                request = reading.request(line)
            except Unusable as problem:
                yield Skipped(line=line.number, reason=problem.reason)
                continue
            if request is not None:
                yield request
        yield reading.texts.about()
        yield reading.passed.about()
        yield reading.about()


class _Reading:
    """Requests received and not yet finished."""

    def __init__(self, options: ReadOptions) -> None:
        self.texts = Texts(options)
        self.passed = Passed()
        self._instants = Instants()
        self._received: dict[str, float] = {}

    def request(self, line: Line) -> Request | None:
        """The request that a line finishes, None for other lines. Raises Unusable."""
        if _FINISH.search(line.data):
            return self._printed(line)
        data = _entry(line.data)
        event = None if data is None else data.get("event")
        if data is None or event not in (RECEIVED, FINISHED):
            self.passed(line.number)
            return None
        at_s = self._instants.value(data.get("timestamp"), "timestamp")
        if event == RECEIVED:
            self._received[str(data.get("rid"))] = at_s
            return None
        return self._finished(data, at_s, line.number)

    def about(self) -> About:
        """Requests without an end."""
        if not self._received:
            return About()
        return About(notes=(f"{len(self._received)} requests have no end in the log: left out",))

    def _finished(self, data: Mapping[str, Json], end_s: float, line: int) -> Request:
        begun = self._received.pop(str(data.get("rid")), None)
        about = part(part(data, "out"), "meta_info")
        reason = about.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") == "abort":
            raise Unusable("failed_in_recording")
        inputs, outputs = count(about, "prompt_tokens"), count(about, "completion_tokens")
        check_lengths(inputs, outputs, 0, 1)
        if begun is None:
            begun = end_s - number(about, "e2e_latency")
        prompt = self._prompt(part(data, "obj"), inputs)
        return Request(
            at_s=begun,
            input_tokens=inputs,
            output_tokens=outputs,
            blocks=prompt.blocks,
            line=line,
            messages=prompt.messages,
        )

    def _prompt(self, asked: Mapping[str, Json], tokens: int) -> Prompt:
        ids, text = asked.get("input_ids"), asked.get("text")
        if isinstance(ids, list) and ids:
            known = ids[: ids.index("...")] if "..." in ids else ids
            if all(type(i) is int and 0 <= i < 2**32 for i in known):
                messages = [("", text)] if isinstance(text, str) else []
                return self.texts.of(array("I", known).tobytes(), messages, stated=tokens)
        if isinstance(text, str) and text.strip():
            half = CUT // 2
            cut = len(text) == CUT + 3 and text[half : half + 3] == "..."
            if not cut:
                return self.texts.prompt([("", text)], stated=tokens)
            return self.texts.of(self.texts.encoded([("", text[:half])]), stated=tokens)
        return Prompt(tokens, (), ())

    def _printed(self, line: Line) -> Request:
        """A request of the text form. Raises Unusable."""
        dated = _DATE.match(line.data.lstrip())
        if dated is None:
            raise Unusable("missing_timestamp")
        if _ABORTED.search(line.data):
            raise Unusable("failed_in_recording")
        found: dict[str, Json] = {}
        for name, pattern in _FIELDS.items():
            values = pattern.findall(line.data)
            if not values:
                raise Unusable(f"missing_{name}")
            try:
                found[name] = float(values[-1])
            except ValueError:
                raise Unusable(f"bad_{name}") from None
        inputs, outputs = count(found, "prompt_tokens"), count(found, "completion_tokens")
        check_lengths(inputs, outputs, 0, 1)
        end_s = self._instants.of(dated.group(1).decode(), "timestamp")
        at_s = end_s - number(found, "e2e_latency")
        return Request(at_s=at_s, input_tokens=inputs, output_tokens=outputs, line=line.number)


def _entry(data: bytes) -> Mapping[str, Json] | None:
    """The JSON object of a line, whatever stands in front of it; None for other lines.

    Raises Unusable: `not_json`, `not_utf8`, `line_too_long`.
    """
    start = data.find(b"{")
    if start < 0 or b'"event"' not in data:
        return None
    if len(data) > MAX_LINE_BYTES:
        raise Unusable("line_too_long")
    try:
        value = orjson.loads(data[start:])
    except orjson.JSONDecodeError:
        raise Unusable(why_not_json(data)) from None
    return value if isinstance(value, dict) else None


FORMAT = SglangLogFormat()
