"""The simulated engine in virtual time: a whole replay without waiting, without sockets.

Same scheduler, same step times as behind HTTP; what HTTP and timers add (2 to 4 ms to the first
token of a request on loopback, nothing to the engine's pace) is missing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.simulator.config import EngineConfig
from autotune.simulator.core import Noise
from autotune.simulator.memory import MemoryPlan, OutOfMemory, plan_memory
from autotune.simulator.profile import Profile
from autotune.simulator.quick_core import QuickCore
from autotune.simulator.quick_state import Seq
from autotune.simulator.step_time import StepModel, step_time
from autotune.simulator.traffic import Traffic, VirtualArrival

__all__ = ["Traffic", "VirtualArrival", "VirtualRun", "VirtualTimes", "simulate"]


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
    arrivals: Sequence[VirtualArrival] | Traffic,
    config: EngineConfig,
    profile: Profile,
    *,
    seed: int | None = 0,
    noise: float | Noise = 0.0,
    model: StepModel | None = None,
    memory: MemoryPlan | None = None,
) -> VirtualRun:
    """Replay arrivals. The configuration must be one that `validation` accepts.

    Arrivals that are replayed more than once are prepared once as `Traffic`. `noise`: the share, or
    the whole `Noise` (then `seed` is not looked at); with the same seed the result is the same.
    `model`, `memory`: other step times and another memory plan than the profile's. Raises
    ValueError for ids that repeat and for a sequence limit above the token budget.
    """
    traffic = arrivals if isinstance(arrivals, Traffic) else Traffic(arrivals)
    core = QuickCore(
        traffic,
        config,
        profile,
        plan_memory(config, profile) if memory is None else memory,
        step_time(config, profile) if model is None else model,
        noise if isinstance(noise, Noise) else Noise(share=noise, seed=seed),
    )
    core.run()
    return VirtualRun(
        times=tuple(
            _times(arrival, seq, core)
            for arrival, seq in zip(traffic.arrivals, core.seqs, strict=True)
        ),
        end_s=core.end_s,
        steps=core.steps,
        preemptions=core.counters.preemptions,
        prefix_queries=core.counters.prefix_queries,
        prefix_hits=core.counters.prefix_hits,
        kv_usage_max=core.kv_usage_max,
        died=core.died,
    )


def _times(arrival: VirtualArrival, seq: Seq, core: QuickCore) -> VirtualTimes:
    ends = core.ends_s
    spans = core.spans(seq)
    tokens: tuple[float, ...] = ()
    for first, last in spans:
        tokens += tuple(ends[first : last + 1])
    sent_s = core.sent_s[seq.index]
    return VirtualTimes(
        id=arrival.request.id,
        sent_s=sent_s,
        first_token_s=tokens[0] if tokens else None,
        last_token_s=tokens[-1] if len(tokens) == seq.output else None,
        token_s=tokens,
        cached_tokens=seq.cached,
        queued_s=None if seq.scheduled_s is None else seq.scheduled_s - sent_s,
        preemptions=seq.preemptions,
    )
