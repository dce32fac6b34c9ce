from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.replay.http1 import MAX_HEAD, AnswerDecoder, NotHttpError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def decode(*reads: bytes) -> tuple[AnswerDecoder, bytes]:
    decoder = AnswerDecoder()
    body = b"".join(piece for read in reads for piece in decoder.feed(read))
    return decoder, body


def framed(pieces: Sequence[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_a_chunked_answer_loses_its_framing() -> None:
    decoder, body = decode(CHUNKED + framed([b"ab", b"c\r\nd"]))
    assert body == b"abc\r\nd"
    assert decoder.done
    assert decoder.keep_alive
    assert (decoder.status, decoder.content_type) == (200, "text/event-stream")


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_reads_may_cut_a_chunked_answer_anywhere(pieces: list[bytes], cuts: list[int]) -> None:
    whole = CHUNKED + framed(pieces)
    places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    reads = [whole[a:b] for a, b in pairwise(places)]
    decoder, body = decode(*reads)
    assert body == b"".join(pieces)
    assert decoder.done


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for start in (b"", CHUNKED, HEAD + b"Content-Length: 5\r\n\r\n"):
        decoder = AnswerDecoder()
        try:
            body = b"".join(decoder.feed(start + data))
        except NotHttpError:
            continue
        assert len(body) <= len(data)


def test_between_chunks_a_reader_may_help_itself() -> None:
    decoder, _ = decode(CHUNKED)
    assert decoder.at_chunk
    decoder.feed(b"2\r\na")
    assert not decoder.at_chunk
    decoder.feed(b"b\r\n")
    assert decoder.at_chunk
    decoder.feed(b"0\r\n")
    assert not decoder.at_chunk
    assert not decoder.done
    decoder.feed(b"\r\n")
    assert decoder.done


def test_extensions_and_trailers_are_skipped() -> None:
    decoder, body = decode(CHUNKED + b"2;name=value\r\nab\r\n0\r\nX-Trailer: yes\r\n\r\n")
    assert (body, decoder.done) == (b"ab", True)


def test_a_body_by_length_ends_there() -> None:
    decoder, body = decode(HEAD + b"Content-Length: 3\r\n\r\nab", b"c")
    assert (body, decoder.done, decoder.keep_alive) == (b"abc", True, True)


def test_bytes_after_the_end_spoil_the_connection() -> None:
    decoder, body = decode(HEAD + b"Content-Length: 1\r\n\r\nabc")
    assert (body, decoder.done, decoder.keep_alive) == (b"a", True, False)


def test_a_body_without_length_ends_with_the_connection() -> None:
    decoder, body = decode(HEAD + b"\r\nab", b"c")
    assert not decoder.done
    assert decoder.close()
    assert (body, decoder.done, decoder.keep_alive) == (b"abc", True, False)


def test_a_chunked_body_cut_short_is_not_complete() -> None:
    decoder, _ = decode(CHUNKED + b"4\r\nab")
    assert not decoder.close()


@pytest.mark.parametrize(
    ("line", "kept"),
    [(b"", True), (b"Connection: close\r\n", False), (b"Connection: Keep-Alive\r\n", True)],
)
def test_the_server_decides_whether_the_connection_stays(line: bytes, kept: bool) -> None:
    decoder, _ = decode(HEAD + line + b"Content-Length: 0\r\n\r\n")
    assert (decoder.done, decoder.keep_alive) == (True, kept)


def test_http_1_0_closes_unless_it_says_otherwise() -> None:
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
    assert not decode(head + b"Content-Length: 0\r\n\r\n")[0].keep_alive
    stays = b"Connection: keep-alive\r\nContent-Length: 0\r\n\r\n"
    assert decode(head + stays)[0].keep_alive


def test_interim_answers_are_passed_over() -> None:
    decoder, body = decode(b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + framed([b"x"]))
    assert (decoder.status, body) == (200, b"x")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        HEAD + b"no colon here\r\n\r\n",
        HEAD + b"Content-Length: many\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"-2\r\n",
        CHUNKED + b"2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * MAX_HEAD,
        CHUNKED + b"1" * 9000,
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(NotHttpError):
        decode(data)
