"""A scripted server for the replay client: it answers each request with timed bytes, and keeps its
own log of when it read what and wrote what."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.replay.records import PlannedRequest, ReplayResult
from autotune.replay.replayer import ReplayOptions, replay

EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Script:
    """One answer. `chunks`: (seconds after the request was read, bytes). `end`: `keep` ends the
    answer and keeps the connection, `close` ends it by closing, `hang` never ends it, `drop` closes
    without any answer, `reset` breaks a chunked answer off."""

    chunks: Sequence[tuple[float, bytes]] = ()
    status: int = 200
    content_type: str = EVENT_STREAM
    end: str = "keep"
    end_at: float = 0.0


@dataclass
class Served:
    """What the server knows of one request. Times are absolute monotonic seconds."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    connection: int
    arrived: float
    writes: list[float] = field(default_factory=list)


class ScriptedServer:
    """Listens on a free port of 127.0.0.1 in a thread of its own. `play` chooses the answer from
    the number of the request (arrival order) and its body."""

    def __init__(self, play: Callable[[int, dict[str, Any]], Script]) -> None:
        self._play = play
        self.served: list[Served] = []
        self.dropped_by_client = 0
        self._connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._up = threading.Event()
        self._stop: asyncio.Event
        self.url = ""

    def start(self) -> ScriptedServer:
        self._thread.start()
        assert self._up.wait(5)
        return self

    def stop(self) -> None:
        """Stop listening and break all connections, as a dying server does."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(5)
            self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=4096)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._up.set()
        await self._stop.wait()
        server.close()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (
                        line.partition(":") for line in head.decode().split("\r\n")[1:] if line
                    )
                }
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                served = Served(body, headers, number, time.monotonic())
                self.served.append(served)
                if not await self._answer(
                    self._play(len(self.served) - 1, body), served, reader, writer
                ):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self,
        script: Script,
        served: Served,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Play a script; False if the connection ends with it."""
        if script.end == "drop":
            return False
        chunked = script.end in ("keep", "reset")
        framing = "Transfer-Encoding: chunked" if chunked else "Connection: close"
        writer.write(
            f"HTTP/1.1 {script.status} X\r\nContent-Type: {script.content_type}\r\n"
            f"{framing}\r\n\r\n".encode()
        )
        for at, data in script.chunks:
            await asyncio.sleep(max(0.0, served.arrived + at - time.monotonic()))
            served.writes.append(time.monotonic())
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
        await asyncio.sleep(max(0.0, served.arrived + script.end_at - time.monotonic()))
        if script.end == "hang":
            await reader.read(1)  # returns when the client closes
            self.dropped_by_client += 1
            return False
        if script.end == "keep":
            writer.write(b"0\r\n\r\n")
        return script.end == "keep"


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def completion(text: str = "", *, finish: str | None = None, tokens: int | None = None) -> bytes:
    """One event of /v1/completions, with running usage if `tokens` is given."""
    payload: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}
    if tokens is not None:
        payload["usage"] = {"prompt_tokens": 4, "completion_tokens": tokens}
    return event(payload)


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}})


DONE = b"data: [DONE]\n\n"


def good_answer(tokens: int, *, first: float = 0.0, pace: float = 0.0, end: str = "keep") -> Script:
    """`tokens` tokens, the first after `first` seconds, then one each `pace` seconds."""
    chunks = [
        (first + pace * k, completion("x", finish="length" if k == tokens - 1 else None))
        for k in range(tokens)
    ]
    last = first + pace * (tokens - 1)
    return Script(chunks=[*chunks, (last, usage(tokens)), (last, DONE)], end=end)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int, dict[str, Any]], Script]], ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def start(play: Callable[[int, dict[str, Any]], Script]) -> ScriptedServer:
        servers.append(ScriptedServer(play).start())
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def planned(index: int, due_s: float = 0.0, *, tokens: int = 3, **more: Any) -> PlannedRequest:
    return PlannedRequest(
        index=index, due_s=due_s, prompt=(1, 2, 3, 4), output_tokens=tokens, **more
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., ReplayResult]:
    """Replay a plan with defaults that suit a test."""

    def go(requests: Sequence[PlannedRequest], server: ScriptedServer, **more: Any) -> ReplayResult:
        arguments: dict[str, Any] = {
            "url": server.url,
            "model": "m",
            "options": ReplayOptions(drain_timeout_s=5.0),
            "directory": tmp_path,
            "clock": SystemClock(),
            "stop": StopSignal(),
            "alive": lambda: True,
        } | more
        return replay(requests, **arguments)

    return go
