"""A scripted upstream and the recording proxy before it, on real sockets in one event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.workload.recording.options import RecordOptions
from autotune.workload.recording.serving import Recording, record

Answer = Callable[[bytes, bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """Answers each request with `answer(head, body, writer)`; keeps what came."""

    answer: Answer
    port: int = 0
    seen: list[tuple[bytes, bytes]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    server: asyncio.Server | None = None
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = 0
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                body = await reader.readexactly(length)
                self.seen.append((head, body))
                await self.answer(head, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            self.writers.discard(writer)
            writer.close()


@dataclass
class Proxied:
    """A running proxy. `recording` is how it ended."""

    port: int
    output: Path
    recording: Recording | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rows(self) -> list[dict[str, Any]]:
        lines = self.output.read_text(encoding="utf-8").splitlines()
        return [row for row in map(json.loads, lines) if "autotune_trace" not in row]


@asynccontextmanager
async def proxied(upstream: str, output: Path, **options: Any) -> AsyncIterator[Proxied]:
    stop = asyncio.Event()
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    wanted = RecordOptions(host="127.0.0.1", port=0, upstream=upstream, output=output, **options)
    task = asyncio.create_task(
        record(wanted, stop, on_ready=lambda host, port: ready.set_result(port))
    )
    running = Proxied(port=await ready, output=output)
    try:
        yield running
    finally:
        stop.set()
        running.recording = await task


Proxy = Callable[..., Any]


@pytest.fixture
def proxy(tmp_path: Path) -> Proxy:
    """`async with proxy(url) as running`."""
    return lambda upstream, **options: proxied(upstream, tmp_path / "recorded.jsonl", **options)


@pytest.fixture
def upstream_of() -> Callable[[Answer], Upstream]:
    """An upstream that is not started yet."""
    return Upstream
