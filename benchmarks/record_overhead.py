"""What the recording proxy adds to a request, on loopback: straight to a server and through it.

    python benchmarks/record_overhead.py [--requests 600] [--tokens 16] [--pace-ms 2]
                                         [--prompt-bytes 8000]

A bundled server streams an event each `pace-ms` (0: all at once, which also shows what the proxy
costs when it is busy); every second request goes through the proxy, both ways on kept connections.
The proxy runs in a process of its own, as for a user. Times are the client's, in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import orjson
import uvloop
from aiohttp import web

MODES = ("completion", "chat", "chat, counts asked for")


def events(tokens: int, *, usage: bool) -> list[bytes]:
    payloads = [
        {"choices": [{"index": 0, "text": " word", "delta": {"content": " word"}}]}
    ] * tokens
    lines = [b"data: " + orjson.dumps(payload) + b"\n\n" for payload in payloads]
    if usage:
        counts = {"prompt_tokens": 2000, "completion_tokens": tokens}
        lines.append(b"data: " + orjson.dumps({"choices": [], "usage": counts}) + b"\n\n")
    return [*lines, b"data: [DONE]\n\n"]


async def serve(port: int, tokens: int, pace_s: float) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.content.read())
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events(tokens, usage=usage):
            if pace_s and b"word" in event:
                await asyncio.sleep(pace_s)
            await response.write(event)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


async def ask(session: aiohttp.ClientSession, url: str, body: bytes) -> tuple[float, float]:
    """Milliseconds to the first byte of the answer, and to its end."""
    start = time.perf_counter()
    async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
        await answer.content.readany()
        first = time.perf_counter()
        await answer.content.read()
    return (first - start) * 1e3, (time.perf_counter() - start) * 1e3


def body_of(mode: str, prompt_bytes: int, number: int) -> tuple[str, bytes]:
    text = f"{number} " + "some words of a prompt " * (prompt_bytes // 23)
    if mode == "completion":
        return "/v1/completions", orjson.dumps({"model": "m", "stream": True, "prompt": text})
    asked = {"stream_options": {"include_usage": True}} if "counts" in mode else {}
    messages = [{"role": "user", "content": text}]
    body = {"model": "m", "stream": True, "messages": messages, **asked}
    return "/v1/chat/completions", orjson.dumps(body)


async def measure(options: argparse.Namespace, direct: str, through: str) -> None:
    async with aiohttp.ClientSession() as session:
        for mode in MODES:
            times: dict[str, list[tuple[float, float]]] = {direct: [], through: []}
            for number in range(-50, options.requests):
                path, body = body_of(mode, options.prompt_bytes, number)
                base = (direct, through)[number % 2]
                took = await ask(session, base + path, body)
                if number >= 0:
                    times[base].append(took)
            report(mode, times[direct], times[through])


def report(
    mode: str, direct: list[tuple[float, float]], through: list[tuple[float, float]]
) -> None:
    for which, name in enumerate(("first byte", "end")):
        one, two = ([took[which] for took in side] for side in (direct, through))
        medians = statistics.median(one), statistics.median(two)
        high = [statistics.quantiles(side, n=100)[98] for side in (one, two)]
        print(
            f"{mode:<24} {name:<11} {medians[0]:8.3f} {medians[1]:8.3f} "
            f"{medians[1] - medians[0]:+8.3f} {high[1] - high[0]:+8.3f}"
        )


def wait_for(port: int) -> None:
    import socket

    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise SystemExit(f"nothing listens on {port}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--pace-ms", type=float, default=2.0)
    parser.add_argument("--prompt-bytes", type=int, default=8000)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve, options.tokens, options.pace_ms / 1e3))
        return
    ports = (18431, 18432)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "recorded.jsonl"
        words = [sys.executable, __file__, "--serve", str(ports[0])]
        words += ["--tokens", str(options.tokens), "--pace-ms", str(options.pace_ms)]
        server = subprocess.Popen(words)
        proxy = subprocess.Popen(
            [sys.executable, "-m", "autotune", "workload", "record",
             "--listen", f"127.0.0.1:{ports[1]}", "--upstream", f"http://127.0.0.1:{ports[0]}",
             "-o", str(output)],
            env=os.environ,
        )  # fmt: skip
        try:
            for port in ports:
                wait_for(port)
            print(f"{options.requests} requests, {options.tokens} events each, one at a time; ms")
            print(f"{'':<24} {'':<11} {'direct':>8} {'proxy':>8} {'added':>8} {'at p99':>8}")
            uvloop.run(measure(options, *(f"http://127.0.0.1:{port}" for port in ports)))
        finally:
            proxy.send_signal(signal.SIGINT)
            proxy.wait(timeout=20)
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
