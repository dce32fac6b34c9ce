"""The simulated engine in time: steps with durations, one composed ahead, tokens at their moments.

The caller owns the clock. Behind HTTP `advance` is called in real time, in `virtual` with the next
event's own time; both give the same answer for the same arrivals.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.simulator.config import EngineConfig
from autotune.simulator.memory import MemoryPlan, OutOfMemory, plan_memory
from autotune.simulator.profile import Profile
from autotune.simulator.scheduler import Running, Scheduler, SimRequest, Slot, work_of
from autotune.simulator.step_time import step_time


@dataclass(frozen=True, slots=True)
class Token:
    """One output token: whose, at what time (seconds), which one (from 1), and whether the last."""

    sequence: Running
    at_s: float
    index: int
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Multiplicative noise of the step time.

    Each step has a log-normal factor of spread `share`; one factor of a quarter of that spread
    holds for the whole launch, as launches differ too. `seed` None: different on every launch.
    `launch`: the launch's factor, where it is known; None: drawn.
    """

    share: float = 0.0
    seed: int | None = None
    launch: float | None = None

    def rng(self) -> tuple[random.Random, float]:
        """The source of the steps' factors, and the launch's."""
        rng = random.Random(self.seed)
        drawn = rng.lognormvariate(0.0, self.share / 4)
        return rng, drawn if self.launch is None else self.launch


class EngineCore:
    """A scheduler with a place in time. Not thread-safe; no I/O.

    With asynchronous scheduling a step is composed when the step before it starts, so a request
    that arrives during step k is first computed in step k+2.
    """

    def __init__(self, config: EngineConfig, profile: Profile, noise: Noise | None = None) -> None:
        self.memory: MemoryPlan = plan_memory(config, profile)
        self.scheduler = Scheduler(config, self.memory.num_blocks)
        self.dead: OutOfMemory | None = None
        self.steps = 0
        self.prefill_tokens = 0
        self._config = config
        self._time = step_time(config, profile)
        self._overhead_s = profile.request_overhead_s
        self._overhead_per_token_s = profile.request_overhead_per_token_s
        self._front_free_s = 0.0
        self._arrivals: list[tuple[float, int, Running]] = []
        self._count = 0
        self._current: list[Slot] = []
        self._ahead: list[Slot] = []
        self._step_end_s = 0.0
        noise = noise or Noise()
        self._noise = noise.share
        self._random, self._launch_factor = noise.rng()

    def submit(self, request: SimRequest, at_s: float) -> Running:
        """A request arrives at the server. It reaches the scheduler after the request overhead,
        whose part per prompt token is serial over requests.
        """
        self._front_free_s = max(self._front_free_s, at_s) + self._overhead_per_token_s * len(
            request.prompt
        )
        sequence = self.scheduler.make(request, at_s)
        self._count += 1
        visible_s = self._front_free_s + self._overhead_s
        heapq.heappush(self._arrivals, (visible_s, self._count, sequence))
        return sequence

    def abort(self, sequence: Running) -> None:
        """Forget a request; a finished one is left alone."""
        if sequence.finished_s is None and not sequence.aborted:
            self.scheduler.abort(sequence)

    def next_event_s(self) -> float | None:
        """When something happens next if nothing new arrives; None: never, or dead."""
        if self.dead is not None:
            return None
        if self._current:
            return self._step_end_s
        if self.scheduler.waiting or self.scheduler.running:
            return self._step_end_s
        return self._arrivals[0][0] if self._arrivals else None

    def advance(self, now_s: float) -> list[Token]:
        """Let everything happen that is due by `now_s`, in order. Returns the tokens given.

        After an out-of-memory `dead` is set and nothing happens any more.
        """
        tokens: list[Token] = []
        while (at_s := self.next_event_s()) is not None and at_s <= now_s:
            if self._current:
                tokens += self._end_step(at_s)
            self._begin_step(at_s)
        return tokens

    def _end_step(self, at_s: float) -> list[Token]:
        ended, self._current = self._current, []
        tokens = []
        for sequence in self.scheduler.settle(ended):
            last = sequence.emitted >= sequence.request.output_tokens
            if sequence.first_token_s is None:
                sequence.first_token_s = at_s
            if last:
                sequence.finished_s = at_s
            tokens.append(Token(sequence, at_s, sequence.emitted, last))
        return tokens

    def _begin_step(self, at_s: float) -> None:
        slots = self._ahead or self._compose(at_s)
        self._ahead = []
        if not slots:
            return
        work = work_of(slots)
        deficit = self.memory.load_deficit(work.tokens, work.sequences)
        if deficit > 0:
            asked = self.memory.load_per_token * work.tokens
            self.dead = OutOfMemory(stage="profile", asked=asked, free=max(0.0, asked - deficit))
            return
        self._mark_scheduled(slots, at_s)
        factor = self._launch_factor * self._random.lognormvariate(0.0, self._noise)
        self._step_end_s = at_s + self._time.seconds(work) * factor
        self._current = slots
        self.steps += 1
        self.prefill_tokens += sum(slot.tokens for slot in slots if not slot.decode)
        if self._config.async_scheduling:
            self._ahead = self._compose(at_s)

    def _compose(self, at_s: float) -> list[Slot]:
        while self._arrivals and self._arrivals[0][0] <= at_s:
            sequence = heapq.heappop(self._arrivals)[2]
            if not sequence.aborted:
                self.scheduler.enqueue(sequence)
        return self.scheduler.compose()

    @staticmethod
    def _mark_scheduled(slots: Sequence[Slot], at_s: float) -> None:
        for slot in slots:
            if slot.sequence.scheduled_s is None:
                slot.sequence.scheduled_s = at_s
