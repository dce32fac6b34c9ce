"""What `quick_core` knows of requests: one by one where it must, as counters while they decode."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from autotune.simulator.block_runs import Node, Run
from autotune.simulator.traffic import Chain


class Seq:
    """One request. `first` is the step that gave the first token since its last admission, `base`
    the tokens computed then, `given` the output tokens up to and with it; from there on it gets one
    token a step. `spans`: (first, last) step of its stretches with tokens.
    """

    __slots__ = (
        "base", "cached", "chain", "complete", "computed", "covered", "decoding", "first", "given",
        "held", "index", "output", "own", "preemptions", "produced", "prompt", "runs",
        "scheduled_s", "seated", "spans",
    )  # fmt: skip

    def __init__(self, index: int, prompt: int, output: int, chain: Chain) -> None:
        self.index = index
        self.prompt = prompt
        self.output = output
        self.chain = chain
        self.scheduled_s: float | None = None
        self.cached = self.computed = self.produced = self.preemptions = 0
        self.first = self.base = self.given = 0
        self.held = self.covered = 0
        self.runs: list[Run] = []
        self.own: Node = []
        self.decoding = self.seated = self.complete = False
        self.spans: list[tuple[int, int]] = []

    @property
    def left(self) -> int:
        """Tokens to compute before the next one can be given; while it does not decode."""
        return self.prompt + self.produced - self.computed

    @property
    def done_step(self) -> int:
        """The step that gives its last token."""
        return self.first + self.output - self.given


@dataclass(slots=True)
class Share:
    """A request's prefill chunk in a step."""

    seq: Seq
    tokens: int
    before: int
    emits: bool


@dataclass(slots=True)
class Step:
    """A composed step: how many decode, the context they read, and the prefill chunks."""

    decodes: int
    context: int
    prefills: list[Share]

    @property
    def tokens(self) -> int:
        """Tokens computed in it."""
        return self.decodes + sum(share.tokens for share in self.prefills)

    @property
    def sequences(self) -> int:
        """Requests in it."""
        return self.decodes + len(self.prefills)


class Decoders:
    """The requests that get one token in every step: how many, the context of their next step, in
    which step each is done, and how many need a block in a step (by its number modulo the size).
    """

    def __init__(self, block_size: int) -> None:
        self.count = 0
        self.context = 0
        self.fills = [0] * block_size
        self._size = block_size
        self._done: dict[int, list[Seq]] = {}
        self._done_steps: list[int] = []

    @property
    def next_done(self) -> int:
        """No request is done in a step before this one; there is at least one request."""
        return self._done_steps[0]

    def needed(self, step: int) -> int:
        """Blocks that they need in this step, the next one."""
        return self.fills[step % self._size] if self.count else 0

    def join(self, seq: Seq, step: int) -> None:
        """A request is in this step and will be in the following ones until it is done."""
        done = seq.done_step
        if done not in self._done:
            self._done[done] = []
            heapq.heappush(self._done_steps, done)
        self._done[done].append(seq)
        if done == step:
            seq.complete = True
        else:
            self._change(seq, step, 1)

    def compose(self, step: int) -> None:
        """All are in this step, the next one; those that are done with it leave."""
        self.context += self.count
        for seq in self._done.get(step, ()):
            seq.complete = True
            self._change(seq, step, -1)

    def leave(self, seq: Seq, step: int) -> None:
        """A request that is not done was in this step, or would have been, and is in no other."""
        self._done[seq.done_step].remove(seq)
        self._change(seq, step, -1)

    def pop_done(self, step: int) -> list[Seq]:
        """The requests whose last token came in this step, which has ended."""
        if not self._done_steps or self._done_steps[0] > step:
            return []
        heapq.heappop(self._done_steps)
        return self._done.pop(step)

    def _change(self, seq: Seq, step: int, by: int) -> None:
        self.count += by
        self.context += by * (seq.base + step + 1 - seq.first)
        self.fills[(seq.first + 1 - seq.base) % self._size] += by
