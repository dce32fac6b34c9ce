"""The HTTP side of the simulated server: vLLM's routes over aiohttp, real SSE in real time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from autotune.simulator.config import EngineConfig
from autotune.simulator.core import Noise
from autotune.simulator.live import EngineDeadError, LiveEngine, Stream
from autotune.simulator.log import ServerLog
from autotune.simulator.memory import OutOfMemory
from autotune.simulator.profile import Profile
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.startup import log_death
from autotune.simulator.voice import Voice
from autotune.simulator.wire import (
    DONE,
    Answer,
    Asked,
    BadRequestError,
    Kind,
    error_body,
    parse_request,
)

MARK = {"X-Autotune-Simulated": "1", "Server": "uvicorn"}
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_MAX_BODY = 1 << 28
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the HTTP side needs besides the engine's settings. `names`: served model names."""

    names: tuple[str, ...]
    root: str
    version: str
    api_keys: tuple[str, ...] = ()
    dev_mode: bool = False
    prompt_tokens_details: bool = False
    force_usage: bool = False
    access_log: bool = True
    stats_interval_s: float = 10.0
    noise: float = 0.0
    seed: int | None = None
    metrics: bool = True


def serve(
    config: EngineConfig,
    profile: Profile,
    options: ServerOptions,
    listener: socket.socket,
    log: ServerLog,
    routes: type[Routes] | None = None,
) -> int:
    """Serve on a bound socket until SIGTERM, SIGINT or the engine's death. Returns 0, as vLLM.

    `routes`: what answers, and how it speaks in the log; vLLM's unless given.
    """
    asyncio.run(_serve(config, profile, options, listener, log, routes or Routes))
    return 0


async def _serve(
    config: EngineConfig,
    profile: Profile,
    options: ServerOptions,
    listener: socket.socket,
    log: ServerLog,
    kind: type[Routes],
) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)

    def died(out: OutOfMemory) -> None:
        routes.died(out)
        over.set()

    engine = LiveEngine(config, profile, Noise(share=options.noise, seed=options.seed), died)
    routes = kind(engine, config, profile, options, log)
    runner = web.AppRunner(
        routes.application(),
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=5.0,
        shutdown_timeout=0.5,
    )
    await runner.setup()
    site = web.SockSite(runner, listener, backlog=2048)
    await site.start()
    host, port = listener.getsockname()[:2]
    routes.announce(f"http://{host}:{port}")
    gc.freeze()
    stats = asyncio.create_task(_log_stats(engine, routes, options.stats_interval_s))
    await over.wait()
    log.plain("INFO:     Shutting down")
    stats.cancel()
    # after a death the streams still have to be told; after a signal they are cut
    await asyncio.sleep(0.2 if engine.core.dead is not None else 0.0)
    await runner.cleanup()
    engine.stop()
    log.plain("INFO:     Application shutdown complete. (simulated)")


async def _log_stats(engine: LiveEngine, routes: Routes, interval_s: float) -> None:
    seen_prompt = seen_output = 0
    while True:
        await asyncio.sleep(interval_s)
        metrics, scheduler = engine.metrics, engine.core.scheduler
        prompt, output = (
            metrics.prompt_tokens - seen_prompt,
            metrics.generation_tokens - seen_output,
        )
        seen_prompt, seen_output = metrics.prompt_tokens, metrics.generation_tokens
        if not (prompt or output or scheduler.running):
            continue
        routes.log_stats(prompt / interval_s, output / interval_s)


