from __future__ import annotations

import json
from itertools import pairwise

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.workload.recording.stream import AnswerTap, EventSplitter, Usage, asking_for_usage

EVENTS = st.lists(
    st.builds(
        lambda name, text, end: name + orjson.dumps({"choices": [{"text": text}]}) + end,
        st.sampled_from([b"data: ", b"data:", b"event: x\ndata: ", b": note\r\ndata: "]),
        st.text(max_size=12),
        st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]),
    ),
    max_size=8,
)
USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=12))
def test_events_joined_are_the_stream_wherever_it_is_cut(data: bytes, places: list[int]) -> None:
    splitter = EventSplitter()
    events = [event for chunk in cut(data, places) for event in splitter.feed(chunk)]
    assert b"".join(events) + splitter.finish() == data


@given(EVENTS, st.booleans(), st.sampled_from([b"\n\n", b"\r\n\r\n"]), st.data())
@settings(max_examples=200)
def test_only_the_event_with_counts_is_taken_out_wherever_the_stream_is_cut(
    events: list[bytes], done: bool, end: bytes, data: st.DataObject
) -> None:
    rest = b"data: [DONE]\n\n" if done else b""
    stream = b"".join(events) + USAGE + end + rest
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    tap = AnswerTap(stream=True, strip_usage=True)
    kept = b"".join(tap.feed(chunk) for chunk in cut(stream, places)) + tap.finish()
    assert kept == b"".join(events) + rest
    assert tap.usage() == Usage(7, 3)
    assert tap.events == len(events)


@given(EVENTS, st.lists(st.integers(0, 500), max_size=20))
def test_a_stream_whose_client_asked_for_counts_passes_untouched(
    events: list[bytes], places: list[int]
) -> None:
    stream = b"".join(events) + USAGE + b"\n\ndata: [DONE]\n\n"
    tap = AnswerTap(stream=True, strip_usage=False)
    assert not tap.strips
    chunks = cut(stream, places)
    assert b"".join(tap.feed(chunk) for chunk in chunks) + tap.finish() == stream
    assert tap.usage() == Usage(7, 3)


def test_a_text_that_speaks_of_usage_is_no_usage() -> None:
    text = orjson.dumps({"choices": [{"text": '"usage": {"prompt_tokens": 1}, "choices":[]'}]})
    tap = AnswerTap(stream=True, strip_usage=True)
    event = b"data: " + text + b"\n\n"
    assert tap.feed(event) == event
    assert tap.usage() is None


def test_an_error_inside_a_stream_is_a_failure() -> None:
    for event in (b'data: {"error": {"message": "x"}}\n\n', b"event: error\ndata: x\n\n"):
        tap = AnswerTap(stream=True, strip_usage=False)
        tap.feed(event)
        assert tap.failed


def test_an_answer_in_one_piece_has_its_counts_in_the_body() -> None:
    tap = AnswerTap(stream=True, strip_usage=True)
    tap.whole()
    body = b'{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}'
    assert tap.feed(body[:20]) + tap.feed(body[20:]) + tap.finish() == body
    assert tap.usage() == Usage(4, 2)


def test_counts_are_asked_for_with_the_least_change_of_the_body() -> None:
    def asked(text: str) -> bytes | None:
        return asking_for_usage(text.encode(), json.loads(text))

    assert asked('{"prompt": "a"}') is None
    assert asked('{"stream": true, "stream_options": {"include_usage": true}}') is None
    told = asked(' {"stream": true, "temperature": 1.0, "seed": 18446744073709551615}')
    assert told == (
        b' {"stream_options":{"include_usage":true},"stream": true, "temperature": 1.0, '
        b'"seed": 18446744073709551615}'
    )
    told = asked('{"stream": true, "stream_options": {"continuous_usage_stats": true, "x": 1}}')
    assert told is not None
    assert json.loads(told)["stream_options"] == {"x": 1, "include_usage": True}
