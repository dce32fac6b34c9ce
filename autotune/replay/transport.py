"""The aiohttp transport: no connection limit, no proxies, no decoding, no retry that hides a fault.

httpx 0.28's own pool adds seconds of false TTFT from 256 streams on, hence aiohttp here.
"""

from __future__ import annotations

import errno
import ssl
import time
from types import SimpleNamespace

import aiohttp
from yarl import URL

from autotune.replay.exchange import Exchange

KEEPALIVE_S = 3.0
"""vLLM and SGLang close an idle connection after 5 s; one that we may still use must be younger."""
READ_BUFFER = 4 << 20
ERROR_BODY_LIMIT = 64 << 10
_CLIENT_LIMITS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}


class HttpTransport:
    """`Transport` over HTTP/1.1. `url` is the whole address; `headers` go with every request."""

    def __init__(self, url: str, *, headers: dict[str, str], connect_timeout_s: float) -> None:
        self._url = URL(url)
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            **headers,
        }
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_stamp_sent)
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=None
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            headers=self._headers,
            skip_auto_headers=("User-Agent",),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=READ_BUFFER,
            trace_configs=[trace],
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def prepare(self, count: int) -> None:
        """Nothing: connections of aiohttp are opened for requests only."""

    async def send(self, body: bytes, exchange: Exchange) -> None:
        try:
            await self._attempt(body, exchange)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError, aiohttp.ClientOSError) as e:
            # A server may close an idle connection in the very moment that it is reused. Nothing
            # was answered, so asking again is not a second chance for a slow or failing server.
            if exchange.reused and exchange.headers is None and not exchange.retries:
                exchange.retries += 1
                exchange.reused = False
                try:
                    await self._attempt(body, exchange)
                except (aiohttp.ClientError, OSError) as second:
                    _explain(second, exchange)
            else:
                _explain(e, exchange)
        except (aiohttp.ClientError, OSError) as e:
            _explain(e, exchange)

    async def _attempt(self, body: bytes, exchange: Exchange) -> None:
        if self._session is None:
            raise RuntimeError("the transport is not open")
        headers = {"X-Request-Id": exchange.request_id} if exchange.request_id else None
        async with self._session.post(
            self._url,
            data=body,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=exchange,
        ) as response:
            exchange.headers = time.monotonic()
            exchange.status = response.status
            exchange.content_type = response.content_type
            if response.status != 200:
                exchange.chunks.append(await response.content.read(ERROR_BODY_LIMIT))
                exchange.stamps.append(time.monotonic())
                return
            now, stamp, keep = time.monotonic, exchange.stamps.append, exchange.chunks.append
            async for chunk in response.content.iter_any():
                stamp(now())
                keep(chunk)


async def _stamp_sent(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    params: aiohttp.TraceRequestHeadersSentParams,
) -> None:
    context.trace_request_ctx.sent = time.monotonic()


async def _note_reuse(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused = True


def _explain(error: Exception, exchange: Exchange) -> None:
    """Give an exchange the fault that fits a network error."""
    name = type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        exchange.fail("connect_timeout", "no connection within the limit")
    elif number in _CLIENT_LIMITS:
        exchange.fail("not_sent", f"the client ran into a limit of this machine: {error.strerror}"
                      if isinstance(error, OSError) else name)  # fmt: skip
    elif isinstance(error, (aiohttp.ClientConnectorError, ssl.SSLError)):
        exchange.fail("refused", f"no connection: {getattr(error, 'strerror', None) or name}")
    elif isinstance(error, aiohttp.ClientResponseError):
        exchange.fail("unparsable", f"the answer is not HTTP: {name}")
    elif exchange.headers is None:
        exchange.fail("cut", f"the connection was closed before any answer ({name})")
    else:
        exchange.fail("cut", f"the connection broke within the answer ({name})")
