"""The client's own HTTP/1.1 transport: a protocol that stamps reads and strips the framing.

About half the CPU time per read of a general HTTP client, and connections can be opened before a
request is due. Same promises as the aiohttp transport: no limit on connections, no proxies, no
decoding, no connection reused that the server may be about to close.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections import deque
from typing import cast
from urllib.parse import urlsplit

from autotune.replay.exchange import Exchange
from autotune.replay.http1 import AnswerDecoder, NotHttpError

KEEPALIVE_S = 3.0
"""vLLM and SGLang close an idle connection after 5 s; one that we may still use must be younger."""
ERROR_BODY_LIMIT = 64 << 10
CONNECT_TOGETHER = 8
"""Connections opened at a time ahead of need; the loop serves streams in between."""
_CLIENT_LIMITS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
_now = time.monotonic


class _Connection(asyncio.Protocol):
    """One connection; carries one exchange at a time."""

    __slots__ = (
        "_decoder", "_descriptor", "_done", "_error_bytes", "_exchange", "_transport",
        "idle_since", "lost", "served",
    )  # fmt: skip

    def __init__(self) -> None:
        self._decoder = AnswerDecoder()
        self._descriptor = -1
        self._done: asyncio.Future[bool] | None = None
        self._error_bytes = 0
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.lost = False
        self.served = 0

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by shape only
        if transport.get_extra_info("ssl_object") is None:
            self._descriptor = transport.get_extra_info("socket").fileno()
        self.idle_since = _now()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # bytes that nobody asked for
            return
        stamp = _now()
        if self._decoder.at_chunk:
            # Nearly every read is one whole chunk.
            cut = data.find(b"\r\n", 0, 12)
            try:
                size = int(data[:cut], 16)
            except ValueError:
                size = 0
            if size > 0 and len(data) == cut + 4 + size:
                exchange.stamps.append(stamp)
                exchange.chunks.append(data[cut + 2 : -2])
                return
        self._decode(exchange, stamp, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if exc is not None or not self._decoder.close():
            name = "reset" if exc is not None else "closed"
            if exchange.headers is None:
                exchange.fail("cut", f"the connection was {name} before any answer")
            else:
                exchange.fail("cut", f"the connection was {name} within the answer")
        self._end()

    # ---- called by the transport

    def ask(self, request: bytes, exchange: Exchange) -> asyncio.Future[bool]:
        """Send a request; the future is done when its answer has ended, one way or another."""
        assert self._transport is not None
        self._decoder = AnswerDecoder()
        self._exchange = exchange
        self._error_bytes = 0
        self._done = asyncio.get_running_loop().create_future()
        written = 0
        if self._descriptor >= 0:
            # Event loops send at the end of their turn; a burst would wait for its last request.
            try:
                written = os.write(self._descriptor, request)
            except BlockingIOError:
                written = 0
            except OSError:
                self._transport.abort()
        exchange.sent = _now()
        if written < len(request) and not self._transport.is_closing():
            self._transport.write(memoryview(request)[written:])
        return self._done

    def usable(self, now: float) -> bool:
        """Whether another request may be sent on it."""
        if self.lost or self._transport is None or self._transport.is_closing():
            return False
        return now - self.idle_since < KEEPALIVE_S and (
            self.served == 0 or self._decoder.keep_alive
        )

    def abort(self) -> None:
        """Close it now."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    # ---- inside

    def _decode(self, exchange: Exchange, stamp: float, data: bytes) -> None:
        decoder = self._decoder
        try:
            pieces = decoder.feed(data)
        except NotHttpError as error:
            exchange.fail("unparsable", f"the answer is not HTTP: {error}")
            self._break_off()
            return
        if exchange.headers is None and decoder.status is not None:
            exchange.headers = stamp
            exchange.status = decoder.status
            exchange.content_type = decoder.content_type
        if exchange.status != 200:
            pieces = [piece[: ERROR_BODY_LIMIT - self._error_bytes] for piece in pieces]
            self._error_bytes += sum(len(piece) for piece in pieces)
        for piece in pieces:
            exchange.stamps.append(stamp)
            exchange.chunks.append(piece)
        if decoder.done:
            self._exchange = None
            self.served += 1
            self.idle_since = stamp
            self._end()
        elif self._error_bytes >= ERROR_BODY_LIMIT:
            self._break_off()

    def _break_off(self) -> None:
        self.abort()
        self._end()

    def _end(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(True)


class WireTransport:
    """`Transport` over HTTP/1.1. `url` is the whole address; `headers` go with every request."""

    def __init__(self, url: str, *, headers: dict[str, str], connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._connect_timeout_s = connect_timeout_s
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        fields = {
            "Host": parts.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            **headers,
        }
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        self._head = ("\r\n".join(lines) + "\r\n").encode("latin-1")
        self._addresses: list[str] = []
        self._used: list[_Connection] = []
        self._fresh: deque[_Connection] = deque()
        self._all: set[_Connection] = set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError:
            return  # told with each request, as any server that is not there
        self._addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))

    async def close(self) -> None:
        for connection in self._all:
            connection.abort()
        self._all.clear()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    async def prepare(self, count: int) -> None:
        self._drop_old()
        wanted = count - len(self._used) - len(self._fresh)
        while wanted > 0:
            together = min(wanted, CONNECT_TOGETHER)
            found = await asyncio.gather(
                *(self._connect() for _ in range(together)), return_exceptions=True
            )
            made = [connection for connection in found if isinstance(connection, _Connection)]
            self._fresh.extend(made)
            if len(made) < together:
                return  # the requests themselves will tell why
            wanted -= together

    async def send(self, body: bytes, exchange: Exchange) -> None:
        name = exchange.request_id.encode("latin-1")
        label = b"X-Request-Id: %b\r\n" % name if name else b""
        request = b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, label, len(body), body)
        connection = self._idle() or await self._connected(exchange)
        if connection is None:
            return
        exchange.reused = connection.served > 0
        await self._exchange(connection, request, exchange)
        # A server may close an idle connection in the very moment that it is reused. Nothing
        # was answered, so asking again is not a second chance for a slow or failing server.
        if exchange.fault == "cut" and exchange.reused and exchange.headers is None:
            exchange.fault = exchange.detail = None
            exchange.retries += 1
            exchange.reused = False
            again = await self._connected(exchange)
            if again is not None:
                await self._exchange(again, request, exchange)

    async def _exchange(self, connection: _Connection, request: bytes, exchange: Exchange) -> None:
        try:
            await connection.ask(request, exchange)
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            if connection.usable(_now()):
                self._used.append(connection)
            else:
                connection.abort()
                self._all.discard(connection)

    def _idle(self) -> _Connection | None:
        """An open connection at hand: the last used one, else the one that was opened first."""
        now = _now()
        while self._used or self._fresh:
            connection = self._used.pop() if self._used else self._fresh.popleft()
            if connection.usable(now):
                return connection
            connection.abort()
            self._all.discard(connection)
        return None

    def _drop_old(self) -> None:
        now = _now()
        for connection in [c for c in (*self._used, *self._fresh) if not c.usable(now)]:
            (self._used if connection in self._used else self._fresh).remove(connection)
            connection.abort()
            self._all.discard(connection)

    async def _connected(self, exchange: Exchange) -> _Connection | None:
        """A new connection, or None with the exchange's fault set."""
        try:
            return await self._connect()
        except TimeoutError:
            exchange.fail("connect_timeout", "no connection within the limit")
        except OSError as error:
            if error.errno in _CLIENT_LIMITS:
                words = f"the client ran into a limit of this machine: {error.strerror}"
                exchange.fail("not_sent", words)
            else:
                exchange.fail("refused", f"no connection: {_words(error)}")
        return None

    async def _connect(self) -> _Connection:
        """Raises TimeoutError or another OSError."""
        if not self._addresses:
            raise OSError("the server's name has no address")
        loop = asyncio.get_running_loop()
        last: OSError | None = None
        async with asyncio.timeout(self._connect_timeout_s):
            for address in list(self._addresses):
                try:
                    _, connection = await loop.create_connection(
                        _Connection, address, self._port, ssl=self._tls,
                        server_hostname=self._host if self._tls else None,
                    )  # fmt: skip
                except TimeoutError:
                    raise
                except OSError as error:
                    last = error
                    continue
                if address != self._addresses[0]:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                self._all.add(connection)
                return connection
        assert last is not None
        raise last


def _words(error: OSError) -> str:
    """Why there is no connection. Numbers of TLS faults are not those of the system."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {getattr(error, 'verify_message', None) or error.reason or error}"
    return (os.strerror(error.errno) if error.errno else str(error)) or type(error).__name__
