"""Which blocks a request of `quick_core` holds, finds and leaves behind."""

from __future__ import annotations

from autotune.simulator.block_runs import Node, Run, RunPool, claim
from autotune.simulator.quick_state import Seq
from autotune.simulator.traffic import PrefixTree


class PromptCache:
    """The contents of a `RunPool`: the nodes of a prefix tree, and each request's own blocks, which
    only it can find, and only after it was preempted. `tree` None: prefixes are not cached.
    """

    def __init__(self, pool: RunPool, block_size: int, tree: PrefixTree | None) -> None:
        self._pool = pool
        self._size = block_size
        self._on = tree is not None
        self._nodes = [Node() for _ in range(0 if tree is None else tree.nodes)]

    def hits(self, seq: Seq, limit: int) -> list[Run]:
        """The runs of the longest cached prefix, at most `limit` blocks."""
        found: list[Run] = []
        start = 0
        for number, end in zip(seq.chain.nodes, seq.chain.ends, strict=True):
            if end > limit or not self._whole(self._nodes[number], end - start, found):
                return found
            start = end
        if seq.own:
            self._whole(seq.own, limit - start, found)
        return found

    def _whole(self, node: Node, wanted: int, found: list[Run]) -> bool:
        """Append the runs of a node's first blocks, as far as they are there; whether all are."""
        end = 0
        for run in list(node):
            if run.lo != end or end == wanted:
                break
            whole = run if run.hi <= wanted else self._pool.split(run, wanted)
            found.append(whole)
            end = whole.hi
        return end == wanted

    def cover(self, seq: Seq, *, own: bool) -> None:
        """Whole blocks were computed: let them be found. `own`: those too that only this request
        has.
        """
        complete = seq.computed // self._size
        if not self._on or complete <= seq.covered:
            return
        start = 0
        for number, end in zip(seq.chain.nodes, seq.chain.ends, strict=True):
            if seq.covered < end and complete > seq.covered:
                upto = min(end, complete)
                seq.runs += claim(self._nodes[number], seq.covered - start, upto - start)
                seq.covered = upto
            start = end
        if own and complete > seq.covered:
            seq.runs += claim(seq.own, seq.covered - start, complete - start)
            seq.covered = complete

    def give_back(self, seq: Seq) -> None:
        """Release everything. A request that was preempted will look for its blocks again."""
        self.cover(seq, own=seq.preemptions > 0)
        self._pool.release(seq.runs, seq.held - seq.covered)
        seq.runs, seq.held, seq.covered = [], 0, 0
