"""OpenAI batch input jsonl: `custom_id`, `method`, `url`, `body`; no times.

The body is a chat, completion or responses request. Its answer length is the largest it allows
(`max_completion_tokens`, `max_tokens`, `max_output_tokens`), for the answers are in another file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.outputs import output_tokens
from autotune.workload.formats.rows import Row, Unusable, json_rows, objects_of, part
from autotune.workload.formats.text import Texts, prompt_of
from autotune.workload.trace import Request, Skipped

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class OpenAiBatchFormat:
    """Requests of the batch interface."""

    name = "openai_batch"
    title = "OpenAI batch input jsonl (no times)"

    def sniff(self, head: Sequence[bytes]) -> float:
        return 1.0 if any({"custom_id", "body"} <= row.keys() for row in objects_of(head)) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        texts = Texts(options)
        yield About(block_size=texts.block_size, untimed=True, meta={"source": self.name})
        found = 0
        for row in json_rows(lines):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                yield _request(row, texts, options)
                found += 1
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
        yield texts.about()
        if found:
            note = "answers are taken as long as the requests allow; the output file knows better"
            yield About(notes=(note,))


def _request(row: Row, texts: Texts, options: ReadOptions) -> Request:
    if "embeddings" in str(row.data.get("url", "")):
        raise Unusable("not_generation")
    body = part(row.data, "body")
    prompt = texts.prompt(prompt_of(body), tools=body.get("tools"))
    return Request(
        at_s=0.0,
        input_tokens=prompt.tokens,
        output_tokens=output_tokens(body, LIMITS, options),
        blocks=prompt.blocks,
        line=row.line,
        messages=prompt.messages,
    )


FORMAT = OpenAiBatchFormat()
