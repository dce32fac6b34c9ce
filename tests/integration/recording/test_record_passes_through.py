from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from yarl import URL

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Engine: mine\r\n"
USAGE = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":90,"completion_tokens":3}}\n\n'
CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello " * 50}]}


def tokens(rng: random.Random, count: int) -> list[bytes]:
    ends = [b"\n\n", b"\r\n\r\n"]
    texts = ["a", "\u2028", "é", " \\n", "x" * 5000, '"usage"', "data: ", "{}"]
    return [
        b"data: "
        + json.dumps(
            {"choices": [{"delta": {"content": rng.choice(texts)}}]},
            ensure_ascii=rng.random() < 0.5,
        ).encode()
        + rng.choice(ends)
        + (b": ping\n\n" if rng.random() < 0.2 else b"")
        for _ in range(count)
    ]


async def send_cut(writer: asyncio.StreamWriter, data: bytes, rng: random.Random) -> None:
    """The data as chunked coding, cut anywhere, in writes that need not agree with the chunks."""
    framed = b""
    while data:
        size = rng.choice([1, 2, 3, 17, 100, 5000])
        piece, data = data[:size], data[size:]
        framed += b"%x\r\n%b\r\n" % (len(piece), piece)
    framed += b"0\r\n\r\n"
    while framed:
        size = rng.choice([1, 5, 50, 4000])
        writer.write(framed[:size])
        framed = framed[size:]
        if rng.random() < 0.3:
            await asyncio.sleep(0)


