"""The HTTP side of the simulated SGLang: its own routes, what its key guards, what its log says."""

from __future__ import annotations

import argparse
import os
import socket

from aiohttp import web

from autotune.simulator.config import EngineConfig
from autotune.simulator.log import SglangLog
from autotune.simulator.memory import OutOfMemory
from autotune.simulator.profile import Profile
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.server import Routes, ServerOptions, serve
from autotune.simulator.sglang_arguments import VERSION
from autotune.simulator.sglang_generate import native_answer, read_native
from autotune.simulator.sglang_start import log_death

_OPEN = ("/health", "/health_generate", "/metrics")
_STATS_S = 10.0


def serve_sglang(
    args: argparse.Namespace,
    model: str,
    config: EngineConfig,
    profile: Profile,
    listener: socket.socket,
    log: SglangLog,
) -> int:
    """Serve on a bound socket until a signal or the engine's death. Returns the exit code."""
    options = ServerOptions(
        names=(args.served_model_name or model,),
        root=model,
        version=f"{VERSION}+simulated",
        api_keys=(args.api_key,) if args.api_key else (),
        prompt_tokens_details=bool(args.enable_cache_report),
        force_usage=bool(args.stream_response_default_include_usage),
        access_log=args.log_level_http not in ("warning", "error", "critical"),
        stats_interval_s=_STATS_S,
        noise=args.sim_noise,
        seed=args.sim_seed,
        metrics=bool(args.enable_metrics),
    )
    return serve(config, profile, options, listener, log, SglangRoutes)


class SglangRoutes(Routes):
    """SGLang's routes over the same engine."""

    def add_own(self, app: web.Application) -> None:
        """Add the routes that are SGLang's own; `/metrics` only where it was asked for."""
        app.router.add_get("/health_generate", self._health)
        app.router.add_get("/get_server_info", self._server_info)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_route("*", "/flush_cache", self._flush_cache)
        app.router.add_post("/generate", self._native)
        if self._options.metrics:
            app.router.add_get("/metrics", self._sglang_metrics)

    def announce(self, url: str) -> None:
        """Say that the server is up."""
        self._log.plain(f"INFO:     Started server process [{os.getpid()}]")
        self._log.plain("INFO:     Application startup complete. (simulated)")
        self._log.say("http_server", f"Uvicorn running on {url}")
        self._log.say("http_server", "The server is fired up and ready to roll!")

    def log_stats(self, prompt_rate: float, output_rate: float) -> None:
        """The line of every few seconds; rates in tokens per second."""
        scheduler = self._engine.core.scheduler
        self._log.rank(
            f"Decode batch, #running-req: {len(scheduler.running)}, "
            f"token usage: {scheduler.pool.usage:.2f}, gen throughput (token/s): "
            f"{output_rate:.2f}, input throughput (token/s): {prompt_rate:.2f}, "
            f"#queue-req: {len(scheduler.waiting)}"
        )

    def died(self, out: OutOfMemory) -> None:
        """Say that the engine ran out of memory under load."""
        assert isinstance(self._log, SglangLog)
        log_death(self._log, out, self._profile)

    def _allowed(self, request: web.Request) -> bool:
        keys = self._options.api_keys
        if not keys or request.path in _OPEN:
            return True
        return request.headers.get("Authorization") in {f"Bearer {key}" for key in keys}

    async def _server_info(self, request: web.Request) -> web.Response:
        info = {
            "version": self._options.version,
            "max_running_requests": self._config.max_num_seqs,
            "max_total_num_tokens": self._engine.core.memory.num_blocks * self._config.block_size,
            "simulated": True,
        }
        return web.json_response(info)

    async def _native(self, request: web.Request) -> web.Response:
        asked = read_native(
            await request.read(),
            max_model_len=self._config.max_model_len,
            vocab_size=self._profile.vocab_size,
        )
        number = f"sim{next(self._numbers):08d}"
        stream = self._engine.submit(
            SimRequest(id=number, prompt=asked.prompt, output_tokens=asked.output_tokens)
        )
        try:
            last = False
            while not last:
                _count, last = await stream.next()
            body = native_answer(asked, self._voice, number, self._cached(stream))
            return web.Response(body=body, content_type="application/json")
        finally:
            self._engine.drop(stream)

    async def _flush_cache(self, request: web.Request) -> web.Response:
        """Refused while requests run, as SGLang does."""
        if self._engine.core.scheduler.running or self._engine.core.scheduler.waiting:
            return web.Response(status=400, text="Flush cache failed: requests are running.\n")
        self._engine.core.scheduler.pool.forget()
        return web.Response(text="Cache flushed.\n")

    async def _sglang_metrics(self, request: web.Request) -> web.Response:
        text = self._engine.metrics.sglang_exposition(
            self._engine.core, self._config, self._options.names[0]
        )
        return web.Response(text=text, content_type="text/plain", charset="utf-8")
