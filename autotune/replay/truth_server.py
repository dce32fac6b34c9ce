"""A server that knows: fixed times of every token, and a log of when it read and wrote what.

    python -m autotune.replay.truth_server [--port 0] [--pace-ms 20] [--log FILE] [--core N]

Answers `/v1/completions` and `/v1/chat/completions` with a stream of `max_tokens` tokens: the first
after 50 to 250 ms (`first_token_s` of the request's place in order of arrival), then one each
`--pace-ms`. Times in the log are its own, taken just before each write, so a client's error is the
client's figure minus the server's. It says its address in its first line of output, serves until
its standard input ends, and then writes the log: a JSON list, to FILE or standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypedDict, cast

import orjson

from autotune.canonical import Json

PACE_S = 0.020
MODEL = "truth"
PROMPT_TOKENS = 128
"""What it says of every prompt whose tokens it cannot count."""
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_TICK_S = 0.001


class Truth(TypedDict):
    """What the server knows of one request. Times: absolute seconds of the monotonic clock."""

    id: str
    place: int
    arrived: float
    first: float
    last: float
    tokens: int


def first_token_s(place: int) -> float:
    """Seconds from a request's arrival to its first token, by its place in order of arrival."""
    return 0.050 + 0.200 * ((place * 37) % 101) / 100


@dataclass(frozen=True, slots=True)
class _Form:
    """How the chunks of an answer look."""

    chat: bool
    running_usage: bool
    tokens: int
    prompt_tokens: int

    def chunk(self, count: int) -> bytes:
        finish = "length" if count == self.tokens else None
        choice: dict[str, Json] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.chat:
            choice["delta"] = {"content": " the"}
        else:
            choice["text"] = " the"
        payload: dict[str, Json] = {
            "id": "cmpl-0123456789abcdef",
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "created": 1764400000, "model": MODEL, "choices": [choice],
        }  # fmt: skip
        if self.running_usage:
            payload["usage"] = self.usage(count)
        return _framed(orjson.dumps(payload))

    def usage(self, count: int) -> dict[str, Json]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": self.prompt_tokens + count,
        }


def _framed(data: bytes) -> bytes:
    data = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


@lru_cache(maxsize=64)
def _chunks(form: _Form) -> tuple[bytes, ...]:
    """All writes of an answer: one per token, and the end with the usage."""
    end = {"id": "cmpl-0123456789abcdef", "model": MODEL, "choices": [],
           "usage": form.usage(form.tokens)}  # fmt: skip
    tail = _framed(orjson.dumps(end)) + _framed(b"[DONE]") + b"0\r\n\r\n"
    return (*(form.chunk(count + 1) for count in range(form.tokens)), tail)


@dataclass(order=True, slots=True)
class _Stream:
    """One answer in progress; the order is that of the next write."""

    due: float
    place: int
    truth: Truth = field(compare=False)
    connection: _Connection = field(compare=False)
    chunks: tuple[bytes, ...] = field(compare=False)
    sent: int = 0


class TruthServer:
    """All answers in progress; writes whatever is due, on an absolute schedule."""

    def __init__(self, pace_s: float = PACE_S) -> None:
        self.truths: list[Truth] = []
        self._pace_s = pace_s
        self._due: list[_Stream] = []
        self._armed = False

    def begin(self, name: str, arrived: float, form: _Form, connection: _Connection) -> None:
        """Start an answer to a request that was read whole at `arrived`."""
        place = len(self.truths)
        truth = Truth(
            id=name, place=place, arrived=arrived, first=0.0, last=0.0, tokens=form.tokens
        )
        self.truths.append(truth)
        connection.write(_HEAD)
        stream = _Stream(arrived + first_token_s(place), place, truth, connection, _chunks(form))
        heapq.heappush(self._due, stream)
        self._arm()

    def _arm(self) -> None:
        if self._due and not self._armed:
            # Never longer than the shortest wait for a first token, so a new one is never missed.
            wait = min(max(_TICK_S, self._due[0].due - time.monotonic()), 0.020)
            asyncio.get_running_loop().call_later(wait, self._write_due)
            self._armed = True

    def _write_due(self) -> None:
        self._armed = False
        now = time.monotonic()
        while self._due and self._due[0].due <= now:
            stream = self._due[0]
            truth = stream.truth
            truth["last"] = stamp = time.monotonic()
            if not stream.sent:
                truth["first"] = stamp
            alive = stream.connection.write(stream.chunks[stream.sent])
            stream.sent += 1
            stream.due += self._pace_s
            if stream.sent < truth["tokens"] and alive:
                heapq.heapreplace(self._due, stream)
            else:
                heapq.heappop(self._due)
                stream.connection.write(stream.chunks[-1])
        self._arm()


class _Connection(asyncio.Protocol):
    """One client connection: finds the end of a request and has it answered."""

    def __init__(self, server: TruthServer) -> None:
        self._server = server
        self._buffer = b""
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._descriptor = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    def write(self, data: bytes) -> bool:
        """Write now, not at the end of the loop's turn. False if the client is gone."""
        if self._lost:
            return False
        written = 0
        if not self._transport.get_write_buffer_size():
            try:
                written = os.write(self._descriptor, data)
            except BlockingIOError:
                written = 0
            except OSError:
                self._transport.abort()
                self._lost = True
                return False
        if written < len(data):
            self._transport.write(data[written:])
        return True

    def data_received(self, data: bytes) -> None:
        arrived = time.monotonic()
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        first, *lines = head.split(b"\r\n")
        headers = dict(line.lower().split(b":", 1) for line in lines if b":" in line)
        length = int(headers.get(b"content-length", b"0"))
        if len(body) < length:
            return
        self._buffer = body[length:]
        path = first.split(b" ")[1].decode("latin-1")
        if path.endswith("/completions"):
            name = headers.get(b"x-request-id", b"").strip().decode("latin-1")
            form = _form(orjson.loads(body[:length]), chat="/chat/" in path)
            self._server.begin(name, arrived, form, self)
        else:
            self._plain(path)

    def _plain(self, path: str) -> None:
        """Health and model list: what benchmark clients ask before they begin."""
        models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        body = orjson.dumps(models) if path.endswith("/models") else b"{}"
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )


def _form(body: dict[str, Json], *, chat: bool) -> _Form:
    prompt = body.get("prompt")
    options = body.get("stream_options") or {}
    return _Form(
        chat=chat,
        running_usage=bool(options.get("continuous_usage_stats")),
        tokens=int(body.get("max_tokens") or body.get("max_completion_tokens") or 16),
        prompt_tokens=len(prompt) if isinstance(prompt, list) else PROMPT_TOKENS,
    )


async def serve(port: int, pace_s: float) -> list[Truth]:
    """Serve on 127.0.0.1 until standard input ends; then the log."""
    server = TruthServer(pace_s)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: _Connection(server), "127.0.0.1", port, backlog=4096
    )
    address = listener.sockets[0].getsockname()
    sys.stdout.write(f"http://{address[0]}:{address[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    return server.truths


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server. Returns its exit status."""
    import uvloop

    parser = argparse.ArgumentParser(description="a server with known times, for judging clients")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--pace-ms", type=float, default=1000 * PACE_S)
    parser.add_argument("--log", type=Path, help="where the log goes; default standard output")
    parser.add_argument("--core", type=int, help="run on this core only")
    options = parser.parse_args(arguments)
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        truths = runner.run(serve(options.port, options.pace_ms / 1000))
    log = orjson.dumps(truths)
    if options.log is not None:
        options.log.write_bytes(log)
    else:
        sys.stdout.write(log.decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