@pytest.mark.parametrize("asked", [False, True], ids=["counts stripped", "counts wanted"])
def test_streams_arrive_byte_for_byte_however_they_are_cut(
    asked: bool, proxy: Any, upstream_of: Callable[..., Any]
) -> None:
    async def main() -> None:
        rng = random.Random(f"cuts {asked}")
        sent: list[bytes] = []

        async def answer(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
            assert json.loads(body)["stream_options"] == {"include_usage": True}
            events = b"".join(tokens(rng, rng.randrange(0, 8)))
            sent.append(events + (USAGE if asked else b"") + b"data: [DONE]\n\n")
            writer.write(SSE + b"Transfer-Encoding: chunked\r\n\r\n")
            await send_cut(writer, events + USAGE + b"data: [DONE]\n\n", rng)

        upstream = upstream_of(answer)
        await upstream.start()
        options = {"stream_options": {"include_usage": True}} if asked else {}
        async with (
            proxy(f"http://127.0.0.1:{upstream.port}") as running,
            aiohttp.ClientSession() as client,
        ):
            for path in ("/v1/chat/completions", "/v1/completions") * 20:
                body = {**CHAT, "prompt": "hello " * 50, **options}
                async with client.post(running.url + path, json=body) as response:
                    assert response.headers["X-Engine"] == "mine"
                    assert await response.read() == sent[-1]
        assert len(running.rows()) == 40
        assert {(row["in"], row["out"]) for row in running.rows()} == {(90, 3)}
        await upstream.stop()

    asyncio.run(main())


def test_everything_else_passes_as_it_is(proxy: Any, upstream_of: Callable[..., Any]) -> None:
    async def main() -> None:
        async def answer(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
            text = head + body
            writer.write(
                b"HTTP/1.1 418 Short and stout\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
                b"Content-Encoding: odd\r\nContent-Length: %d\r\n\r\n" % len(text)
            )
            if not head.startswith(b"HEAD"):
                writer.write(text)

        upstream = upstream_of(answer)
        await upstream.start()
        async with (
            proxy(f"http://127.0.0.1:{upstream.port}/base") as running,
            aiohttp.ClientSession(auto_decompress=False) as client,
        ):
            url = running.url + "/v1/embeddings/a%2Fb?q=%20x&q=2"
            headers = {"Authorization": "Bearer k", "Accept-Encoding": "br", "X-A": "1"}
            big = b"\x00\xff" * 800_000
            async with client.post(
                URL(url, encoded=True), data=io.BytesIO(big), headers=headers
            ) as response:
                echoed = await response.read()
                assert (response.status, response.reason) == (418, "Short and stout")
                assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
                assert response.headers["Content-Encoding"] == "odd"
            head, _, body = echoed.partition(b"\r\n\r\n")
            assert head.startswith(b"POST /base/v1/embeddings/a%2Fb?q=%20x&q=2 HTTP/1.1")
            assert body == big
            lower = head.lower()
            for line in (b"authorization: bearer k", b"accept-encoding: br", b"x-a: 1",
                         b"host: 127.0.0.1:%d" % upstream.port):  # fmt: skip
                assert line in lower
            async with client.get(running.url + "/health") as response:
                assert (await response.read()).startswith(b"GET /base/health HTTP/1.1")
            async with client.head(running.url + "/health") as response:
                assert response.status == 418
                assert int(response.headers["Content-Length"]) > 0
        assert running.rows() == []
        assert running.recording.summary.other == 3
        await upstream.stop()

    asyncio.run(main())


def test_a_body_with_an_expectation_and_an_answer_in_one_piece(
    proxy: Any, upstream_of: Callable[..., Any]
) -> None:
    async def main() -> None:
        answered = b'{"choices":[{}],"usage":{"prompt_tokens":4,"completion_tokens":2}}'

        async def answer(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
            assert json.loads(body) == {"prompt": [1, 2, 3, 4], "model": "m"}
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(answered), answered)
            )

        upstream = upstream_of(answer)
        await upstream.start()
        async with (
            proxy(f"http://127.0.0.1:{upstream.port}") as running,
            aiohttp.ClientSession() as client,
        ):
            body = {"prompt": [1, 2, 3, 4], "model": "m"}
            async with client.post(
                running.url + "/v1/completions", json=body, expect100=True
            ) as response:
                assert await response.read() == answered
                assert response.headers["Content-Length"] == str(len(answered))
        assert [(r["in"], r["out"]) for r in running.rows()] == [(4, 2)]
        await upstream.stop()

    asyncio.run(main())


def test_the_upstream_may_go_and_come_back(proxy: Any, upstream_of: Callable[..., Any]) -> None:
    async def main() -> None:
        async def answer(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
            stream = b'data: {"choices":[{"text":"x"}]}\n\n' + USAGE + b"data: [DONE]\n\n"
            writer.write(SSE + b"Content-Length: %d\r\n\r\n%b" % (len(stream), stream))

        upstream = upstream_of(answer)
        await upstream.start()
        async with (
            proxy(f"http://127.0.0.1:{upstream.port}") as running,
            aiohttp.ClientSession() as client,
        ):
            statuses = []
            for away in (False, True, True, False):
                if away and upstream.server.is_serving():
                    await upstream.stop()
                elif not away and not upstream.server.is_serving():
                    await upstream.start()
                async with client.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                    statuses.append(response.status)
                    text = await response.read()
                if away:
                    assert json.loads(text)["error"]["type"] == "upstream_unreachable"
        assert statuses == [200, 502, 502, 200]
        assert len(running.rows()) == 2
        assert running.recording.down == 2
        assert running.recording.summary.skipped == {"upstream_unreachable": 2}
        await upstream.stop()

    asyncio.run(main())


def test_an_answer_cut_by_the_engine_reaches_the_client_as_cut(
    proxy: Any, upstream_of: Callable[..., Any]
) -> None:
    async def main() -> None:
        async def answer(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
            event = b'data: {"choices":[{"text":"x"}]}\n\n'
            writer.write(SSE + b"Transfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            raise ConnectionError

        upstream = upstream_of(answer)
        await upstream.start()
        async with (
            proxy(f"http://127.0.0.1:{upstream.port}") as running,
            aiohttp.ClientSession() as client,
        ):
            with pytest.raises(aiohttp.ClientError):
                async with client.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                    await response.read()
        assert running.rows() == []
        assert running.recording.summary.skipped == {"cut_by_upstream": 1}
        await upstream.stop()

    asyncio.run(main())


def test_a_client_that_leaves_frees_the_engine_and_is_recorded_as_far_as_it_got(
    proxy: Any, upstream_of: Callable[..., Any]
) -> None:
    async def main() -> None:
        async def answer(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
            event = b'data: {"choices":[{"text":"x"}]}\n\n'
            writer.write(SSE + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(3):
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()

        upstream = upstream_of(answer)
        await upstream.start()
        async with (
            proxy(f"http://127.0.0.1:{upstream.port}") as running,
            aiohttp.ClientSession() as client,
        ):
            async with client.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                got = b""
                while got.count(b"\n\n") < 3:
                    got += await response.content.readany()
                response.close()
            await asyncio.wait_for(upstream.gone.wait(), 5)
        (row,) = running.rows()
        assert (row["out"], row["estimated"]) == (3, True)
        assert running.recording.summary.cut == 1
        await upstream.stop()

    asyncio.run(main())


def test_sessions_by_header_and_by_growth_and_no_text_on_disk(
    proxy: Any, upstream_of: Callable[..., Any]
) -> None:
    async def main() -> None:
        async def answer(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
            count = max(1, len(body) // 4)
            usage = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":2}}\n\n'
            stream = b'data: {"choices":[{"text":"reply"}]}\n\n' + usage % count
            writer.write(SSE + b"Content-Length: %d\r\n\r\n%b" % (len(stream), stream))

        upstream = upstream_of(answer)
        await upstream.start()
        async with (
            proxy(f"http://127.0.0.1:{upstream.port}") as running,
            aiohttp.ClientSession() as client,
        ):
            messages = [{"role": "user", "content": "platypus " * 100}]
            for name in (None, None, "alice", "alice"):
                headers = {"X-Session-Id": name} if name else {}
                body = {"model": "m", "stream": True, "messages": messages}
                url = running.url + "/v1/chat/completions"
                async with client.post(url, json=body, headers=headers) as response:
                    await response.read()
                messages = [
                    *messages,
                    {"role": "assistant", "content": "wombat"},
                    {"role": "user", "content": "quokka " * 50},
                ]
        rows = running.rows()
        assert [(r["session"], r.get("turn", 0)) for r in rows] == [
            ("s0", 0), ("s0", 1), ("s1", 0), ("s1", 1),
        ]  # fmt: skip
        assert all("gap" in row for row in rows if row.get("turn"))
        shared = set(rows[0]["blocks"]) & set(rows[1]["blocks"])
        assert len(shared) >= len(rows[0]["blocks"]) - 2
        text = running.output.read_text(encoding="utf-8")
        for word in ("platypus", "wombat", "quokka", "alice", "reply"):
            assert word not in text
        await upstream.stop()

    asyncio.run(main())
