from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.replay.sse import SseEvent, SseParser


def parse(*chunks: bytes, finish: bool = False) -> list[SseEvent]:
    parser = SseParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.finish() if finish else events


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


text = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n", exclude_categories=("Cs",)),
    max_size=12,
)
line_end = st.sampled_from([b"\n", b"\r", b"\r\n"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[SseEvent]]:
    """A stream with any mixture of line ends, comments and foreign fields, and its events."""
    eol = draw(line_end)
    out = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    events = []
    for _ in range(draw(st.integers(0, 5))):
        lines = [part.encode() for part in draw(st.lists(text, min_size=1, max_size=3))]
        name = draw(st.sampled_from(["message", "error", "delta"]))
        if name != "message":
            out += b"event: " + name.encode() + eol
        for line in lines:
            out += draw(st.sampled_from([b"", b": keep-alive" + eol, b"id: 7" + eol]))
            out += b"data: " + line + eol
        out += eol * draw(st.integers(1, 2))
        events.append(SseEvent(b"\n".join(lines), name))
    return out, events


@settings(deadline=None)
@given(streams(), st.lists(st.integers(0, 400), max_size=8))
def test_events_do_not_depend_on_where_the_reads_are_cut(
    stream: tuple[bytes, list[SseEvent]], places: list[int]
) -> None:
    data, events = stream

    assert parse(*cut(data, places)) == events


@settings(deadline=None)
@given(streams())
def test_a_stream_read_byte_by_byte_gives_the_same_events(
    stream: tuple[bytes, list[SseEvent]],
) -> None:
    data, events = stream

    assert parse(*(bytes([byte]) for byte in data)) == events


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_at_all_are_read_without_fault_and_independently_of_cuts(
    data: bytes, places: list[int]
) -> None:
    assert parse(*cut(data, places), finish=True) == parse(data, finish=True)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"])
def test_only_cr_and_lf_end_a_line(separator: str) -> None:
    payload = f'{{"text":"a{separator}b"}}'.encode()

    assert parse(b"data: " + payload + b"\n\n") == [SseEvent(payload)]


def test_a_cr_at_the_end_of_a_read_dispatches_at_once_and_its_lf_is_not_a_second_line_end() -> None:
    parser = SseParser()

    assert parser.feed(b"data: a\r\n\r") == [SseEvent(b"a")]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [SseEvent(b"b")]


def test_several_events_in_one_read_come_out_in_order() -> None:
    assert [e.data for e in parse(b"data: 1\n\ndata: 2\n\ndata:3\n\n")] == [b"1", b"2", b"3"]


def test_only_one_space_after_the_colon_belongs_to_the_grammar() -> None:
    assert parse(b"data:  x\n\n") == [SseEvent(b" x")]


def test_an_event_name_does_not_leak_into_the_next_event() -> None:
    assert [e.name for e in parse(b"event: error\n\ndata: a\n\n")] == ["message"]


def test_the_end_of_the_stream_yields_an_event_that_lacks_its_blank_line() -> None:
    assert parse(b"data: [DONE]", finish=True) == [SseEvent(b"[DONE]")]
    assert parse(b"data: [DONE]\n", finish=True) == [SseEvent(b"[DONE]")]
    assert parse(b"data: a\n\n", finish=True) == [SseEvent(b"a")]


def test_a_large_event_is_one_event() -> None:
    payload = b"x" * (1 << 20)

    assert parse(b"data: " + payload[:70_000], payload[70_000:] + b"\n\n") == [SseEvent(payload)]
