"""Continuous batching as vLLM's V1 scheduler does it: what each step computes. Pure and
deterministic: no clock, no I/O. `core.EngineCore` gives its steps a duration and a place in time.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.simulator.blocks import BlockPool, block_hashes
from autotune.simulator.config import EngineConfig
from autotune.simulator.step_time import StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRequest:
    """One request: prompt token ids, and how many tokens will be generated (at least 1)."""

    id: str
    prompt: Sequence[int]
    output_tokens: int
    cache_salt: str | None = None


@dataclass(slots=True, eq=False)
class Running:
    """A request inside the engine. Times are seconds on the caller's clock, None until known.

    `computed`: tokens whose KV is or will be computed by the steps composed so far; `produced`:
    output tokens that composed steps will have given; `emitted`: those already given; `seated`:
    it counts against the sequence limit.
    """

    request: SimRequest
    hashes: list[int]
    arrived_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int = 0
    computed: int = 0
    produced: int = 0
    emitted: int = 0
    preemptions: int = 0
    decoding: bool = False
    seated: bool = False
    aborted: bool = False
    blocks: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens known once the composed steps have run: prompt and produced output."""
        return len(self.request.prompt) + self.produced

    @property
    def complete(self) -> bool:
        """True when composed steps give all its tokens: it only waits to be handed out."""
        return self.produced >= self.request.output_tokens


@dataclass(frozen=True, slots=True)
class Slot:
    """One request's share of a step: tokens computed, tokens computed before, and whether the step
    gives it an output token.
    """

    sequence: Running
    tokens: int
    before: int
    decode: bool
    emits: bool


@dataclass(slots=True, kw_only=True)
class SchedulerCounters:
    """Totals since start, in requests and tokens."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class Scheduler:
    """Composes steps: every decoding request first (one token each), then partly prefilled ones in
    order of admission, then the waiting queue first come first served, within the token budget.

    A request that needs a block when none is free makes the last admitted one give up its blocks
    and start again at the head of the queue (recomputation).
    """

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        self.config = config
        self.pool = BlockPool(num_blocks)
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.counters = SchedulerCounters()
        self._budget = 0

    def make(self, request: SimRequest, arrived_s: float) -> Running:
        """Wrap a request (hashing its prompt if prefixes are cached); does not queue it."""
        hashes = (
            block_hashes(request.prompt, self.config.block_size, request.cache_salt)
            if self.config.enable_prefix_caching
            else []
        )
        return Running(request, hashes, arrived_s)

    def enqueue(self, sequence: Running) -> None:
        """Put a request at the end of the waiting queue."""
        self.waiting.append(sequence)

    def compose(self) -> list[Slot]:
        """The next step's slots; empty if nothing can be computed. Updates all bookkeeping as if
        the step had run, except for handing out tokens (`settle`).
        """
        slots: list[Slot] = []
        preempted = self.counters.preemptions
        self._budget = self.config.max_num_batched_tokens
        for decoding in (True, False):
            for sequence in [s for s in self.running if s.decoding is decoding]:
                if sequence.complete or not sequence.seated or self._budget == 0:
                    continue
                tokens = self._chunk(sequence.length - sequence.computed)
                if self._make_room(sequence, tokens, slots):
                    slots.append(self._advance(sequence, tokens))
        if self.counters.preemptions == preempted:
            self._admit(slots)
        return slots

    def settle(self, slots: Sequence[Slot]) -> list[Running]:
        """Hand out the tokens of a step that has ended. Returns the requests that got one, in slot
        order; finished ones have left the engine and freed their blocks.
        """
        given = []
        for slot in slots:
            sequence = slot.sequence
            if not slot.emits or sequence.aborted:
                continue
            sequence.emitted += 1
            given.append(sequence)
            if sequence.emitted >= sequence.request.output_tokens:
                self._remove(sequence)
        return given

    def abort(self, sequence: Running) -> None:
        """Drop a request, wherever it is; its share of composed steps is still computed."""
        sequence.aborted = True
        self._remove(sequence)

    def _remove(self, sequence: Running) -> None:
        if sequence.seated:
            self.running.remove(sequence)
            sequence.seated = False
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def _chunk(self, tokens: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < tokens:
            tokens = threshold
        return min(tokens, self._budget)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _make_room(self, sequence: Running, tokens: int, slots: list[Slot]) -> bool:
        """Allocate blocks for `tokens` more, preempting from the end; False: it gave itself up."""
        missing = self._blocks_for(sequence.computed + tokens) - len(sequence.blocks)
        while missing > self.pool.free:
            victim = next(s for s in reversed(self.running) if not s.complete)
            self._preempt(victim, slots)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        return True

    def _preempt(self, victim: Running, slots: list[Slot]) -> None:
        planned = next((slot for slot in slots if slot.sequence is victim), None)
        if planned is not None:
            slots.remove(planned)
            victim.produced -= planned.emits
            self._budget += planned.tokens
        self.running.remove(victim)
        victim.seated = False
        self.pool.release(victim.blocks)
        victim.blocks = []
        victim.computed = 0
        victim.decoding = False
        victim.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(victim)

    def _advance(self, sequence: Running, tokens: int) -> Slot:
        before, decode = sequence.computed, sequence.decoding
        sequence.computed += tokens
        self._budget -= tokens
        emits = sequence.computed == sequence.length
        if self.config.enable_prefix_caching:
            self._remember(sequence, before)
        if emits:
            sequence.produced += 1
            sequence.decoding = True
        return Slot(sequence, tokens, before, decode, emits)

    def _remember(self, sequence: Running, before: int) -> None:
        size = self.config.block_size
        for index in range(before // size, sequence.computed // size):
            if index >= len(sequence.hashes):
                previous = sequence.hashes[-1] if sequence.hashes else 0
                sequence.hashes.append(
                    hash((previous, zlib.crc32(sequence.request.id.encode()), index))
                )
            self.pool.remember(sequence.blocks[index], sequence.hashes[index])

    def _admit(self, slots: list[Slot]) -> None:
        config, pool = self.config, self.pool
        while self.waiting and self._budget > 0 and len(self.running) < config.max_num_seqs:
            sequence = self.waiting[0]
            total = sequence.length
            # at least one token is computed, or there would be nothing to sample from
            hits = pool.match(sequence.hashes, (total - 1) // config.block_size)
            cached = len(hits) * config.block_size
            tokens = self._chunk(total - cached)
            if not config.enable_chunked_prefill and total - cached > self._budget:
                break
            # the whole prompt must fit at this moment (vLLM: scheduler_reserve_full_isl)
            if self._blocks_for(total) - len(hits) + pool.unused_among(hits) > pool.free:
                break
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.seated = True
            pool.take(hits)
            sequence.blocks = hits + pool.allocate(self._blocks_for(cached + tokens) - len(hits))
            sequence.computed = cached
            if sequence.preemptions == 0:
                sequence.cached_tokens = cached
                if config.enable_prefix_caching:
                    self.counters.prefix_queries += total
                    self.counters.prefix_hits += cached
            slots.append(self._advance(sequence, tokens))


def work_of(slots: Sequence[Slot]) -> StepWork:
    """What a step of these slots computes, for the step-time model."""
    prefill = [slot for slot in slots if not slot.decode]
    return StepWork(
        tokens=sum(slot.tokens for slot in slots),
        pairs=sum(slot.tokens * (slot.before + slot.tokens / 2) for slot in prefill),
        context=sum(slot.before + 1 for slot in slots if slot.decode),
        prefills=len(prefill),
        sequences=len(slots),
    )
