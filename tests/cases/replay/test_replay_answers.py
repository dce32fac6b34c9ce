"""Kinds of answers: what a real server may send, and what must be recorded of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.replay.records import ReplayResult, RequestRecord
from autotune.replay.replayer import ReplayOptions

from .conftest import DONE, Script, ScriptedServer, completion, event, good_answer, planned, usage

Serve = Callable[..., ScriptedServer]
Run = Callable[..., ReplayResult]

NEAR = 0.05
"""Generous, because the machine may be busy; the logic is proven to the millisecond elsewhere."""


def chat(at_ms: int, delta: dict[str, Any], finish: str | None = None) -> tuple[float, bytes]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return at_ms / 1000, event({"id": "c1", "model": "m", "choices": [choice]})


def one(
    serve: Serve, run: Run, script: Script, *, tokens: int = 3, **options: Any
) -> RequestRecord:
    server = serve(lambda number, body: script)
    settings = ReplayOptions(drain_timeout_s=5.0, **options)
    return run([planned(0, tokens=tokens)], server, options=settings).records[0]


def since_sent(record: RequestRecord, stamp: float | None) -> float:
    assert stamp is not None
    assert record.sent_s is not None
    return stamp - record.sent_s


def test_a_role_chunk_first_and_a_usage_chunk_last(serve: Serve, run: Run) -> None:
    script = Script(
        chunks=[
            chat(5, {"role": "assistant", "content": ""}),
            chat(120, {"content": "Hello"}),
            chat(150, {"content": " world"}),
            chat(180, {"content": "!"}),
            chat(181, {}, "stop"),
            (0.240, usage(3)),
            (0.241, DONE),
        ],
        end="close",
    )
    record = one(serve, run, script)

    assert record.failure is None
    assert record.output_tokens == 3
    assert since_sent(record, record.first_token_s) == pytest.approx(0.120, abs=NEAR)
    assert since_sent(record, record.last_token_s) == pytest.approx(0.180, abs=NEAR)
    assert since_sent(record, record.end_s) >= 0.239


def test_several_tokens_per_chunk(serve: Serve, run: Run) -> None:
    script = Script(
        chunks=[
            chat(4, {"role": "assistant", "content": ""}),
            chat(100, {"content": "a b c d"}),
            chat(140, {"content": " e f g h"}),
            chat(180, {"content": " i j k l"}),
            chat(181, {}, "length"),
            (0.182, usage(12)),
            (0.183, DONE),
        ],
        end="close",
    )
    record = one(serve, run, script, tokens=12)

    assert record.failure is None
    assert (record.output_tokens, record.events) == (12, 3)


def test_an_error_inside_a_good_answer(serve: Serve, run: Run) -> None:
    error = {"error": {"message": "EngineCore encountered an issue", "code": 500}}
    script = Script(
        chunks=[chat(9, {"content": "The"}), (0.03, event(error)), (0.031, DONE)], end="close"
    )

    assert one(serve, run, script).failure == "in_band_error"


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_connection_that_closes_in_the_middle(serve: Serve, run: Run, end: str) -> None:
    script = Script(chunks=[chat(9, {"content": "one"}), chat(20, {"content": " two"})], end=end)

    assert one(serve, run, script).failure == "cut"


def test_a_connection_that_closes_without_an_answer_is_not_retried(serve: Serve, run: Run) -> None:
    server = serve(lambda number, body: Script(end="drop"))
    record = run([planned(0)], server).records[0]

    assert (record.failure, record.retries, record.status) == ("cut", 0, None)
    assert len(server.served) == 1


def test_every_tenth_stalls_and_the_rest_do_not_wait_for_it(serve: Serve, run: Run) -> None:
    stalled = Script(chunks=[(0.01, completion("first"))], end="hang")
    server = serve(lambda number, body: stalled if number % 10 == 9 else good_answer(3))
    options = ReplayOptions(idle_timeout_s=0.4, drain_timeout_s=5.0)
    result = run([planned(i, i * 0.005) for i in range(40)], server, options=options)
    failures = [record.failure for record in result.records]

    assert failures.count("stall") == 4
    assert failures.count(None) == 36
    assert server.dropped_by_client == 4
    assert result.aborted is None


def test_line_separators_in_the_text_and_bytes_cut_anywhere(serve: Serve, run: Run) -> None:
    stream = b"".join(
        [
            b"\xef\xbb\xbf: keep-alive\r\n\r\n",
            completion("row1\u2028row2").replace(b"\n\n", b"\r\n\r\n"),
            completion("\u2029row3\u0085x").replace(b"\n\n", b"\r\r"),
            completion("end", finish="stop"),
            usage(3),
            DONE,
        ]
    )
    pieces = [(k * 0.0005, stream[k : k + 7]) for k in range(0, len(stream), 7)]
    record = one(serve, run, Script(chunks=[(at / 7, piece) for at, piece in pieces]))

    assert record.failure is None
    assert (record.output_tokens, record.events) == (3, 3)


@pytest.mark.parametrize(
    ("status", "kind"), [(503, "http_5xx"), (404, "http_4xx"), (302, "http_4xx")]
)
def test_http_errors_are_failures_without_latency(
    serve: Serve, run: Run, status: int, kind: str
) -> None:
    body = b'{"error": {"message": "no room", "type": "Overloaded"}}'
    script = Script(chunks=[(0, body)], status=status, content_type="application/json")
    record = one(serve, run, script)

    assert record.failure == kind
    assert (record.first_token_s, record.status) == (None, status)
    assert record.detail == f"HTTP {status}: Overloaded: no room"


def test_an_answer_that_is_not_http_is_unparsable(serve: Serve, run: Run) -> None:
    script = Script(chunks=[(0, b"x")], content_type="a\r\n\x00bad header line")

    assert one(serve, run, script).failure == "unparsable"


def test_an_answer_of_the_wrong_length(serve: Serve, run: Run) -> None:
    record = one(serve, run, good_answer(2), tokens=9)

    assert (record.failure, record.detail) == ("wrong_length", "2 tokens, 9 planned")


def test_a_very_large_event(serve: Serve, run: Run) -> None:
    script = Script(
        chunks=[(0, completion("x" * (1 << 20), finish="length")), (0, usage(3)), (0, DONE)]
    )

    assert one(serve, run, script).failure is None


def test_a_port_where_nobody_listens(serve: Serve, run: Run) -> None:
    server = serve(lambda number, body: Script())
    server.stop()
    result = run([planned(0), planned(1, 0.05)], server)

    assert [record.failure for record in result.records] == ["refused", "refused"]


def test_what_the_server_sees(serve: Serve, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("SOME_KEY", "s3cret")
    server = serve(lambda number, body: good_answer(3))
    options = ReplayOptions(cache_salt="pass-1", api_key_env="SOME_KEY", drain_timeout_s=5.0)
    result = run([planned(0), planned(1, 0.1)], server, options=options)
    first, second = server.served

    assert [record.failure for record in result.records] == [None, None]
    assert first.headers["authorization"] == "Bearer s3cret"
    assert first.headers["accept-encoding"] == "identity"
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.body["prompt"] == [1, 2, 3, 4]
    assert (first.body["cache_salt"], first.body["min_tokens"]) == ("pass-1", 3)
    assert first.connection == second.connection  # kept alive


def test_an_idle_connection_that_the_server_closes_costs_one_silent_retry(
    serve: Serve, run: Run
) -> None:
    """The second request meets a connection that ends in the moment of its reuse."""
    scripts = [good_answer(3), Script(end="drop"), good_answer(3)]
    server = serve(lambda number, body: scripts[number])
    result = run([planned(0), planned(1, 0.2)], server)

    assert [(r.failure, r.retries) for r in result.records] == [(None, 0), (None, 1)]
    assert result.health.extra["retries"] == 1
    assert len(server.served) == 3
