"""LiteLLM spend logs and standard logging payloads (json list or jsonl).

`startTime`, `endTime` (epoch seconds or ISO), `prompt_tokens`, `completion_tokens`, `status`,
`call_type`, `cache_hit`, `session_id` or `trace_id`; `messages` when the proxy stores prompts.
Answers from LiteLLM's own cache never reached the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson

from autotune.canonical import Json
from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.instants import Instants
from autotune.workload.formats.rows import (
    Row,
    Unusable,
    check_lengths,
    count,
    json_rows,
    objects_of,
)
from autotune.workload.formats.sessions import Sessions
from autotune.workload.formats.text import Prompt, Texts, messages_of
from autotune.workload.trace import Request, Skipped

FIELDS = {"startTime", "prompt_tokens", "completion_tokens"}
OTHER_CALLS = ("embedding", "image", "speech", "transcription", "rerank", "moderation")


class LiteLlmFormat:
    """The request logs of a LiteLLM proxy."""

    name = "litellm"
    title = "LiteLLM spend or request logs (json, jsonl)"

    def sniff(self, head: Sequence[bytes]) -> float:
        rows = objects_of(head, arrays=True)
        if any(row.keys() >= FIELDS for row in rows):
            return 1.0
        text = b"".join(head)
        return 0.5 if all(b'"%s"' % name.encode() in text for name in FIELDS) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        texts, sessions, instants = Texts(options), Sessions(), Instants()
        yield About(block_size=texts.block_size, meta={"source": self.name})
        for row in json_rows(lines, arrays=True):
            if isinstance(row, Skipped):
                yield row
                continue
            try:
                request, end_s = _request(row, texts, instants)
            except Unusable as problem:
                yield Skipped(line=row.line, reason=problem.reason)
                continue
            key = row.data.get("session_id") or row.data.get("trace_id")
            yield from sessions.place("" if key is None else str(key), request, end_s)
        yield from sessions.flush()
        yield texts.about()


def _request(row: Row, texts: Texts, instants: Instants) -> tuple[Request, float | None]:
    """(the request, when it was answered). Raises Unusable."""
    data = row.data
    if any(kind in str(data.get("call_type", "")) for kind in OTHER_CALLS):
        raise Unusable("not_generation")
    if str(data.get("status", "success")).lower() in {"failure", "error"}:
        raise Unusable("failed_in_recording")
    if str(data.get("cache_hit", "")).lower() == "true":
        raise Unusable("answered_by_proxy_cache")
    inputs, outputs = count(data, "prompt_tokens"), count(data, "completion_tokens")
    if outputs == 0:
        raise Unusable("failed_in_recording")
    check_lengths(inputs, outputs, 0, 1)
    at_s = instants.value(data.get("startTime"), "startTime")
    ended = data.get("endTime")
    end_s = None if ended in (None, "") else instants.value(ended, "endTime")
    prompt = _prompt(data, inputs, texts)
    request = Request(
        at_s=at_s,
        input_tokens=inputs,
        output_tokens=outputs,
        blocks=prompt.blocks,
        line=row.line,
        messages=prompt.messages,
    )
    return request, end_s


def _prompt(data: Mapping[str, Json], tokens: int, texts: Texts) -> Prompt:
    """The prompt, if it was stored; the proxy writes `{}`, or a text of JSON, in its place."""
    messages = data.get("messages")
    if isinstance(messages, str):
        try:
            messages = orjson.loads(messages)
        except orjson.JSONDecodeError:
            messages = None
    if not isinstance(messages, list) or not messages:
        return Prompt(tokens, (), ())
    return texts.prompt(messages_of(messages), stated=tokens)


FORMAT = LiteLlmFormat()
