"""The proxy itself: passes everything on as it comes, looks at completion and chat requests.

What a client gets is what the engine sent, byte for byte, but for one event with token counts where
the client had not asked for it. Records are made after the answer has gone.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from autotune.canonical import Json
from autotune.workload.recording.options import RecordOptions
from autotune.workload.recording.recorder import Exchange, Recorder
from autotune.workload.recording.stream import AnswerTap, asking_for_usage

ROUTES = {"/v1/completions": False, "/v1/chat/completions": True}
"""Path of what is recorded -> whether it is chat."""
_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade", "expect", "host"}  # fmt: skip
CONNECT_S = 10.0
IDLE_S = 4.0
"""Connections to the engine are kept shorter than uvicorn keeps them (5 s), so that none is used
that is being closed."""
_BUFFER = 1 << 20
_LARGE = 1 << 20


@dataclass(slots=True)
class Gate:
    """What the proxy tells while it runs: `down` counts requests that found no engine."""

    down: int = 0


class Proxy:
    """Handles requests. `now` gives seconds from the start of the recording."""

    def __init__(
        self, options: RecordOptions, recorder: Recorder, now: Callable[[], float]
    ) -> None:
        self._options = options
        self._recorder = recorder
        self._now = now
        self._session: aiohttp.ClientSession | None = None
        self.gate = Gate()

    def application(self) -> web.Application:
        """The application to serve; it opens and closes the connections to the engine."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        app.on_startup.append(self._open)
        app.on_cleanup.append(self._close)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, and its answer back."""
        chat = ROUTES.get(request.path)
        if chat is None or request.method != "POST":
            self._recorder.summary.other += 1
            data = request.content if request.can_read_body else None
            return await self._pass(request, data, AnswerTap(stream=False, strip_usage=False), None)
        at_s = self._now()
        self._recorder.summary.requests += 1
        body = await request.content.read()
        exchange, sent, strip = self._watched(request, body, at_s, chat=chat)
        tap = AnswerTap(stream=True, strip_usage=strip)
        try:
            return await self._pass(request, sent, tap, exchange)
        except (asyncio.CancelledError, ConnectionResetError):
            exchange.cut = exchange.failed is None
            raise
        finally:
            exchange.end_s = self._now()
            exchange.usage = tap.usage()
            exchange.events = tap.events
            if tap.failed:
                exchange.failed = "error_in_answer"
            self._recorder.finish(exchange)

    def _watched(
        self, request: web.Request, body: bytes, at_s: float, *, chat: bool
    ) -> tuple[Exchange, bytes, bool]:
        """(the exchange to fill in, the body to send on, whether it asks for counts of ours)."""
        data: Json = None
        if "Content-Encoding" not in request.headers:
            try:
                data = orjson.loads(body)
            except orjson.JSONDecodeError:
                data = None
        exchange = Exchange(
            at_s=at_s,
            chat=chat,
            body=data if isinstance(data, dict) else {},
            session_name=request.headers.get(self._options.session_header),
            failed=None if isinstance(data, dict) else "unreadable_body",
        )
        asking = asking_for_usage(body, data) if isinstance(data, dict) else None
        return exchange, body if asking is None else asking, asking is not None

    async def _pass(
        self,
        request: web.Request,
        data: bytes | aiohttp.StreamReader | None,
        tap: AnswerTap,
        exchange: Exchange | None,
    ) -> web.StreamResponse:
        try:
            upstream = await self._ask(request, data)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.gate.down += 1
            if exchange is not None:
                exchange.failed = "upstream_unreachable"
            return _bad_gateway(error)
        async with upstream:
            if exchange is not None and upstream.status >= 400:
                exchange.failed = f"http_{upstream.status}"
            return await self._answer(request, upstream, tap, exchange)

    async def _ask(
        self, request: web.Request, data: bytes | aiohttp.StreamReader | None
    ) -> aiohttp.ClientResponse:
        assert self._session is not None
        headers = _passed(request.headers)
        if isinstance(data, bytes):
            headers.popall("Content-Length", None)
            # A compressed stream could not be looked at
            headers["Accept-Encoding"] = "identity"
        url = URL(self._options.upstream + request.rel_url.raw_path_qs, encoded=True)
        for attempt in (1, 2):
            try:
                # aiohttp sends large bytes in one piece, and a file in pieces
                large = isinstance(data, bytes) and len(data) >= _LARGE
                return await self._session.request(
                    request.method,
                    url,
                    headers=headers,
                    data=io.BytesIO(data) if large and isinstance(data, bytes) else data,
                    allow_redirects=False,
                )
            except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                # A kept connection that the engine closed at this moment: nothing was answered
                if attempt == 2 or not isinstance(data, bytes):
                    raise
        raise AssertionError("unreachable")

    async def _answer(
        self,
        request: web.Request,
        upstream: aiohttp.ClientResponse,
        tap: AnswerTap,
        exchange: Exchange | None,
    ) -> web.StreamResponse:
        headers = _passed(upstream.headers)
        if upstream.content_type != "text/event-stream":
            tap.whole()
        if tap.strips:
            headers.popall("Content-Length", None)
        response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=headers
        )
        await response.prepare(request)
        try:
            async for chunk in upstream.content.iter_any():
                if tap.strips:
                    kept = tap.feed(chunk)
                    if kept:
                        await response.write(kept)
                else:
                    await response.write(chunk)
                    if exchange is not None:
                        tap.feed(chunk)
            rest = tap.finish()
            if rest:
                await response.write(rest)
        except (aiohttp.ClientError, TimeoutError) as error:
            if isinstance(error, ConnectionResetError):
                raise  # the client's side
            if exchange is not None:
                exchange.failed = "cut_by_upstream"
            # The client must see that the answer is not whole
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the engine ended in the middle of an answer") from error
        await response.write_eof()
        return response

    async def _open(self, app: web.Application) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=_BUFFER,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def _close(self, app: web.Application) -> None:
        if self._session is not None:
            await self._session.close()


def _passed(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers without those that belong to one connection."""
    kept: CIMultiDict[str] = CIMultiDict(headers)
    named = {
        name.strip().lower() for value in kept.getall("Connection", []) for name in value.split(",")
    }
    for name in _HOP | named:
        kept.popall(name, None)
    return kept


def _bad_gateway(error: BaseException) -> web.Response:
    """What clients get while the engine is away, in the form of an engine's own errors."""
    text = str(error) or type(error).__name__
    body = {
        "error": {
            "message": f"the engine behind the recording proxy does not answer: {text}",
            "type": "upstream_unreachable",
            "code": 502,
        }
    }
    return web.Response(status=502, body=orjson.dumps(body), content_type="application/json")
