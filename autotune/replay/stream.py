"""From stamped bytes to a `RequestRecord`: what counts as a token, an end and a failure.

Token-bearing is an event with text (completions), content, reasoning or tool calls (chat), or, when
its text is empty, one that raises the cumulative `usage.completion_tokens`. Role-only and
usage-only events carry no token; a trailing usage event therefore never lengthens a request.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from autotune.replay.exchange import Exchange
from autotune.replay.records import Failure, RequestRecord
from autotune.replay.shard import Job
from autotune.replay.sse import SseEvent, SseParser

_DETAIL_LIMIT = 200
GARBAGE_TOKENS = 64
"""Broken logits (NaN) make an engine choose token 0 for ever, which most vocabularies write as `!`.
Only a whole answer of that, at least this long, is called garbage: other tokens repeat in healthy
greedy answers to synthetic prompts too.
"""
_GARBAGE_TEXT = "!\ufffd"
_OVER_LIMIT = re.compile(
    r"(maximum|model'?s?) (context|model|sequence|input) length|max[_-]model[_-]len"
    r"|context[_ ](length|window)|longer than the (maximum|model)|prompt is too long",
    re.IGNORECASE,
)
_NUMBER_LIST = re.compile(r"\d+(?:\s*,\s*\d+){3,}")


class AnswerReader:
    """Reads one streamed answer, piece by piece. Stamps are absolute monotonic seconds.

    Keeps counts and times only; text is looked at and dropped.
    """

    __slots__ = (
        "_only_garbage", "_parser", "_usage_seen_before", "answered_as", "broken", "cached_tokens",
        "done", "error", "events", "finish_reason", "first_event_tokens", "first_token",
        "first_visible", "input_tokens", "last_token", "max_gap", "output_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser = SseParser()
        self._usage_seen_before = False
        self._only_garbage: bool | None = None
        self.answered_as: str | None = None
        self.broken: str | None = None
        self.error: str | None = None
        self.done = False
        self.finish_reason: str | None = None
        self.events = 0
        self.first_event_tokens = 1
        self.first_token: float | None = None
        self.first_visible: float | None = None
        self.last_token: float | None = None
        self.max_gap: float | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None

    def feed(self, stamp: float, chunk: bytes) -> None:
        """Take one read."""
        for event in self._parser.feed(chunk):
            self._take(stamp, event)

    def finish(self, stamp: float) -> None:
        """The stream ended. An event that lacks its blank line counts only if it is whole."""
        broken = self.broken
        for event in self._parser.finish():
            self._take(stamp, event)
        self.broken = broken

    def _take(self, stamp: float, event: SseEvent) -> None:
        if event.data == b"[DONE]":
            self.done = True
            return
        payload = _parse(event.data)
        if event.name == "error" or (payload is not None and _is_error(payload)):
            self.error = self.error or describe_error(payload, event.data)
            return
        if payload is None:
            self.broken = self.broken or "an event is not a JSON object"
            return
        usage = payload.get("usage")
        rose = self._take_usage(usage) if isinstance(usage, dict) else False
        choices = payload.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            choice = choices[0]
            finish = choice.get("finish_reason")
            visible, bears = _text_of(choice)
            # Without running usage the first figure comes with the last event: no token by itself.
            if not bears and rose and (finish is None or self._usage_seen_before):
                bears = True
            if bears:
                self._count(stamp, visible)
                if self._only_garbage is not False:
                    self._look_for_garbage(choice)
            if finish is not None:
                self.finish_reason = str(finish)
        if isinstance(usage, dict):
            self._usage_seen_before = True
        if self.answered_as is None and isinstance(name := payload.get("model"), str):
            self.answered_as = name

    @property
    def incomplete(self) -> bool:
        """Whether part of an event was read that may yet count with the stamp of its last read."""
        return self._parser.incomplete

    @property
    def garbage(self) -> bool:
        """Whether the whole answer is the mark of broken logits."""
        return bool(self._only_garbage) and (self.output_tokens or 0) >= GARBAGE_TOKENS

    def _look_for_garbage(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        text = choice.get("text") or (delta.get("content") if isinstance(delta, dict) else None)
        tokens = choice.get("token_ids")
        sound = not isinstance(text, str) or bool(text.strip(_GARBAGE_TEXT))
        self._only_garbage = not sound and not (isinstance(tokens, list) and any(tokens))

    def _take_usage(self, usage: dict[str, Any]) -> bool:
        """Note the usage; True if the number of output tokens rose."""
        before = self.output_tokens or 0
        if isinstance(total := usage.get("completion_tokens"), int):
            self.output_tokens = total
        if isinstance(prompt := usage.get("prompt_tokens"), int):
            self.input_tokens = prompt
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(cached := details.get("cached_tokens"), int):
            self.cached_tokens = cached
        return (self.output_tokens or 0) > before

    def _count(self, stamp: float, visible: bool) -> None:
        self.events += 1
        if self.first_token is None:
            self.first_token = stamp
            self.first_event_tokens = max(1, self.output_tokens or 1)
        elif self.last_token is not None:
            self.max_gap = max(self.max_gap or 0.0, stamp - self.last_token)
        self.last_token = stamp
        if visible and self.first_visible is None:
            self.first_visible = stamp


def record_of(
    job: Job,
    exchange: Exchange,
    reader: AnswerReader,
    *,
    due: float,
    start: float,
    worker: int,
    check_length: bool,
) -> RequestRecord:
    """The record of an ended exchange whose bytes were all fed to `reader`.

    `due` and `start` are absolute; the record's times count from `start`. `check_length`: an output
    of another length than planned is a failure.
    """
    reader.finish(exchange.stamps[-1] if exchange.stamps else due)
    failure, detail = _verdict(job, exchange, reader, check_length)

    def since(stamp: float | None) -> float | None:
        return None if stamp is None else stamp - start

    return RequestRecord(
        index=job.index,
        due_s=job.due_s if job.after is None else due - start,
        measured=job.measured,
        planned_input_tokens=job.input_tokens,
        planned_output_tokens=job.output_tokens,
        begun_s=since(exchange.begun),
        sent_s=since(exchange.sent),
        headers_s=since(exchange.headers),
        first_token_s=since(reader.first_token),
        first_visible_s=since(reader.first_visible),
        last_token_s=since(reader.last_token),
        end_s=since(exchange.end),
        input_tokens=reader.input_tokens,
        output_tokens=reader.output_tokens,
        cached_tokens=reader.cached_tokens,
        first_event_tokens=reader.first_event_tokens,
        events=reader.events,
        max_gap_s=reader.max_gap,
        status=exchange.status,
        finish_reason=reader.finish_reason,
        retries=exchange.retries,
        answered_as=reader.answered_as,
        failure=failure,
        detail=detail,
        session=job.session,
        turn=job.turn,
        worker=worker,
    )


def _verdict(
    job: Job, exchange: Exchange, reader: AnswerReader, check_length: bool
) -> tuple[Failure | None, str | None]:
    """What is wrong with an ended exchange, most telling cause first; (None, None) if nothing."""
    status = exchange.status
    if status is not None and status != 200:
        body = b"".join(exchange.chunks)
        words = describe_error(_parse(body), body)
        return _refusal(status, words), f"HTTP {status}: {words}"
    if reader.error is not None:
        return "in_band_error", reader.error
    if exchange.fault is not None and not reader.done:
        return exchange.fault, exchange.detail
    if status is not None and not is_event_stream(exchange):
        body = b"".join(exchange.chunks)
        payload = _parse(body)
        if payload is not None and _is_error(payload):
            return "in_band_error", describe_error(payload, body)
        return "unparsable", "the server answered with one body, not with a stream of events"
    if reader.broken is not None:
        return "unparsable", reader.broken
    if not reader.done and reader.finish_reason is None:
        return "cut", "the stream ended without finish_reason and without [DONE]"
    if reader.first_token is None:
        return "empty", "the answer holds no token"
    if reader.output_tokens is None:
        return "no_usage", "the server did not say how many tokens it made"
    if check_length and reader.output_tokens != job.output_tokens:
        return "wrong_length", f"{reader.output_tokens} tokens, {job.output_tokens} planned"
    if reader.garbage:
        return "garbage", f"all {reader.output_tokens} tokens are the same sign of broken numbers"
    return None, None


def _refusal(status: int, words: str) -> Failure:
    if status == 413 or (status < 500 and _OVER_LIMIT.search(words)):
        return "over_limit"
    return "http_5xx" if status >= 500 else "http_4xx"


def is_event_stream(exchange: Exchange) -> bool:
    """Whether a 200 answer is a stream. Some proxies lose the content type, so a body counts as
    one too if it does not begin like JSON.
    """
    if exchange.content_type == "text/event-stream":
        return True
    head = b"".join(exchange.chunks[:4]).lstrip()
    return not head.startswith((b"{", b"[", b"<"))


def describe_error(payload: dict[str, Any] | None, raw: bytes) -> str:
    """One short line about an error answer, without the request that a server may echo in it."""
    text = ""
    if payload is not None:
        error = payload.get("error")
        source = error if isinstance(error, dict) else payload
        message = error if isinstance(error, str) else source.get("message") or source.get("detail")
        parts = [str(source[key]) for key in ("type", "code") if source.get(key) is not None]
        text = ": ".join([" ".join(parts), str(message)] if parts else [str(message)])
    else:
        text = raw.decode("utf-8", "replace")
    text = _NUMBER_LIST.sub("(numbers)", " ".join(text.split()))
    return text if len(text) <= _DETAIL_LIMIT else text[: _DETAIL_LIMIT - 3] + "..."


def _parse(data: bytes) -> dict[str, Any] | None:
    """A JSON object, or None. The standard parser has the second word: unlike orjson it takes lone
    surrogates, which a token boundary inside an emoji can produce.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(data)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _is_error(payload: dict[str, Any]) -> bool:
    return payload.get("error") is not None or payload.get("object") == "error"


def _text_of(choice: dict[str, Any]) -> tuple[bool, bool]:
    """(visible to the user, token-bearing) of a choice by its text alone."""
    if choice.get("text"):
        return True, True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False, False
    if delta.get("content") or delta.get("tool_calls"):
        return True, True
    return False, bool(delta.get("reasoning") or delta.get("reasoning_content"))
