"""OpenAI batch output jsonl: `custom_id`, `response` {`status_code`, `body`}, `error`; no times.

Lengths come from `usage`. Prompts are not in this file, so nothing is known of shared prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.rows import (
    Row,
    Unusable,
    check_lengths,
    count,
    json_rows,
    objects_of,
    part,
)
from autotune.workload.trace import Request, Skipped

HTTP_OK = 200


class OpenAiBatchOutputFormat:
    """Answers of the batch interface."""

    name = "openai_batch_output"
    title = "OpenAI batch output jsonl (lengths from usage; no times)"

    def sniff(self, head: Sequence[bytes]) -> float:
        rows = objects_of(head)
        return 1.0 if any({"custom_id", "response"} <= row.keys() for row in rows) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        yield About(untimed=True, meta={"source": self.name})
        for row in json_rows(lines):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                yield _request(row)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)


def _request(row: Row) -> Request:
    if "response" not in row.data:
        raise Unusable("missing_response")
    response = part(row.data, "response")
    if row.data.get("error") is not None or response.get("status_code") != HTTP_OK:
        raise Unusable("failed_in_recording")
    usage = part(part(response, "body"), "usage")
    inputs, outputs = (
        count(usage, new if new in usage else old)
        for old, new in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
    )
    check_lengths(inputs, outputs, 0, 1)
    return Request(at_s=0.0, input_tokens=inputs, output_tokens=outputs, line=row.line)


FORMAT = OpenAiBatchOutputFormat()