class Routes:
    """The request handlers."""

    def __init__(
        self,
        engine: LiveEngine,
        config: EngineConfig,
        profile: Profile,
        options: ServerOptions,
        log: ServerLog,
    ) -> None:
        self._engine = engine
        self._config = config
        self._profile = profile
        self._options = options
        self._log = log
        self._voice = Voice(loss=profile.loss(config.quantization, config.kv_cache_dtype))
        self._numbers = itertools.count()
        self._created = int(time.time())

    def application(self) -> web.Application:
        """The aiohttp application with all routes."""
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._around])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ping", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        self.add_own(app)
        return app

    def add_own(self, app: web.Application) -> None:
        """Add the routes that are vLLM's own."""
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        if self._options.dev_mode:
            app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)

    def announce(self, url: str) -> None:
        """Say that the server is up."""
        self._log.say("entry.py:140", f"Starting vLLM server on {url}")
        self._log.plain(f"INFO:     Started server process [{os.getpid()}]")
        self._log.plain("INFO:     Application startup complete. (simulated)")

    def log_stats(self, prompt_rate: float, output_rate: float) -> None:
        """The line of every few seconds; rates in tokens per second."""
        scheduler = self._engine.core.scheduler
        hits, queries = scheduler.counters.prefix_hits, scheduler.counters.prefix_queries
        self._log.say(
            "loggers.py:283",
            f"Engine 000: Avg prompt throughput: {prompt_rate:.1f} tokens/s, "
            f"Avg generation throughput: {output_rate:.1f} tokens/s, "
            f"Running: {len(scheduler.running)} reqs, Waiting: {len(scheduler.waiting)} reqs, "
            f"GPU KV cache usage: {100 * scheduler.pool.usage:.1f}%, "
            f"Prefix cache hit rate: {100 * hits / max(queries, 1):.1f}%",
        )

    def died(self, out: OutOfMemory) -> None:
        """Say that the engine ran out of memory under load."""
        log_death(self._log, out, self._profile)

    @web.middleware
    async def _around(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Authorisation, error bodies, the mark on every answer, the access line."""
        response: web.StreamResponse
        try:
            response = await handler(request) if self._allowed(request) else _unauthorized()
        except BadRequestError as refused:
            response = _json(refused.body(), refused.status)
        except web.HTTPException as error:
            response = _json(json.dumps({"detail": error.reason}).encode(), error.status)
        except EngineDeadError:
            response = _json(error_body(_DEAD, "InternalServerError", 500), 500)
        if not response.prepared:
            response.headers.update(MARK)
        if self._options.access_log and request.path not in {"/health", "/metrics"}:
            peer = request.transport.get_extra_info("peername") if request.transport else None
            where = f"{peer[0]}:{peer[1]}" if peer else "-"
            self._log.access(
                where, request.method, request.path, response.status, response.reason or ""
            )
        return response

    def _allowed(self, request: web.Request) -> bool:
        keys = self._options.api_keys
        if not keys or not request.path.startswith("/v1"):
            return True
        return request.headers.get("Authorization") in {f"Bearer {key}" for key in keys}

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.core.dead is None else 503)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self._options.version})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = self._engine.metrics.exposition(
            self._engine.core, self._config, self._options.names[0]
        )
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def _models(self, request: web.Request) -> web.Response:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "autotune-simulator",
                "root": self._options.root,
                "parent": None,
                "max_model_len": self._config.max_model_len,
            }
            for name in self._options.names
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        return web.json_response({"success": self._engine.core.scheduler.pool.forget()})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completion")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def _generate(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        asked = parse_request(
            kind,
            await request.read(),
            names=self._options.names,
            max_model_len=self._config.max_model_len,
            vocab_size=self._profile.vocab_size,
        )
        prefix = "cmpl" if kind == "completion" else "chatcmpl"
        number = request.headers.get("X-Request-Id") or f"sim{next(self._numbers):08d}"
        answer = Answer(
            asked=asked,
            id=f"{prefix}-{number}",
            created=int(time.time()),
            model=self._options.names[0],
            voice=self._voice,
        )
        stream = self._engine.submit(
            SimRequest(
                id=f"{answer.id}-{next(self._numbers)}",
                prompt=asked.prompt,
                output_tokens=asked.output_tokens,
                cache_salt=asked.cache_salt,
            )
        )
        try:
            if asked.stream:
                return await self._stream(request, asked, answer, stream)
            last = False
            while not last:
                _count, last = await stream.next()
            return _json(answer.whole(self._cached(stream)), 200)
        finally:
            self._engine.drop(stream)

    async def _stream(
        self, request: web.Request, asked: Asked, answer: Answer, stream: Stream
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**MARK, "Content-Type": "text/event-stream"})
        response.headers["Cache-Control"] = "no-cache"
        response.enable_chunked_encoding()
        sent, last = 0, False
        try:
            while not last:
                count, last = await stream.next()
                data = answer.token_event(sent, count, last)
                if sent == 0:
                    await response.prepare(request)
                    data = answer.role_event() + data if asked.kind == "chat" else data
                sent += count
                await response.write(data)
            if asked.include_usage or self._options.force_usage:
                await response.write(answer.usage_event(self._cached(stream)))
            await response.write(DONE)
        except EngineDeadError:
            if not response.prepared:
                raise
            body = error_body(_DEAD, "InternalServerError", 500)
            await response.write(b"data: " + body + b"\n\n" + DONE)
        await response.write_eof()
        return response

    def _cached(self, stream: Stream) -> int | None:
        return stream.sequence.cached_tokens if self._options.prompt_tokens_details else None


def _json(body: bytes, status: int) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _unauthorized() -> web.Response:
    return _json(b'{"error":"Unauthorized"}', 401)
