"""What every transport of the replay client promises, on real sockets and scripted bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from autotune.replay.exchange import Exchange, Transport
from autotune.replay.transport import HttpTransport
from autotune.replay.wire import WireTransport

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Handler = Callable[[Reader, Writer], Awaitable[None]]


@pytest.fixture(params=[WireTransport, HttpTransport], ids=["wire", "aiohttp"])
def kind(request: pytest.FixtureRequest) -> type[WireTransport] | type[HttpTransport]:
    return request.param  # type: ignore[no-any-return]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def asked(reader: Reader) -> bytes:
    """One whole request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    return head + await reader.readexactly(length)


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    tasks: set[asyncio.Task[None]] = set()

    async def connection(reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(work: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())  # type: ignore[arg-type]


@asynccontextmanager
async def opened(
    kind: type[WireTransport] | type[HttpTransport], url: str, timeout_s: float = 2.0
) -> AsyncIterator[Transport]:
    transport = kind(
        f"{url}/v1/completions", headers={"Authorization": "Bearer k"}, connect_timeout_s=timeout_s
    )
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


async def sent(transport: Transport, body: bytes = b'{"a":1}', name: str = "r-1") -> Exchange:
    exchange = Exchange(begun=time.monotonic(), request_id=name)
    await transport.send(body, exchange)
    return exchange


def test_bytes_arrive_in_order_and_stamped(kind: type) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        seen.append(await asked(reader))
        writer.write(CHUNKED + chunk(b"data: a\n\n"))
        await asyncio.sleep(0.05)
        writer.write(chunk(b"data: b\n\n") + chunk(b"data: c\n\n") + END)
        await reader.read()

    async def work() -> None:
        async with served(answer) as url, opened(kind, url) as transport:
            found.append(await sent(transport))

    seen: list[bytes] = []
    found: list[Exchange] = []
    run(work)
    exchange = found[0]
    assert b"".join(exchange.chunks) == b"data: a\n\ndata: b\n\ndata: c\n\n"
    assert len(exchange.stamps) == len(exchange.chunks)
    assert (exchange.status, exchange.content_type, exchange.fault) == (
        200, "text/event-stream", None,
    )  # fmt: skip
    assert exchange.sent is not None
    assert exchange.headers is not None
    order = [exchange.begun, exchange.sent, exchange.headers, *exchange.stamps]
    assert order == sorted(order)
    assert exchange.stamps[-1] - exchange.stamps[0] >= 0.04
    request = seen[0]
    assert request.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert request.endswith(b'\r\n\r\n{"a":1}')
    lowered = request.lower()
    for line in (b"x-request-id: r-1", b"authorization: bearer k", b"host: 127.0.0.1",
                 b"accept-encoding: identity", b"content-type: application/json"):  # fmt: skip
        assert line in lowered


def test_one_byte_at_a_time_is_the_same_answer(kind: type) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        await asked(reader)
        for byte in CHUNKED + chunk(b"data: x\n\n") + END:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await reader.read()

    async def work() -> None:
        async with served(answer) as url, opened(kind, url) as transport:
            exchange = await sent(transport)
            assert b"".join(exchange.chunks) == b"data: x\n\n"
            assert exchange.fault is None

    run(work)


def test_a_connection_is_used_again_but_not_a_closed_one(kind: type) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        connections.append(0)
        while True:
            await asked(reader)
            connections[-1] += 1
            last = len(connections) == 1 and connections[0] == 2
            head = HEAD + (b"Connection: close\r\n" if last else b"")
            writer.write(head + b"Content-Length: 2\r\n\r\nok")
            if last:
                return

    async def work() -> None:
        async with served(answer) as url, opened(kind, url) as transport:
            exchanges = [await sent(transport) for _ in range(3)]
        assert [b"".join(e.chunks) for e in exchanges] == [b"ok"] * 3
        assert [e.fault for e in exchanges] == [None] * 3
        assert [e.reused for e in exchanges] == [False, True, False]

    connections: list[int] = []
    run(work)
    assert connections == [2, 1]


def test_an_idle_connection_closed_by_the_server_costs_one_silent_second_attempt(
    kind: type,
) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        connections.append(0)
        await asked(reader)
        writer.write(HEAD + b"Content-Length: 2\r\n\r\nok")
        if len(connections) == 1:
            await asked(reader)  # read, and then close without any answer
            return
        await reader.read()

    async def work() -> None:
        async with served(answer) as url, opened(kind, url) as transport:
            await sent(transport)
            second = await sent(transport)
        assert (second.fault, second.retries, second.reused) == (None, 1, False)
        assert b"".join(second.chunks) == b"ok"

    connections: list[int] = []
    run(work)
    assert len(connections) == 2


@pytest.mark.parametrize(
    ("answer", "fault", "status"),
    [
        (b"", "cut", None),
        (CHUNKED + chunk(b"data: a\n\n"), "cut", 200),
        (HEAD + b"Content-Length: 99\r\n\r\nshort", "cut", 200),
        (b"not http at all\r\n\r\n", "unparsable", None),
        (HEAD + b"\r\ndata: a\n\n", None, 200),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", None, 503),
    ],
    ids=["nothing", "mid-stream", "short", "not-http", "ends-by-closing", "status"],
)
def test_how_an_exchange_fails(
    kind: type, answer: bytes, fault: str | None, status: int | None
) -> None:
    async def reply(reader: Reader, writer: Writer) -> None:
        await asked(reader)
        asks.append(1)
        writer.write(answer)
        await writer.drain()

    async def work() -> None:
        async with served(reply) as url, opened(kind, url) as transport:
            exchange = await sent(transport)
        assert (exchange.fault, exchange.status) == (fault, status)
        assert exchange.retries == 0

    asks: list[int] = []
    run(work)
    assert asks == [1]


def test_a_refused_connection_and_a_name_without_address(kind: type) -> None:
    async def idle(reader: Reader, writer: Writer) -> None:
        await reader.read()

    async def work() -> None:
        async with served(idle) as url:
            pass
        async with opened(kind, url) as transport:
            await transport.prepare(2)
            refused = await sent(transport)
        async with opened(kind, "http://no-such-host.invalid") as transport:
            unknown = await sent(transport)
        assert (refused.fault, unknown.fault) == ("refused", "refused")
        assert refused.sent is None

    run(work)


def test_a_cancelled_request_closes_its_connection(kind: type) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        await asked(reader)
        writer.write(CHUNKED + chunk(b"data: a\n\n"))
        began.set()
        await reader.read(1)
        gone.set()

    async def work() -> None:
        began.clear()
        async with served(answer) as url, opened(kind, url) as transport:
            task = asyncio.ensure_future(sent(transport))
            await began.wait()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(gone.wait(), 2)

    began, gone = asyncio.Event(), asyncio.Event()
    run(work)
    assert gone.is_set()


def test_many_at_once_do_not_wait_for_one_another(kind: type) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        await asked(reader)
        waiting.append(1)
        while len(waiting) < 200:
            await asyncio.sleep(0.01)
        writer.write(HEAD + b"Content-Length: 2\r\n\r\nok")
        await reader.read()

    async def work() -> None:
        async with served(answer) as url, opened(kind, url) as transport:
            await transport.prepare(200)
            exchanges = await asyncio.gather(*(sent(transport) for _ in range(200)))
        assert all(e.fault is None for e in exchanges)

    waiting: list[int] = []
    run(work)
    assert len(waiting) == 200


def test_a_large_body_and_a_large_event_pass_whole(kind: type) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        body = (await asked(reader)).partition(b"\r\n\r\n")[2]
        sizes.append(len(body))
        writer.write(CHUNKED + chunk(b"data: " + b"y" * (2 << 20) + b"\n\n") + END)
        await reader.read()

    async def work() -> None:
        async with served(answer) as url, opened(kind, url) as transport:
            exchange = await sent(transport, b"x" * 900_000)
        assert len(b"".join(exchange.chunks)) == (2 << 20) + 8
        assert exchange.fault is None

    sizes: list[int] = []
    run(work)
    assert sizes == [900_000]


def test_an_error_body_is_kept_up_to_a_limit(kind: type) -> None:
    async def answer(reader: Reader, writer: Writer) -> None:
        await asked(reader)
        writer.write(b"HTTP/1.1 400 Bad\r\nContent-Length: 1000000\r\n\r\n" + b"e" * 1_000_000)
        await reader.read()

    async def work() -> None:
        async with served(answer) as url, opened(kind, url) as transport:
            exchange = await sent(transport)
        assert exchange.status == 400
        assert 0 < len(b"".join(exchange.chunks)) <= 64 << 10

    run(work)
