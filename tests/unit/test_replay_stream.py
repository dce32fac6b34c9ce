from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from autotune.replay.exchange import Exchange
from autotune.replay.records import RequestRecord
from autotune.replay.shard import Job
from autotune.replay.stream import AnswerReader, record_of

START = 1000.0


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chat(delta: dict[str, Any], finish: str | None = None, tokens: int | None = None) -> bytes:
    payload: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if tokens is not None:
        payload["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}
    return event(payload)


def words(text: str, finish: str | None = None, tokens: int | None = None) -> bytes:
    payload: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    if tokens is not None:
        payload["usage"] = {"prompt_tokens": 9, "completion_tokens": tokens}
    return event(payload)


def usage(tokens: int, **more: Any) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens} | more})


DONE = b"data: [DONE]\n\n"


def read(
    reads: Sequence[tuple[int, bytes]],
    *,
    tokens: int = 3,
    status: int | None = 200,
    content_type: str = "text/event-stream",
    fault: tuple[Any, str] | None = None,
    check_length: bool = True,
) -> RequestRecord:
    """The record of an answer given as (milliseconds, bytes)."""
    exchange = Exchange(
        begun=START,
        sent=START,
        headers=START if status else None,
        status=status,
        content_type=content_type,
        stamps=[START + at / 1000 for at, _ in reads],
        chunks=[data for _, data in reads],
        end=START + (reads[-1][0] if reads else 0) / 1000,
    )
    if fault is not None:
        exchange.fail(*fault)
    reader = AnswerReader()
    if status == 200:
        for stamp, chunk in zip(exchange.stamps, exchange.chunks, strict=True):
            reader.feed(stamp, chunk)
    job = Job(index=0, due_s=0.0, measured=True, input_tokens=9, output_tokens=tokens)
    return record_of(
        job, exchange, reader, due=START, start=START, worker=0, check_length=check_length
    )


def test_a_role_only_event_is_no_token_and_a_trailing_usage_event_does_not_lengthen() -> None:
    record = read(
        [
            (5, chat({"role": "assistant", "content": ""})),
            (120, chat({"content": "a"})),
            (150, chat({"content": "b"})),
            (180, chat({"content": "c"})),
            (181, chat({}, "stop")),
            (240, usage(3)),
            (241, DONE),
        ]
    )

    assert record.failure is None
    assert record.first_token_s == pytest.approx(0.120)
    assert record.last_token_s == pytest.approx(0.180)
    assert record.end_s == pytest.approx(0.241)
    assert record.max_gap_s == pytest.approx(0.030)
    assert (record.output_tokens, record.events, record.first_event_tokens) == (3, 3, 1)
    assert record.finish_reason == "stop"


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning": "x"},
        {"reasoning_content": "x"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_text_reasoning_and_tool_calls_are_tokens(delta: dict[str, Any]) -> None:
    record = read([(70, chat(delta)), (80, chat({}, "stop")), (81, usage(1))], tokens=1)

    assert record.failure is None
    assert record.first_token_s == pytest.approx(0.070)


def test_reasoning_starts_ttft_but_is_not_visible() -> None:
    record = read(
        [(50, chat({"reasoning": "hm"})), (900, chat({"content": "a"}, "stop")), (901, usage(2))],
        tokens=2,
    )

    assert record.first_token_s == pytest.approx(0.050)
    assert record.first_visible_s == pytest.approx(0.900)


def test_tokens_are_counted_by_usage_not_by_events() -> None:
    record = read(
        [
            (4, chat({"role": "assistant", "content": ""}, tokens=0)),
            (100, chat({"content": "a b c d"}, tokens=4)),
            (140, chat({"content": "e f g h"}, tokens=8)),
            (180, chat({"content": "i j k l"}, tokens=12)),
            (181, chat({}, "length", tokens=12)),
            (182, usage(12)),
        ],
        tokens=12,
    )

    assert record.failure is None
    assert (record.output_tokens, record.events, record.first_event_tokens) == (12, 3, 4)
    assert record.last_token_s == pytest.approx(0.180)


def test_a_rise_of_running_usage_is_a_token_although_its_text_is_empty() -> None:
    record = read(
        [
            (60, words("", tokens=1)),
            (80, words("\U0001f600", tokens=2)),
            (100, words("", "length", tokens=3)),
            (101, usage(3)),
        ]
    )

    assert record.failure is None
    assert record.first_token_s == pytest.approx(0.060)
    assert record.last_token_s == pytest.approx(0.100)
    assert record.events == 3


def test_usage_that_comes_only_with_the_finish_event_is_no_token_by_itself() -> None:
    record = read([(60, words("a")), (70, words("b")), (300, words("", "length", tokens=3))])

    assert record.failure is None
    assert record.last_token_s == pytest.approx(0.070)


def test_cached_prompt_tokens_are_kept() -> None:
    record = read(
        [(1, words("a", "length")), (2, usage(1, prompt_tokens_details={"cached_tokens": 8}))],
        tokens=1,
    )

    assert (record.input_tokens, record.cached_tokens) == (9, 8)


def test_an_error_object_within_a_good_answer_is_a_failure_in_spite_of_done() -> None:
    error = event({"error": {"message": "EngineCore died", "type": "InternalServerError"}})
    record = read([(90, words("a")), (110, words("b")), (130, error), (131, DONE)])

    assert record.failure == "in_band_error"
    assert record.detail == "InternalServerError: EngineCore died"


def test_an_error_event_is_a_failure_even_if_its_data_is_not_json() -> None:
    record = read([(90, words("a")), (130, b"event: error\ndata: boom\n\n"), (131, DONE)])

    assert (record.failure, record.detail) == ("in_band_error", "boom")


def test_a_stream_without_finish_reason_and_done_is_cut() -> None:
    assert read([(80, words("a")), (100, words("b"))]).failure == "cut"


def test_a_stream_cut_inside_an_event_is_cut_and_not_garbled() -> None:
    assert read([(80, words("a")), (100, words("b")[:-9])]).failure == "cut"


def test_a_fault_after_done_takes_nothing_away() -> None:
    whole = [(80, words("a", "length")), (81, usage(1)), (82, DONE)]

    assert read(whole, tokens=1, fault=("cut", "closed")).failure is None
    assert read(whole[:2], tokens=1, fault=("cut", "closed")).failure == "cut"


def test_an_answer_of_another_length_is_a_failure_unless_lengths_are_free() -> None:
    answer = [(80, words("a", "stop")), (81, usage(1)), (82, DONE)]

    assert read(answer, tokens=64).failure == "wrong_length"
    assert read(answer, tokens=64, check_length=False).failure is None


def test_an_answer_without_tokens_is_empty() -> None:
    assert read([(5, chat({"role": "assistant"})), (9, chat({}, "stop")), (9, DONE)]).failure == (
        "empty"
    )


def test_an_answer_without_usage_has_no_known_length() -> None:
    assert read([(5, words("a", "length")), (9, DONE)], tokens=1).failure == "no_usage"


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "http_4xx"), (429, "http_4xx"), (503, "http_5xx")]
)
def test_http_errors_are_classed_by_status(status: int, kind: str) -> None:
    body = json.dumps({"message": "no such model", "code": status}).encode()
    record = read([(3, body)], status=status, content_type="application/json")

    assert record.failure == kind
    assert record.detail == f"HTTP {status}: {status}: no such model"


