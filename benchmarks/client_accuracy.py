"""How true the replay client's numbers are, and what they cost: client against a server that knows.

    python benchmarks/client_accuracy.py [--streams 16,64,256] [--seconds 4]

A bundled server answers with fixed timings (first token after 50 to 250 ms, then one each 20 ms)
and logs when it read each request and wrote each chunk. The same load is put on it by autotune and
by a bare aiohttp loop that only stamps what it reads. Errors are per request, matched by request
id: the client's figure minus the server's. Server and client are pinned to cores of their own if
there are two. `lag` is how late the requests left; the ratio is CPU per chunk to the bare loop's.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop

from autotune.clock import StopSignal, SystemClock
from autotune.replay.records import PlannedRequest
from autotune.replay.replayer import ReplayOptions, replay

TOKENS = 128
PACE_S = 0.020
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM_S = 0.150 + PACE_S * (TOKENS - 1)


def first_token_s(number: int) -> float:
    return 0.050 + 0.200 * ((number * 37) % 101) / 100


def framed(payload: Any) -> bytes:
    data = b"data: " + (payload if isinstance(payload, bytes) else orjson.dumps(payload)) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(count: int) -> bytes:
    return framed(
        {
            "id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1764400000,
            "model": "truth",
            "choices": [{
                "index": 0, "text": " the", "logprobs": None,
                "finish_reason": "length" if count == TOKENS else None, "stop_reason": None,
            }],
            "usage": {
                "prompt_tokens": 128, "completion_tokens": count, "total_tokens": 128 + count,
            },
        }
    )  # fmt: skip


CHUNKS = [token(k + 1) for k in range(TOKENS)]
TAIL = (
    framed({"choices": [], "usage": {"prompt_tokens": 128, "completion_tokens": TOKENS}})
    + framed(b"[DONE]")
    + b"0\r\n\r\n"
)


@dataclass(order=True, slots=True)
class Stream:
    """One answer in progress; the order is that of the next write."""

    due: float
    place: int
    truth: dict[str, Any]
    transport: asyncio.WriteTransport
    sent: int = 0


class TruthServer:
    """All streams of the server; writes whatever is due."""

    def __init__(self) -> None:
        self.truths: list[dict[str, Any]] = []
        self._due: list[Stream] = []
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, request_id: str, arrived: float, transport: asyncio.WriteTransport) -> None:
        truth = {"id": request_id, "arrived": arrived, "first": 0.0, "last": 0.0}
        number = int(request_id.split("-")[-1])
        self.truths.append(truth)
        transport.write(HEAD)
        stream = Stream(arrived + first_token_s(number), len(self.truths), truth, transport)
        heapq.heappush(self._due, stream)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._due:
            wait = max(0.001, self._due[0].due - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._write_due)

    def _write_due(self) -> None:
        self._timer = None
        now = time.monotonic()
        while self._due and self._due[0].due <= now:
            stream = heapq.heappop(self._due)
            stream.truth["last"] = time.monotonic()
            if not stream.sent:
                stream.truth["first"] = stream.truth["last"]
            stream.transport.write(CHUNKS[stream.sent])
            stream.sent += 1
            stream.due += PACE_S
            if stream.sent < TOKENS:
                heapq.heappush(self._due, stream)
            else:
                stream.transport.write(TAIL)
        self._arm()


class Connection(asyncio.Protocol):
    """One client connection: finds the end of a request and has it answered."""

    def __init__(self, server: TruthServer) -> None:
        self._server = server
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        headers = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        if len(body) < int(headers[b"content-length"]):
            return
        self._buffer = b""
        self._server.begin(
            headers[b"x-request-id"].decode(),
            time.monotonic(),
            self._transport,  # type: ignore[arg-type]
        )


async def serve() -> None:
    """Serve until standard input ends; then print what happened."""
    server = TruthServer()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=4096)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps(server.truths), flush=True)


async def bare(url: str, dues: Sequence[float]) -> list[dict[str, Any]]:
    """The least that a client can do: send on time, stamp what is read."""
    rows: list[dict[str, Any]] = []
    body = orjson.dumps({"prompt": list(range(128)), "max_tokens": TOKENS, "stream": True})
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=4 << 20) as session:

        async def one(number: int, due: float) -> None:
            stamps = []
            begun = time.monotonic()
            headers = {"X-Request-Id": f"b-{number}", "Content-Type": "application/json"}
            async with session.post(url, data=body, headers=headers) as response:
                async for _ in response.content.iter_any():
                    stamps.append(time.monotonic())  # noqa: PERF401 - the plainest loop
            rows.append(
                {"id": number, "lag": begun - due, "begun": begun, "first": stamps[0],
                 "tpot": None, "chunks": len(stamps)}
            )  # fmt: skip

        start = time.monotonic() + 0.1
        tasks = []
        for number, at in enumerate(dues):
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            tasks.append(asyncio.ensure_future(one(number, start + at)))
        await asyncio.gather(*tasks)
    return rows


def run_bare(url: str, dues: Sequence[float]) -> tuple[list[dict[str, Any]], float, float]:
    answer = subprocess.run(
        [sys.executable, __file__, "--bare", url],
        input=json.dumps(list(dues)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(answer.stdout)
    return found["rows"], found["cpu_s"], found["rss_mb"]


def run_autotune(url: str, dues: Sequence[float]) -> tuple[list[dict[str, Any]], float, float]:
    plan = [
        PlannedRequest(index=k, due_s=at, prompt=range(128), output_tokens=TOKENS)
        for k, at in enumerate(dues)
    ]
    with tempfile.TemporaryDirectory() as folder:
        result = replay(
            plan, url=url, model="truth", options=ReplayOptions(), directory=Path(folder),
            clock=SystemClock(), stop=StopSignal(), alive=lambda: True,
        )  # fmt: skip
    rows = []
    for r in result.records:
        if r.failure or r.first_token_s is None or r.last_token_s is None or r.begun_s is None:
            raise SystemExit(f"request {r.index} failed: {r.failure} {r.detail}")
        tpot = (r.last_token_s - r.first_token_s) / (TOKENS - 1)
        rows.append(
            {"id": r.index, "lag": r.begun_s - r.due_s, "ttft": r.first_token_s - r.begun_s,
             "tpot": tpot, "chunks": r.events}
        )  # fmt: skip
    return rows, result.health.extra["cpu_s"], result.health.extra["peak_rss_bytes"] / 2**20


@contextmanager
def truth_server(core: int | None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server process; its log is in the list once the context is left."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", *([str(core)] if core is not None else [])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    truths: list[dict[str, Any]] = []
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}", truths
        process.stdin.close()
        truths.extend(json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


def measure(name: str, streams: int, seconds: float, core: int | None) -> dict[str, Any]:
    rate = streams / STREAM_S
    dues = [k / rate for k in range(max(1, round(rate * seconds)))]
    with truth_server(core) as (url, truths):
        rows, cpu_s, rss_mb = (run_autotune if name == "autotune" else run_bare)(url, dues)
    known = {int(truth["id"].split("-")[-1]): truth for truth in truths}
    ttft, tpot = [], []
    for row in rows:
        truth = known[row["id"]]
        served = truth["first"] - truth["arrived"]
        seen = row["ttft"] if "ttft" in row else row["first"] - row["begun"]
        ttft.append((seen - served) * 1e3)
        if row["tpot"] is not None:
            tpot.append((row["tpot"] - (truth["last"] - truth["first"]) / (TOKENS - 1)) * 1e6)
    chunks = sum(row["chunks"] for row in rows)
    span = max(t["last"] for t in truths) - min(t["arrived"] for t in truths)
    return {
        "client": name, "streams": streams, "requests": len(rows), "chunks_per_s": chunks / span,
        "ttft": ttft, "tpot": tpot, "lag": [row["lag"] * 1e3 for row in rows],
        "us_per_chunk": cpu_s / chunks * 1e6, "rss_mb": rss_mb,
    }  # fmt: skip


def show(found: dict[str, Any], bare_cost: float | None) -> None:
    tpot = f"{quantile(found['tpot'], 0.99):7.1f}" if found["tpot"] else "      -"
    ratio = f"{found['us_per_chunk'] / bare_cost:6.2f}" if bare_cost else "     -"
    print(
        f"{found['client']:<9} {found['streams']:>7} {found['requests']:>8} "
        f"{found['chunks_per_s']:>9.0f} "
        f"{quantile(found['ttft'], 0.5):>7.2f} {quantile(found['ttft'], 0.99):>7.2f} {tpot} "
        f"{quantile(found['lag'], 0.5):>6.2f} {quantile(found['lag'], 0.99):>6.2f} "
        f"{found['us_per_chunk']:>8.1f} {ratio} {found['rss_mb']:>6.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy and cost of the replay client")
    parser.add_argument("--streams", default="16,64,256")
    parser.add_argument("--seconds", type=float, default=4.0, help="of arrivals, per row")
    parser.add_argument("--serve", nargs="?", const=-1, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        if options.serve >= 0:
            os.sched_setaffinity(0, {options.serve})
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve())
        return
    if options.bare:
        import resource

        dues = json.load(sys.stdin)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            before = time.process_time()
            rows = runner.run(bare(options.bare, dues))
            cpu_s = time.process_time() - before
        rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"rows": rows, "cpu_s": cpu_s, "rss_mb": rss_mb}))
        return
    cores = sorted(os.sched_getaffinity(0))
    core = cores[0] if len(cores) > 1 else None
    if core is not None:
        os.sched_setaffinity(0, set(cores[1:2]))
    print("                                   TTFT err ms    TPOT us   lag ms       CPU")
    print(
        "client    streams requests  chunks/s     p50     p99     p99    p50    p99 "
        "us/chunk  ratio RSS MB"
    )
    for streams in (int(part) for part in options.streams.split(",")):
        reference = measure("bare", streams, options.seconds, core)
        show(reference, None)
        show(measure("autotune", streams, options.seconds, core), reference["us_per_chunk"])


if __name__ == "__main__":
    main()
