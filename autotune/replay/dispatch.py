"""One worker's event loop: send every request at its due time, whatever became of the others.

Late requests leave at once and their lag is on record; nothing limits how many are in flight and
the schedule is never re-anchored, so an overloaded client shows as lag, not as a lower rate.
Reading only stamps bytes; they are interpreted after a request has ended, or once many are held, in
slices that let reads go first. Interpreted bytes are dropped, so memory follows from the streams in
flight and not from the length of their answers. Connections are opened a little ahead of need.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.canonical import Json
from autotune.replay.exchange import Exchange, Transport
from autotune.replay.glimpse import OpenRequest, open_request
from autotune.replay.pacer import Pacer, until
from autotune.replay.records import BROKEN_OFF, Failure, RequestRecord
from autotune.replay.shard import Job, Shard
from autotune.replay.stream import AnswerReader, is_event_stream, record_of

TICK_S = 0.05
SLICE = 64
"""Reads interpreted per turn of the loop: about a third of a millisecond."""
HELD_READS = 128
"""Reads of one request kept uninterpreted while it runs: about 50 KB."""
TRIM_S = 0.25
PREPARE_S = 0.25
AHEAD_S = 0.75
"""Connections are opened this long before their requests are due."""
MOST_AHEAD = 1024
ABORT_GRACE_S = 0.2
_RECENT = 500


@dataclass(slots=True)
class _Flight:
    """A request between its send and its record. `read`: how many reads were interpreted."""

    job: Job
    due: float
    exchange: Exchange
    task: asyncio.Task[None]
    reader: AnswerReader = field(default_factory=AnswerReader)
    read: int = 0

    def interpret(self, limit: int) -> bool:
        """Take up to `limit` more reads; True while there are others."""
        exchange = self.exchange
        stop = min(self.read + limit, len(exchange.chunks))
        stamps, chunks, feed = exchange.stamps, exchange.chunks, self.reader.feed
        for place in range(self.read, stop):
            feed(stamps[place], chunks[place])
            chunks[place] = b""
        self.read = stop
        return stop < len(exchange.chunks)


class Dispatcher:
    """Runs the jobs of one shard over a transport. One use: `run`, then read the properties.

    `keep` is given each record as soon as it is made, in no order.
    """

    def __init__(
        self,
        shard: Shard,
        transport: Transport,
        body_of: Callable[[Job], bytes],
        keep: Callable[[RequestRecord], None],
    ) -> None:
        self._shard = shard
        self._transport = transport
        self._body_of = body_of
        self._keep = keep
        self._start = 0.0
        self._followers: dict[int, list[Job]] = {}
        for job in shard.jobs:
            if job.after is not None:
                self._followers.setdefault(job.after, []).append(job)
        self._roots = sorted(
            (job for job in shard.jobs if job.after is None), key=lambda j: (j.due_s, j.index)
        )
        self._flights: dict[int, _Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Queue[_Flight] = asyncio.Queue()
        self._finished: set[int] = set()
        self._left = sum(self._counts(job.measured) for job in shard.jobs)
        self._planned = self._left
        self._over = asyncio.Event()
        self._aborted: str | None = None
        self._fault: BaseException | None = None
        self._begun = 0
        self._failed = 0
        self._peak = 0
        self._retries = 0
        self._lags: list[float] = []
        self._loop_lags: list[float] = []
        self._ttfts: deque[float] = deque(maxlen=_RECENT)
        self._tpots: deque[float] = deque(maxlen=_RECENT)

    @property
    def aborted(self) -> str | None:
        """Why the run ended early, or None."""
        return self._aborted

    def enough(self) -> None:
        """The last measured request of all workers has ended: the background may end, too."""
        self._over.set()

    def abort(self, reason: str) -> None:
        """End the run early: `server_died`, `stopped`, `hopeless` or `deadline`. The first reason
        stays.
        """
        if self._aborted is None and not self._over.is_set():
            self._aborted = reason
            self._over.set()

    def progress(self) -> dict[str, Json]:
        """Counts so far, and running p95 of recent successes, for the terminal."""
        return {
            "sent": self._begun,
            "finished": self._planned - self._left,
            "left": self._left,
            "failed": self._failed,
            "ttft_p95_s": _p95(self._ttfts),
            "tpot_p95_s": _p95(self._tpots),
        }

    def open_requests(self, now: float) -> list[OpenRequest]:
        """What is in flight at the absolute monotonic instant `now`, which is the present."""
        return [
            open_request(
                flight.job, flight.exchange, flight.reader, flight.read, due=flight.due,
                start=self._start, now=now, fixed_length=self._shard.fixed_length,
            )
            for flight in self._flights.values()
        ]  # fmt: skip

    def health(self) -> dict[str, Json]:
        """Lags in seconds (nearest rank) and counts of this worker."""
        return {
            "dispatch_lags_s": sorted(self._lags),
            "loop_lags_s": sorted(self._loop_lags),
            "peak_in_flight": self._peak,
            "retries": self._retries,
        }

    async def prepare(self) -> None:
        """Open the connections that the first requests will need. Before `run`."""
        await self._open_ahead(0.0)

    async def run(self, start: float) -> None:
        """Replay from the absolute monotonic instant `start`; one record per job is kept."""
        self._start = start
        if not self._shard.jobs:
            return
        loop = asyncio.get_running_loop()
        parts = (self._pace, self._digest, self._tick, self._trim, self._connect_ahead)
        helpers = [loop.create_task(part()) for part in parts]
        pacer, digester = helpers[:2]
        for helper in helpers:
            helper.add_done_callback(self._notice)
        try:
            await self._over.wait()
            pacer.cancel()
            if self._fault is None and len(self._finished) < len(self._shard.jobs):
                await self._break_off(digester)
        finally:
            for task in (*helpers, *self._tasks):
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        if self._fault is not None:
            raise self._fault
        for job in self._shard.jobs:
            if job.index not in self._finished and self._counts(job.measured):
                self._keep(self._not_sent(job))

    async def _pace(self) -> None:
        with Pacer() as pacer:
            for job in self._roots:
                due = self._start + job.due_s
                await pacer.until(due)
                self._launch(job, due)

    async def _connect_ahead(self) -> None:
        while True:
            await asyncio.sleep(PREPARE_S)
            await self._open_ahead(time.monotonic() - self._start)

    async def _open_ahead(self, at_s: float) -> None:
        """Connections for what is due within `AHEAD_S` from `at_s` (seconds after the start)."""
        first = bisect_left(self._roots, at_s, key=lambda job: job.due_s)
        last = bisect_right(self._roots, at_s + AHEAD_S, key=lambda job: job.due_s)
        if last > first:
            await self._transport.prepare(min(last - first, MOST_AHEAD))

    def _launch(self, job: Job, due: float) -> None:
        task = asyncio.get_running_loop().create_task(self._one(job, due))
        self._tasks.add(task)
        task.add_done_callback(self._notice)

    def _notice(self, task: asyncio.Task[None]) -> None:
        """A task of ours ended. An exception in it is our own fault, and no server's: stop."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = self._fault or error
            self._over.set()

    async def _one(self, job: Job, due: float) -> None:
        await until(due)  # followers are launched ahead of their time
        body = self._body_of(job)
        task = asyncio.current_task()
        assert task is not None
        exchange = Exchange(begun=time.monotonic(), request_id=f"{self._shard.run}-{job.index}")
        flight = _Flight(job, due, exchange, task)
        self._flights[job.index] = flight
        self._begun += self._counts(job.measured)
        self._peak = max(self._peak, len(self._flights))
        try:
            await self._transport.send(body, exchange)
        except asyncio.CancelledError:
            if exchange.fault is None:
                raise
        finally:
            exchange.end = time.monotonic()
            del self._flights[job.index]
            self._ended.put_nowait(flight)
        if not self._over.is_set():
            for follower in self._followers.get(job.index, ()):
                due = max(self._start + follower.due_s, exchange.end + follower.gap_s)
                self._launch(follower, due)

    async def _trim(self) -> None:
        """Interpret long answers while they run, or their bytes would fill the memory."""
        while True:
            await asyncio.sleep(TRIM_S)
            for flight in list(self._flights.values()):
                exchange = flight.exchange
                if exchange.status != 200 or not is_event_stream(exchange):
                    continue
                while len(exchange.chunks) - flight.read > HELD_READS:
                    flight.interpret(SLICE)
                    await asyncio.sleep(0)

    async def _digest(self) -> None:
        """Turn ended flights into records, one slice at a time."""
        while True:
            flight = await self._ended.get()
            if flight.exchange.status == 200 and is_event_stream(flight.exchange):
                while flight.interpret(SLICE):  # noqa: ASYNC110 - there is work to do
                    await asyncio.sleep(0)
            record = record_of(
                flight.job,
                flight.exchange,
                flight.reader,
                due=flight.due,
                start=self._start,
                worker=self._shard.worker,
                check_length=self._shard.fixed_length,
            )
            self._finish(record)
            self._ended.task_done()

    def _finish(self, record: RequestRecord) -> None:
        self._keep(record)
        self._finished.add(record.index)
        self._retries += record.retries
        if record.begun_s is not None:
            self._lags.append(record.begun_s - record.due_s)
        counts = self._counts(record.measured)
        self._left -= counts
        if record.failure is not None:
            self._failed += counts
        elif record.first_token_s is not None and record.last_token_s is not None:
            self._ttfts.append(record.first_token_s - record.due_s)
            later = (record.output_tokens or 0) - record.first_event_tokens
            if later > 0:
                self._tpots.append((record.last_token_s - record.first_token_s) / later)
        if len(self._finished) == len(self._shard.jobs) or (self._shard.alone and not self._left):
            self._over.set()

    def _counts(self, measured: bool) -> bool:
        """Whether a request is what the replay is about, and not its background."""
        return measured or not self._shard.scored

    async def _tick(self) -> None:
        """Measure how late the loop is, and end what has outlived its limits."""
        deadline = self._start + self._shard.deadline_s
        await until(self._start)
        expected = time.monotonic()
        while True:
            expected += TICK_S
            await asyncio.sleep(max(expected - time.monotonic(), 0.0))
            now = time.monotonic()
            self._loop_lags.append(max(0.0, now - expected))
            expected = max(expected, now - TICK_S)
            for flight in list(self._flights.values()):
                self._enforce(flight, now)
            if now > deadline:
                self.abort("deadline")

    def _enforce(self, flight: _Flight, now: float) -> None:
        limits, exchange = self._shard, flight.exchange
        if now - exchange.begun > limits.request_timeout_s:
            _end(flight, "timeout", f"no end within {limits.request_timeout_s:g} s")
        elif exchange.sent is None or exchange.status not in (None, 200):
            return
        elif flight.reader.first_token is None and not self._has_token(flight):
            if now - exchange.sent > limits.first_token_timeout_s:
                _end(flight, "timeout", f"no token within {limits.first_token_timeout_s:g} s")
        elif now - exchange.stamps[-1] > limits.idle_timeout_s:
            _end(flight, "stall", f"nothing came for {limits.idle_timeout_s:g} s")

    def _has_token(self, flight: _Flight) -> bool:
        """Look ahead, only until the first token: a role-only event must not start the idle clock
        while the prompt is still in the queue.
        """
        if flight.exchange.chunks and is_event_stream(flight.exchange):
            flight.interpret(SLICE)
        return flight.reader.first_token is not None

    async def _break_off(self, digester: asyncio.Task[None]) -> None:
        """Nothing new leaves; if the server died, what is in flight gets a moment to fail."""
        if self._aborted == "server_died" and self._flights:
            await asyncio.wait([f.task for f in self._flights.values()], timeout=ABORT_GRACE_S)
        kind: Failure = "timeout" if self._aborted == "deadline" else "cut"
        for flight in list(self._flights.values()):
            _end(flight, kind, f"{BROKEN_OFF}{self._aborted or 'all was measured'}")
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=2.0)
        rest = asyncio.ensure_future(self._ended.join())
        await asyncio.wait([rest, digester], return_when=asyncio.FIRST_COMPLETED)
        rest.cancel()

    def _not_sent(self, job: Job) -> RequestRecord:
        return RequestRecord(
            index=job.index,
            due_s=job.due_s,
            measured=job.measured,
            planned_input_tokens=job.input_tokens,
            planned_output_tokens=job.output_tokens,
            failure="not_sent",
            detail=f"{BROKEN_OFF}{self._aborted}",
            session=job.session,
            turn=job.turn,
            worker=self._shard.worker,
        )


def _end(flight: _Flight, fault: Failure, detail: str) -> None:
    if flight.exchange.fault is None:
        flight.exchange.fail(fault, detail)
        flight.task.cancel()


def _p95(values: deque[float]) -> float | None:
    """Nearest-rank 95th percentile; None for no values."""
    ranked = sorted(values)
    return ranked[-(-len(ranked) * 95 // 100) - 1] if ranked else None
