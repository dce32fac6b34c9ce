"""The simulated engine's virtual time without its bookkeeping: only first and last tokens.

Same steps as `scheduler` and `core` compose, with decoding requests kept as counters: a run of
steps in which nobody arrives or leaves is one formula. A 20 s trace takes about a millisecond.
Where KV memory is short it is approximate: room is counted in tokens, not in blocks, and cached
prefixes live as long as fewer tokens than the cache holds were written since their last use.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from autotune.simulator.load import Limits, Load, Pace, Times
from autotune.simulator.series import span_of, steps_until


def run(load: Load, limits: Limits, pace: Pace) -> Times:
    """Replay `load` until the last measured job has ended."""
    return _Engine(load, limits, pace).run()


@dataclass(slots=True)
class _Seat:
    """A request inside the engine. `length`: tokens that its prefill covers (the prompt, and after
    a preemption what it had produced); `done` of them are computed; `made`: tokens given out;
    `cached` were found in the cache when it was `looked` through (after so many prefill steps).
    """

    job: int
    length: int
    done: int = 0
    made: int = 0
    shared: int = 0
    order: int = 0
    joined: int = -1
    finish: int = -1
    seen: int = 0
    looked: int = -1
    cached: int = 0


class _Engine:
    """One replay. Step `k` begins at `t`; `n` requests decode in it and read `context` tokens."""

    def __init__(self, load: Load, limits: Limits, pace: Pace) -> None:
        count = len(load.jobs)
        inf = math.inf
        self.load, self.limits, self.pace = load, limits, pace
        self.times = Times([inf] * count, [inf] * count, [inf] * count, [inf] * count, [0] * count)
        self.left = sum(job.measured for job in load.jobs)
        rate = load.rate
        self.arrivals = [
            (job.at_s / rate, i) for i, job in enumerate(load.jobs) if job.after is None
        ]
        heapify(self.arrivals)
        self.followers: dict[int, list[int]] = {}
        for i, job in enumerate(load.jobs):
            if job.after is not None:
                self.followers.setdefault(job.after, []).append(i)
        self.front_s = 0.0
        self.visible: deque[tuple[float, int]] = deque()
        self.waiting: deque[_Seat] = deque()
        self.partial: list[_Seat] = []
        self.decoding: dict[int, _Seat] = {}
        self.finishing: list[tuple[int, int, _Seat]] = []
        self.chunks: list[tuple[_Seat, int]] = []
        self.t = self.before_s = 0.0
        self.k = self.n = self.context = 0
        self.seated = self.held = self.tokens = self.held_tokens = self.admitted = 0
        caching = limits.prefix_caching and (load.primed or any(job.chain for job in load.jobs))
        self.cache: dict[int, int] | None = dict.fromkeys(load.primed, 0) if caching else None
        self.written = self.prefills = 0

    def run(self) -> Times:
        lookahead = self.limits.lookahead
        while self.left > 0:
            # A step is composed when the one before it starts; if that gave nothing, again now
            composed = lookahead and self._compose(self.before_s, self.held, self.held_tokens)
            if composed or self._compose(self.t, 0, 0):
                if self.chunks:
                    self._prefill_step()
                else:
                    self._decode_steps()
            elif not self._idle():
                break
        self.times.end_s = self.t
        if self.cache is not None:
            # Nothing is forgotten by a cache that holds all that was written
            self.times.most_tokens = max(self.times.most_tokens, self.written)
        return self.times

    # ---- what a step computes

    def _compose(self, cutoff_s: float, held: int, held_tokens: int) -> bool:
        """Choose the step's prefill chunks; False if there is nothing to compute at all. `held`:
        requests whose last token is on its way and who keep their seat until then.
        """
        self.chunks = []
        if self.arrivals:
            self._receive()
        visible = self.visible
        while visible and visible[0][0] <= cutoff_s:
            i = visible.popleft()[1]
            self.waiting.append(_Seat(i, self.load.jobs[i].prompt))
        if self.partial or self.waiting:
            budget = self.limits.budget - (self.n if self.limits.mixed else 0)
            for seat in self.partial:
                if budget <= 0:
                    break
                budget -= self._take(seat, self._portion(seat.length - seat.done, budget))
            if self.waiting:
                self._admit(budget, held, held_tokens)
        return self.n > 0 or bool(self.chunks)

    def _portion(self, tokens: int, budget: int) -> int:
        threshold = self.limits.threshold
        if 0 < threshold < tokens:
            tokens = threshold
        return tokens if tokens < budget else budget

    def _take(self, seat: _Seat, tokens: int) -> int:
        self.chunks.append((seat, tokens))
        return tokens

    def _admit(self, budget: int, held: int, held_tokens: int) -> None:
        limits, times = self.limits, self.times
        while self.waiting and budget > 0:
            if self.seated + held >= limits.seqs:
                times.seats_blocked = True
                return
            seat = self.waiting[0]
            cached = self._hits(seat) if self.cache is not None else 0
            new = seat.length - cached
            if not limits.chunked and new > budget:
                return
            # What this step computes already, and the blocks' unused ends
            planned = limits.budget - budget + (limits.block_size - 1) * (self.seated + held) // 2
            asked = self.tokens + held_tokens + planned + new
            if asked > limits.kv_tokens:
                times.memory_blocked = True
                return
            if asked > times.most_tokens:
                times.most_tokens = asked
            self.waiting.popleft()
            self.seated += 1
            self.admitted += 1
            seat.order, seat.done, seat.shared = self.admitted, cached, cached
            self.partial.append(seat)
            if seat.made == 0:
                times.scheduled[seat.job] = self.t
                times.cached[seat.job] = cached
            budget -= self._take(seat, self._portion(new, budget))
        if self.seated + held > times.most_seated:
            times.most_seated = self.seated + held

    # ---- steps

    def _prefill_step(self) -> None:
        """One step with prefill, or as many as one long prompt fills alone."""
        step, n = self.pace.step, self.n if self.limits.mixed else 0
        tokens, pairs = n, 0.0
        for seat, portion in self.chunks:
            tokens += portion
            pairs += portion * (seat.done + portion / 2)
        compute = step.b_s * tokens
        seconds = (
            step.a_s + (compute if compute > step.m_s else step.m_s)
            + step.c_s * pairs + (step.d_s * self.context if n else 0.0) + step.f_s
            + self.pace.chunk_s * len(self.chunks)
        )  # fmt: skip
        if seconds < self.pace.floor_s:
            seconds = self.pace.floor_s
        count, growth = 1, 0.0
        if len(self.chunks) == 1 and tokens == self.limits.budget:
            count = self._alone_steps(*self.chunks[0], n, seconds)
            growth = step.c_s * self.chunks[0][1] ** 2 + step.d_s * n
        self._pass(count, seconds, growth, n, tokens)
        self.prefills += 1
        joining: list[_Seat] = []
        for seat, portion in self.chunks:
            seat.done += portion * count
            if self.cache is not None:
                self._remember(seat)
            if seat.done == seat.length:
                joining.append(seat)
        if joining:
            self.partial = [seat for seat in self.partial if seat.done < seat.length]
        self._settle(self.k - 1)
        for seat in joining:
            self._join(seat, self.k - 1)
        if self.tokens + self.n > self._room():
            self._make_room()

    def _alone_steps(self, seat: _Seat, portion: int, n: int, seconds: float) -> int:
        """How many steps in a row this prompt fills to the budget without being finished, and
        without another request leaving: nobody else can be let in meanwhile.
        """
        count = (seat.length - seat.done - 1) // portion
        if count <= 1 or seconds <= self.pace.floor_s:
            return 1
        if n:
            count = min(count, self._next_finish() - self.k + 1)
        room = (self._room() - self.tokens) // self.limits.budget
        return max(1, min(count, room))

    def _pass(self, count: int, first: float, growth: float, n: int, tokens: int) -> None:
        """Let `count` steps go by in which `n` decode: the first lasts `first` s, each next one
        `growth` longer. The number `k` counts the steps in which decoding goes on.
        """
        self.before_s = self.t + span_of(count - 1, first, growth)
        self.t += span_of(count, first, growth)
        self.context += n * count
        self.tokens += tokens * count
        self.written += tokens * count
        if self.limits.mixed or n:
            self.k += count
        self.held = self.held_tokens = 0
        used = self.tokens + self.n + self.limits.kv_tokens - self._room()
        if used > self.times.most_tokens:
            self.times.most_tokens = used

    def _join(self, seat: _Seat, k: int) -> None:
        """A prompt's last chunk gives a token; what is left decodes from the next step on."""
        job = self.load.jobs[seat.job]
        if seat.made == 0:
            self.times.first[seat.job] = self.t
        seat.made += 1
        seat.joined = k
        seat.finish = k + job.output - seat.made
        if seat.finish == k:
            self._leave(seat, seat.length)
        else:
            self.n += 1
            self.context += seat.length + 1
            self.decoding[seat.order] = seat
            heappush(self.finishing, (seat.finish, seat.order, seat))

    def _decode_steps(self) -> None:
        """As many decode-only steps as pass before anything can change."""
        step, n = self.pace.step, self.n
        compute = step.b_s * n
        alone = step.a_s + (compute if compute > step.m_s else step.m_s)
        first = alone + step.d_s * self.context
        growth = step.d_s * n
        if first < self.pace.floor_s:
            count, first, growth = 1, self.pace.floor_s, 0.0
        else:
            count = self._steady_steps(first, growth)
        self._pass(count, first, growth, n, n)
        self._settle(self.k - 1)
        if self.tokens + self.n > self._room():
            self._make_room()

    def _steady_steps(self, first: float, growth: float) -> int:
        count = self._next_finish() - self.k + 1
        if self.waiting:
            # Only a leaving request can let the next one in, and this may have happened just now
            count = 1 if self.held else count
        else:
            arrival_s = self._next_visible_s()
            if arrival_s < math.inf:
                lookahead = self.limits.lookahead
                least = 0 if lookahead else 1
                wait = steps_until(arrival_s - self.t, first, growth, least)
                count = min(count, wait + 1 if lookahead else wait)
        room = (self._room() - self.tokens) // self.n
        return max(1, min(count, room))

    def _next_finish(self) -> int:
        """The first step at whose end a decoding request leaves."""
        while not self._valid(*self.finishing[0]):
            heappop(self.finishing)
        return self.finishing[0][0]

    @staticmethod
    def _valid(finish: int, order: int, seat: _Seat) -> bool:
        """Whether an entry still stands: its request was not made to wait again meanwhile."""
        return seat.finish == finish and seat.order == order

    def _settle(self, k: int) -> None:
        """Hand out the last tokens of step `k`."""
        finishing = self.finishing
        while finishing and finishing[0][0] <= k:
            finish, order, seat = heappop(finishing)
            if not self._valid(finish, order, seat):
                continue
            length = seat.length + k - seat.joined
            self.n -= 1
            self.context -= length + 1
            del self.decoding[seat.order]
            self._leave(seat, length)

    def _leave(self, seat: _Seat, length: int) -> None:
        i = seat.job
        self.times.last[i] = self.t
        self.left -= self.load.jobs[i].measured
        self.seated -= 1
        self.held += 1
        own = length - seat.shared
        self.tokens -= own
        self.held_tokens += own
        for follower in self.followers.get(i, ()):
            job = self.load.jobs[follower]
            due_s = max(job.at_s / self.load.rate, self.t + job.gap_s)
            heappush(self.arrivals, (due_s, follower))

    def _room(self) -> int:
        """Tokens that the memory holds, less the unused ends of blocks."""
        limits = self.limits
        return limits.kv_tokens - (limits.block_size - 1) * self.seated // 2

    def _make_room(self) -> None:
        """The last admitted give up their memory and wait again, until the others can go on."""
        while self.tokens + self.n > self._room() and self.seated > 1:
            seats = [*self.partial, *self.decoding.values()]
            if not seats:
                return
            seat = max(seats, key=lambda s: s.order)
            if seat.joined >= 0:
                steps = self.k - 1 - seat.joined
                self.n -= 1
                self.context -= seat.length + steps + 1
                del self.decoding[seat.order]
                self.tokens -= seat.length + steps - seat.shared
                seat.made += steps
                seat.length += steps + 1
            else:
                self.partial.remove(seat)
                self.tokens -= seat.done - seat.shared
            seat.finish, seat.joined, seat.done, seat.shared, seat.looked = -1, -1, 0, 0, -1
            self.seated -= 1
            self.times.preemptions += 1
            self.times.memory_blocked = True
            self.waiting.appendleft(seat)

    # ---- arrivals

    def _receive(self) -> None:
        """What is due by now goes through the front: `r1` per token, one after the other."""
        arrivals, pace = self.arrivals, self.pace
        while arrivals and arrivals[0][0] <= self.t:
            at_s, i = heappop(arrivals)
            self.times.due[i] = at_s
            self.front_s = max(self.front_s, at_s) + pace.r1_s * self.load.jobs[i].prompt
            self.visible.append((self.front_s + pace.r0_s, i))

    def _next_visible_s(self) -> float:
        if self.visible:
            return self.visible[0][0]
        if not self.arrivals:
            return math.inf
        at_s, i = self.arrivals[0]
        pace = self.pace
        return max(self.front_s, at_s) + pace.r1_s * self.load.jobs[i].prompt + pace.r0_s

    def _idle(self) -> bool:
        """Go on to the next arrival; False if there is none, or it can never be served."""
        if self.waiting or self.partial:
            return False
        arrival_s = self._next_visible_s()
        if arrival_s == math.inf:
            return False
        self.t = self.before_s = max(self.t, arrival_s)
        self.held = self.held_tokens = 0
        return True

    # ---- prefix cache

    def _hits(self, seat: _Seat) -> int:
        """Prompt tokens found in the cache, in whole blocks; at least one is always computed."""
        cache, piece = self.cache, self.load.piece_tokens
        assert cache is not None
        found = 0
        if seat.looked == self.prefills:
            return seat.cached
        for name in self.load.jobs[seat.job].chain:
            written = cache.get(name)
            if written is None or self.written - written > self.limits.kv_tokens:
                break
            cache[name] = self.written
            found += 1
        block = self.limits.block_size
        seat.seen = found
        seat.looked = self.prefills
        seat.cached = min(found * piece, (seat.length - 1) // block * block)
        return seat.cached

    def _remember(self, seat: _Seat) -> None:
        cache, piece = self.cache, self.load.piece_tokens
        assert cache is not None
        chain = self.load.jobs[seat.job].chain
        while seat.seen < len(chain) and (seat.seen + 1) * piece <= seat.done:
            cache[chain[seat.seen]] = self.written
            seat.seen += 1
