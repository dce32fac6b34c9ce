"""The simulated engine in real time: arrivals now, tokens when their moment has come.

Moments are computed, not slept: a timer that fires late delivers late but shifts nothing after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from autotune.simulator.config import EngineConfig
from autotune.simulator.core import EngineCore, Noise, Token
from autotune.simulator.memory import OutOfMemory
from autotune.simulator.metrics import EngineMetrics
from autotune.simulator.profile import Profile
from autotune.simulator.scheduler import Running, SimRequest


class EngineDeadError(Exception):
    """The engine ran out of memory; nothing more will come."""


class Stream:
    """The tokens of one request, as they come."""

    def __init__(self, sequence: Running) -> None:
        self.sequence = sequence
        self._ready = 0
        self._taken = 0
        self._last = False
        self._dead = False
        self._wake = asyncio.Event()

    def push(self, index: int, last: bool) -> None:
        """Token number `index` (from 1) is there."""
        self._ready, self._last = index, last
        self._wake.set()

    def kill(self) -> None:
        """Nothing more will come."""
        self._dead = True
        self._wake.set()

    async def next(self) -> tuple[int, bool]:
        """Wait for at least one token. Returns how many came and whether that was the last.

        Raises EngineDeadError.
        """
        await self._wake.wait()
        self._wake.clear()
        if self._ready > self._taken:
            count, self._taken = self._ready - self._taken, self._ready
            if self._dead and not self._last:
                self._wake.set()
            return count, self._last
        raise EngineDeadError


class LiveEngine:
    """Runs an `EngineCore` on the running event loop's clock."""

    def __init__(
        self,
        config: EngineConfig,
        profile: Profile,
        noise: Noise,
        on_death: Callable[[OutOfMemory], None],
    ) -> None:
        self.core = EngineCore(config, profile, noise)
        self.metrics = EngineMetrics()
        self._interval = config.stream_interval
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._streams: dict[Running, Stream] = {}
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, request: SimRequest) -> Stream:
        """Hand a request over now. Raises EngineDeadError."""
        if self.core.dead is not None:
            raise EngineDeadError
        sequence = self.core.submit(request, self._loop.time())
        stream = self._streams[sequence] = Stream(sequence)
        self._arm()
        return stream

    def drop(self, stream: Stream) -> None:
        """The client is gone or done; an unfinished request leaves the engine."""
        if self._streams.pop(stream.sequence, None) is not None:
            self.core.abort(stream.sequence)
            self.metrics.count_end("abort")
            self._arm()

    def stop(self) -> None:
        """Cut everything off."""
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams.values():
            stream.kill()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        event_s = self.core.next_event_s()
        if event_s is not None:
            self._timer = self._loop.call_at(event_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for token in self.core.advance(self._loop.time()):
            self._deliver(token)
        if self.core.dead is not None:
            self._on_death(self.core.dead)
            self.stop()
            return
        self._arm()

    def _deliver(self, token: Token) -> None:
        self.metrics.observe(token)
        stream = self._streams.get(token.sequence)
        if stream is None:
            return
        if token.last or token.index == 1 or token.index % self._interval == 0:
            stream.push(token.index, token.last)
        if token.last:
            del self._streams[token.sequence]
            self.metrics.count_end("length")
