"""A replay worker process: `python -m autotune.replay.worker FOLDER`.

Reads its shard from FOLDER, says `ready`, is told `start <monotonic instant>` on its standard
input, replays, prints a progress line every half second, and leaves its report in FOLDER.
`enough` ends the background once all is measured, `stop <reason>` ends everything early; so does
the end of its standard input, because then its parent is gone. There is no other traffic. Imports
are few: a trial waits for this process to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import uvloop

from autotune.replay.dispatch import Dispatcher
from autotune.replay.exchange import Transport
from autotune.replay.glimpse import LOOK_EVERY_S, write_snapshot
from autotune.replay.shard import Bodies, RecordLog, Shard, read_shard

PROGRESS_S = 0.5
LEAD_S = 0.02
"""The event loop is already turning when the first request falls due."""


def main(arguments: list[str]) -> int:
    """Run the worker. Returns its exit status: 0 with a report left behind, 3 without a parent."""
    folder = Path(arguments[0])
    shard = read_shard(folder)
    _allow_many_connections()
    if shard.cores:
        os.sched_setaffinity(0, shard.cores)
    urgent = _hurry()
    with (
        Bodies(folder) as bodies,
        RecordLog(folder) as log,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_replay(shard, bodies, log, folder, urgent=urgent))


async def _replay(
    shard: Shard, bodies: Bodies, log: RecordLog, folder: Path, *, urgent: bool
) -> int:
    transport = _transport(shard)
    await transport.open()
    dispatcher = Dispatcher(shard, transport, bodies.of, log.add)
    await dispatcher.prepare()
    orders = _Orders(dispatcher)
    with orders.listening():
        _say(b"ready\n")
        start = await orders.start()
        if start is None:
            await transport.close()
            return 3
        gc.collect()
        gc.freeze()
        gc.disable()
        tellers = [asyncio.ensure_future(_tell(dispatcher))]
        if shard.watched:
            tellers.append(asyncio.ensure_future(_show(dispatcher, log, folder, start)))
        await asyncio.sleep(max(0.0, start - time.monotonic() - LEAD_S))
        cpu, wall = time.process_time(), time.monotonic()
        await dispatcher.run(start)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        for teller in tellers:
            teller.cancel()
        await transport.close()
    _say(orjson.dumps(dispatcher.progress()) + b"\n")
    health = {
        **dispatcher.health(),
        "cpu_s": cpu,
        "wall_s": wall,
        "urgent": urgent,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    log.close_report(dispatcher.aborted, health)
    return 0


def _hurry() -> bool:
    """Ask to run as soon as there is something to read, and not behind a busy engine that shares
    the core: what waits there would count as the engine's time. Needs a right that root has; one
    core alone is too few for it. Whether it was granted.
    """
    if len(os.sched_getaffinity(0)) < 2 and (os.cpu_count() or 1) < 2:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def _transport(shard: Shard) -> Transport:
    """The transport the shard names; the other one's library is not even imported."""
    headers = {}
    if shard.api_key_env is not None and (key := os.environ.get(shard.api_key_env)):
        headers["Authorization"] = f"Bearer {key.strip()}"
    if shard.transport == "aiohttp":
        from autotune.replay.transport import HttpTransport

        return HttpTransport(shard.url, headers=headers, connect_timeout_s=shard.connect_timeout_s)
    from autotune.replay.wire import WireTransport

    return WireTransport(shard.url, headers=headers, connect_timeout_s=shard.connect_timeout_s)


class _Orders:
    """The parent's lines on standard input, read without blocking the loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._rest = b""
        self._start: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()

    def listening(self) -> contextlib.AbstractContextManager[None]:
        """Listen while the context lasts."""
        return _reader(sys.stdin.fileno(), self._readable)

    async def start(self) -> float | None:
        """The start instant, or None when told to stop (or orphaned) before it came."""
        return await self._start

    def _readable(self) -> None:
        data = os.read(sys.stdin.fileno(), 4096)
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stop("orphaned")
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            order, _, value = line.decode().partition(" ")
            if order == "start" and not self._start.done():
                self._start.set_result(float(value))
            elif order == "enough":
                self._dispatcher.enough()
            elif order == "stop":
                self._stop(value)

    def _stop(self, reason: str) -> None:
        if not self._start.done():
            self._start.set_result(None)
        self._dispatcher.abort(reason)


@contextlib.contextmanager
def _reader(fd: int, callback: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, callback)
    try:
        yield
    finally:
        loop.remove_reader(fd)


async def _tell(dispatcher: Dispatcher) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        _say(orjson.dumps(dispatcher.progress()) + b"\n")


async def _show(dispatcher: Dispatcher, log: RecordLog, folder: Path, start: float) -> None:
    """Leave snapshots for a parent that may end the replay early."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = time.monotonic()
        requests, written = dispatcher.open_requests(now), log.flush()
        write_snapshot(folder, at_s=now - start, records_bytes=written, requests=requests)


def _say(line: bytes) -> None:
    """Write one line to the parent; dropped rather than waited for if the parent does not read."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(sys.stdout.fileno(), line)


def _allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    os.set_blocking(sys.stdout.fileno(), False)
    sys.exit(main(sys.argv[1:]))
