"""The simulated engine in virtual time: a whole replay without waiting, without sockets.

Same scheduler, same step times as behind HTTP; what HTTP and timers add (2 to 4 ms to the first
token of a request on loopback, nothing to the engine's pace) is missing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.simulator.config import EngineConfig
from autotune.simulator.core import EngineCore, Noise
from autotune.simulator.memory import OutOfMemory
from autotune.simulator.profile import Profile
from autotune.simulator.scheduler import Running, SimRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualArrival:
    """A request and the moment it is sent, in seconds from the start of the replay."""

    at_s: float
    request: SimRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTimes:
    """What a client would have seen, in seconds from the start; None: never (the engine died)."""

    id: str
    sent_s: float
    first_token_s: float | None
    last_token_s: float | None
    token_s: tuple[float, ...]
    cached_tokens: int
    queued_s: float | None
    preemptions: int

    @property
    def ttft_s(self) -> float | None:
        """Seconds from send to first token."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for fewer than two tokens."""
        if len(self.token_s) < 2:
            return None
        return (self.token_s[-1] - self.token_s[0]) / (len(self.token_s) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRun:
    """A replay in virtual time: one entry per arrival in the order given, and engine totals."""

    times: tuple[VirtualTimes, ...]
    end_s: float
    steps: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    kv_usage_max: float
    died: OutOfMemory | None


def simulate(
    arrivals: Sequence[VirtualArrival],
    config: EngineConfig,
    profile: Profile,
    *,
    seed: int | None = 0,
    noise: float = 0.0,
) -> VirtualRun:
    """Replay open-loop arrivals. The configuration must be one that `validation` accepts.

    `noise` is the share of `Noise`; with the same seed the result is the same.
    """
    core = EngineCore(config, profile, Noise(share=noise, seed=seed))
    given: dict[str, list[float]] = {arrival.request.id: [] for arrival in arrivals}
    sequences = {}
    pending = sorted(arrivals, key=lambda arrival: arrival.at_s)
    index, end_s, kv_usage = 0, 0.0, 0.0
    while True:
        event_s = core.next_event_s()
        next_s = pending[index].at_s if index < len(pending) else None
        if next_s is not None and (event_s is None or next_s <= event_s) and not core.dead:
            request = pending[index].request
            sequences[request.id] = core.submit(request, next_s)
            index += 1
            continue
        if event_s is None:
            break
        for token in core.advance(event_s):
            given[token.sequence.request.id].append(token.at_s)
        end_s = event_s
        kv_usage = max(kv_usage, core.scheduler.pool.usage)
    counters = core.scheduler.counters
    return VirtualRun(
        times=tuple(
            _times(arrival, sequences.get(arrival.request.id), given[arrival.request.id])
            for arrival in arrivals
        ),
        end_s=end_s,
        steps=core.steps,
        preemptions=counters.preemptions,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        kv_usage_max=kv_usage,
        died=core.dead,
    )


def _times(
    arrival: VirtualArrival, sequence: Running | None, moments: Sequence[float]
) -> VirtualTimes:
    scheduled = sequence.scheduled_s if sequence else None
    return VirtualTimes(
        id=arrival.request.id,
        sent_s=arrival.at_s,
        first_token_s=moments[0] if moments else None,
        last_token_s=sequence.finished_s if sequence else None,
        token_s=tuple(moments),
        cached_tokens=sequence.cached_tokens if sequence else 0,
        queued_s=None if scheduled is None else scheduled - arrival.at_s,
        preemptions=sequence.preemptions if sequence else 0,
    )