def test_what_a_server_echoes_of_the_prompt_is_not_kept() -> None:
    body = json.dumps({"error": {"message": "bad prompt [17, 29, 31, 999, 4]" + "z" * 900}})
    record = read([(3, body.encode())], status=400, content_type="application/json")

    assert record.detail is not None
    assert "999" not in record.detail
    assert len(record.detail) <= 220


def test_a_plain_json_body_is_unparsable_and_a_json_error_is_an_error() -> None:
    whole = json.dumps({"choices": [{"text": "abc"}], "usage": {"completion_tokens": 3}}).encode()
    error = json.dumps({"object": "error", "message": "too long", "type": "BadRequest"}).encode()

    assert read([(9, whole)], content_type="application/json").failure == "unparsable"
    assert read([(9, error)], content_type="application/json").failure == "in_band_error"


def test_a_stream_is_known_by_its_look_when_a_proxy_lost_the_content_type() -> None:
    answer = [(9, words("a", "length")), (9, usage(1)), (9, DONE)]

    assert read(answer, tokens=1, content_type="application/octet-stream").failure is None


def test_garbage_in_an_event_is_unparsable() -> None:
    assert read([(9, words("a")), (10, b"data: {nonsense\n\n"), (11, DONE)]).failure == "unparsable"


def test_a_lone_surrogate_is_no_garbage() -> None:
    half = b'data: {"choices":[{"text":"\\ud83d","finish_reason":"length"}]}\n\n'

    assert read([(9, half), (9, usage(1)), (9, DONE)], tokens=1).failure is None


@pytest.mark.parametrize("make", [words, lambda text, **k: chat({"content": text}, **k)])
def test_an_answer_of_nothing_but_token_zero_is_garbage(make: Any) -> None:
    reads = [(k, make("!", tokens=k + 1)) for k in range(64)]
    assert read([*reads, (64, DONE)], tokens=64).failure == "garbage"


def test_garbage_is_seen_only_where_it_is_sure() -> None:
    short = [(k, words("!", tokens=k + 1)) for k in range(63)]
    assert read([*short, (63, DONE)], tokens=63).failure is None
    mixed = [(k, words("!" if k else "Wow", tokens=k + 1)) for k in range(90)]
    assert read([*mixed, (90, DONE)], tokens=90).failure is None
    # A greedy answer to random tokens may well repeat one word: that is no fault of the engine.
    loop = [(k, words(" the", tokens=k + 1)) for k in range(90)]
    assert read([*loop, (90, DONE)], tokens=90).failure is None


def test_token_ids_in_the_events_overrule_the_look_of_the_text() -> None:
    def marked(token: int, count: int) -> bytes:
        choice = {"index": 0, "text": "!", "token_ids": [token], "finish_reason": None}
        return event({"choices": [choice], "usage": {"completion_tokens": count}})

    for token, failure in ((0, "garbage"), (33, None)):
        reads = [(k, marked(token, k + 1)) for k in range(64)]
        assert read([*reads, (64, DONE)], tokens=64).failure == failure


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "Requested token count exceeds the model's maximum context length of 4096 tokens.",
        "max_tokens is larger than max_model_len",
    ],
)
def test_a_request_over_the_servers_limit_has_its_own_reason(message: str) -> None:
    body = json.dumps({"error": {"message": message, "code": 400}}).encode()
    record = read([(0, body)], status=400, content_type="application/json")
    assert record.failure == "over_limit"
    assert message[:30] in (record.detail or "")


def test_other_refusals_keep_their_reason() -> None:
    body = b'{"error":{"message":"no such model"}}'
    for status, failure in ((404, "http_4xx"), (413, "over_limit"), (500, "http_5xx")):
        record = read([(0, body)], status=status, content_type="application/json")
        assert record.failure == failure


def test_the_model_that_the_answer_names_is_kept() -> None:
    answer = event({"model": "m-1", "choices": [{"text": "a", "finish_reason": "length"}]})
    assert read([(0, answer), (1, usage(1)), (2, DONE)], tokens=1).answered_as == "m-1"
