"""`core.EngineCore` for open replays in virtual time, fast: the same steps at the same moments.

Requests that decode are counters (`quick_state.Decoders`). A step then costs the same however many
decode, and the steps between two events are a loop of a few instructions. Where memory runs short
the requests are looked at one by one, as the scheduler does it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable

from autotune.simulator.block_runs import RunPool
from autotune.simulator.config import EngineConfig
from autotune.simulator.core import Noise
from autotune.simulator.memory import MemoryPlan, OutOfMemory
from autotune.simulator.profile import Profile
from autotune.simulator.prompt_cache import PromptCache
from autotune.simulator.quick_state import Decoders, Seq, Share, Step
from autotune.simulator.scheduler import SchedulerCounters
from autotune.simulator.step_time import StepModel, StepWork
from autotune.simulator.traffic import Chain, Traffic


class QuickCore:
    """One replay. Call `run` once; then `seqs`, `ends_s` and the totals say what happened.

    `ends_s[k]` is when step k ended, `sent_s` when each request was sent. `died`: out of memory
    under load. Raises ValueError for a sequence limit above the token budget, which is refused.
    """

    def __init__(
        self,
        traffic: Traffic,
        config: EngineConfig,
        profile: Profile,
        memory: MemoryPlan,
        model: StepModel,
        noise: Noise,
    ) -> None:
        if config.max_num_seqs > config.max_num_batched_tokens:
            raise ValueError("max_num_seqs above max_num_batched_tokens")
        self.counters = SchedulerCounters()
        self.died: OutOfMemory | None = None
        self.ends_s: list[float] = []
        self.end_s = 0.0
        self.sent_s = [arrival.at_s for arrival in traffic.arrivals]
        self._least_free = memory.num_blocks
        self._config = config
        self._memory = memory
        self._model = model
        self._size = config.block_size
        self._pool = RunPool(memory.num_blocks)
        tree = traffic.tree(config.block_size) if config.enable_prefix_caching else None
        self._cache = PromptCache(self._pool, config.block_size, tree)
        chains = (Chain(),) * len(traffic.arrivals) if tree is None else tree.chains
        self.seqs = [
            Seq(i, len(a.request.prompt), a.request.output_tokens, chain)
            for i, (a, chain) in enumerate(zip(traffic.arrivals, chains, strict=True))
        ]
        self._overhead_s = profile.request_overhead_s
        self._overhead_per_token_s = profile.request_overhead_per_token_s
        self._front_free_s = 0.0
        self._gaps = [arrival.gap_s for arrival in traffic.arrivals]
        self._followers = traffic.followers
        self._pending = [(a.at_s, i) for i, a in enumerate(traffic.arrivals) if a.after is None]
        heapq.heapify(self._pending)
        self._waiting: deque[Seq] = deque()
        self._running: list[Seq] = []
        self._prefilling: list[Seq] = []
        self._decoders = Decoders(config.block_size)
        self._next = 0  # number of the step that is composed next
        self._budget = 0
        self._stuck = False  # nobody can be admitted until a request has left
        self._paces: dict[int, Callable[[int], float]] = {}
        rng, self._factor = noise.rng()
        self._jitter: Callable[[], float] | None = None
        if noise.share > 0:
            self._jitter = lambda: rng.lognormvariate(0.0, noise.share)
        most = config.max_num_batched_tokens
        self._may_die = memory.load_deficit(most, config.max_num_seqs) > 0

    @property
    def kv_usage_max(self) -> float:
        """The largest share of blocks in use, 0 to 1."""
        return 1.0 - self._least_free / self._pool.num_blocks

    @property
    def steps(self) -> int:
        """How many steps were run."""
        return len(self.ends_s)

    def spans(self, seq: Seq) -> list[tuple[int, int]]:
        """(first, last) step of each stretch in which a request got a token in every step."""
        found = list(seq.spans)
        if seq.seated and seq.decoding:
            found.append((seq.first, seq.done_step))
        last = self.steps - 1
        return [(start, min(end, last)) for start, end in found if start <= last]

    def run(self) -> None:
        """Replay everything, or up to the engine's death."""
        now, ahead = 0.0, self._config.async_scheduling
        step: Step | None = None
        while True:
            if step is None and (step := self._compose(now)) is None:
                if (visible := self._next_visible()) is None:
                    break
                now = max(now, visible)
                continue
            if self._deficit(step) > 0:
                asked = self._memory.load_per_token * step.tokens
                free = max(0.0, asked - self._deficit(step))
                self.died = OutOfMemory(stage="profile", asked=asked, free=free)
                self._note_usage()
                break
            for share in step.prefills:
                if share.seq.scheduled_s is None:
                    share.seq.scheduled_s = now
            end = now + self._seconds(step)
            following = self._compose(now) if ahead else None
            self._note_usage()
            self.ends_s.append(end)
            self._settle(len(self.ends_s) - 1, end)
            now, step = end, following
            if not self._prefilling and (step is None) is not ahead:
                now, step = self._stretch(now, step)
        self.end_s = now

    def _stretch(self, now: float, step: Step | None) -> tuple[float, Step | None]:
        """Run the steps in which the same requests decode and nothing else happens. `step`: the
        one that is composed already.
        """
        decoders, pool = self._decoders, self._pool
        count, context = decoders.count, decoders.context
        if count == 0 or (self._waiting and not self._stuck):
            return now, step
        if step is not None:
            context -= count
            if step.prefills or step.decodes != count or step.context != context:
                return now, step
        if self._deficit(Step(count, context, [])) > 0:
            return now, step
        visible = None if self._stuck else self._next_visible()
        until_s = math.inf if visible is None else visible
        until, pace, fills, size = decoders.next_done, self._pace(count), decoders.fills, self._size
        number, ends, factor, jitter = self._next, self.ends_s, self._factor, self._jitter
        while number < until and now < until_s:
            blocks = fills[number % size]
            if blocks:
                if blocks > pool.free:
                    break
                pool.allocate(blocks)
            seconds = pace(context) * factor
            now += seconds if jitter is None else seconds * jitter()
            ends.append(now)
            context += count
            number += 1
        self._next = number
        self._note_usage()
        if step is None:
            decoders.context = context
            return now, None
        decoders.context = context + count
        return now, Step(count, context, [])

    def _seconds(self, step: Step) -> float:
        if step.prefills:
            work = StepWork(
                tokens=step.tokens,
                pairs=sum(s.tokens * (s.before + s.tokens / 2) for s in step.prefills),
                context=step.context,
                prefills=len(step.prefills),
                sequences=step.sequences,
            )
            seconds = self._model.seconds(work)
        else:
            seconds = self._pace(step.decodes)(step.context)
        seconds *= self._factor
        return seconds if self._jitter is None else seconds * self._jitter()

    def _pace(self, count: int) -> Callable[[int], float]:
        if count not in self._paces:
            self._paces[count] = self._model.pace(count)
        return self._paces[count]

    def _deficit(self, step: Step) -> float:
        return self._memory.load_deficit(step.tokens, step.sequences) if self._may_die else 0.0

    def _note_usage(self) -> None:
        self._least_free = min(self._least_free, self._pool.free)

    # ---- arrivals and ends

    def _next_visible(self) -> float | None:
        """When the next request reaches the scheduler, if none comes before it."""
        if not self._pending:
            return None
        at_s, index = self._pending[0]
        front = max(self._front_free_s, at_s) + self._overhead_per_token_s * self.seqs[index].prompt
        return front + self._overhead_s

    def _arrive(self, now: float) -> None:
        while (visible := self._next_visible()) is not None and visible <= now:
            at_s, index = heapq.heappop(self._pending)
            seq = self.seqs[index]
            self._front_free_s = max(self._front_free_s, at_s) + (
                self._overhead_per_token_s * seq.prompt
            )
            self._waiting.append(seq)

    def _settle(self, number: int, end_s: float) -> None:
        """A step has ended: requests that got their last token leave, in the order of its slots."""
        done = self._decoders.pop_done(number)
        if len(done) > 1:
            done.sort(key=lambda seq: (seq.first == number, self._running.index(seq)))
        for seq in done:
            self._running.remove(seq)
            seq.seated = False
            seq.spans.append((seq.first, number))
            seq.held = -(-(seq.base + number - seq.first) // self._size)
            self._cache.give_back(seq)
            self._stuck = False
            for index in self._followers.get(seq.index, ()):
                self.sent_s[index] = max(self.sent_s[index], end_s + self._gaps[index])
                heapq.heappush(self._pending, (self.sent_s[index], index))

    # ---- composing

    def _compose(self, now: float) -> Step | None:
        """The next step, or None if nothing can be computed."""
        self._arrive(now)
        preempted = self.counters.preemptions
        self._budget = self._config.max_num_batched_tokens
        plan = self._plan()
        step = self._one_by_one() if plan is None else self._as_planned(plan)
        self._stuck = False
        if self.counters.preemptions == preempted:
            self._admit(step)
        if step.decodes == 0 and not step.prefills:
            return None
        self._next += 1
        return step

    def _plan(self) -> list[tuple[Seq, int, int]] | None:
        """(request, tokens, new blocks) of the prefills under way; None if memory is short."""
        blocks = self._decoders.needed(self._next)
        budget = self._budget - self._decoders.count
        plan = []
        for seq in self._prefilling:
            if budget == 0:
                break
            tokens = self._chunk(seq.left, budget)
            missing = -(-(seq.computed + tokens) // self._size) - seq.held
            budget -= tokens
            blocks += missing
            plan.append((seq, tokens, missing))
        return plan if blocks <= self._pool.free else None

    def _as_planned(self, plan: list[tuple[Seq, int, int]]) -> Step:
        decoders = self._decoders
        step = Step(decoders.count, decoders.context, [])
        if decoders.count:
            self._pool.allocate(decoders.needed(self._next))
            self._budget -= decoders.count
            decoders.compose(self._next)
        for seq, tokens, missing in plan:
            self._pool.allocate(missing)
            self._prefill(seq, tokens, step)
        return step

    def _one_by_one(self) -> Step:
        """The step where memory is short: whoever finds no block makes the last admitted request
        give up its own and start again.
        """
        for seq in self._running:
            if seq.decoding and not seq.complete:
                self._decoders.leave(seq, self._next - 1)
                seq.computed = seq.base + self._next - 1 - seq.first
                seq.produced = seq.given + self._next - 1 - seq.first
                seq.held = -(-seq.computed // self._size)
        decodes: dict[Seq, None] = {}
        step = Step(0, 0, [])
        for decoding in (True, False):
            for seq in [s for s in self._running if s.decoding is decoding and not s.complete]:
                if not seq.seated or self._budget == 0:
                    continue
                tokens = self._chunk(seq.left, self._budget)
                if not self._make_room(seq, tokens, decodes, step):
                    continue
                if decoding:
                    seq.computed += 1
                    seq.produced += 1
                    seq.complete = seq.produced == seq.output
                    self._budget -= 1
                    decodes[seq] = None
                else:
                    self._prefill(seq, tokens, step)
        for seq in decodes:
            step.decodes += 1
            step.context += seq.computed
            self._decoders.join(seq, self._next)
        return step

    def _make_room(self, seq: Seq, tokens: int, decodes: dict[Seq, None], step: Step) -> bool:
        """Allocate blocks for `tokens` more, preempting from the end; False: it gave itself up."""
        missing = -(-(seq.computed + tokens) // self._size) - seq.held
        while missing > self._pool.free:
            victim = next(s for s in reversed(self._running) if not s.complete)
            self._preempt(victim, decodes, step)
            if victim is seq:
                return False
        self._pool.allocate(missing)
        seq.held += missing
        return True

    def _preempt(self, victim: Seq, decodes: dict[Seq, None], step: Step) -> None:
        share = next((s for s in step.prefills if s.seq is victim), None)
        if share is not None:
            step.prefills.remove(share)
            victim.produced -= share.emits
            self._budget += share.tokens
            if share.emits:
                self._decoders.leave(victim, self._next)
        elif victim.decoding:
            victim.spans.append((victim.first, self._next - 1))
            if victim in decodes:
                del decodes[victim]
                victim.produced -= 1
                self._budget += 1
        if victim in self._prefilling:
            self._prefilling.remove(victim)
        self._running.remove(victim)
        victim.preemptions += 1
        self._cache.give_back(victim)
        victim.seated = victim.decoding = False
        victim.computed = 0
        self.counters.preemptions += 1
        self._waiting.appendleft(victim)

    def _prefill(self, seq: Seq, tokens: int, step: Step) -> None:
        """Add a chunk to the step; its blocks are allocated."""
        step.prefills.append(share := Share(seq, tokens, seq.computed, tokens == seq.left))
        seq.computed += tokens
        seq.held = -(-seq.computed // self._size)
        self._budget -= tokens
        self._cache.cover(seq, own=seq.preemptions > 0)
        if share.emits:
            seq.produced += 1
            seq.decoding = True
            seq.first, seq.base, seq.given = self._next, seq.computed, seq.produced
            self._prefilling.remove(seq)
            self._decoders.join(seq, self._next)

    def _admit(self, step: Step) -> None:
        config, pool, waiting = self._config, self._pool, self._waiting
        while waiting:
            if self._budget == 0:
                self._stuck = not step.prefills
                return
            seq = waiting[0]
            if len(self._running) >= config.max_num_seqs:
                break
            total = seq.prompt + seq.produced
            hits = self._cache.hits(seq, (total - 1) // self._size)
            found = sum(run.hi - run.lo for run in hits)
            unused = sum(run.hi - run.lo for run in hits if run.users == 0)
            left = total - found * self._size
            if not config.enable_chunked_prefill and left > self._budget:
                break
            # the whole prompt must fit at this moment (vLLM: scheduler_reserve_full_isl)
            if -(-total // self._size) - found + unused > pool.free:
                break
            waiting.popleft()
            self._running.append(seq)
            self._prefilling.append(seq)
            seq.seated = True
            pool.take(hits)
            seq.runs, seq.covered, seq.computed = hits, found, total - left
            tokens = self._chunk(left, self._budget)
            pool.allocate(-(-(seq.computed + tokens) // self._size) - found)
            if seq.preemptions == 0:
                seq.cached = total - left
                if config.enable_prefix_caching:
                    self.counters.prefix_queries += total
                    self.counters.prefix_hits += seq.cached
            self._prefill(seq, tokens, step)
        self._stuck = bool(waiting)

    def _chunk(self, tokens: int, budget: int) -> int:
        threshold = self._config.long_prefill_token_threshold
        if 0 < threshold < tokens:
            tokens = threshold
        return min(tokens, budget)
