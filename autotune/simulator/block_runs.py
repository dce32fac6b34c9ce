"""The paged KV cache of `blocks.BlockPool`, kept as runs of blocks instead of single ones.

Same rules: blocks are shared by their content, never-used ones are handed out first, then the least
recently freed; of what is freed together the tail goes first. Only counts and order matter, so
thousands of blocks are a handful of runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Run:
    """Blocks `lo` to `hi` - 1 of a node. `home`: the runs that hold the node's content and can be
    found; None for blocks that nobody can find. `users`: requests that hold it.
    """

    __slots__ = ("hi", "home", "lo", "users")

    def __init__(self, home: list[Run] | None, lo: int, hi: int) -> None:
        self.home = home
        self.lo = lo
        self.hi = hi
        self.users = 1


Node = list[Run]
"""The runs that hold a node's content, in order, without overlap."""


class RunPool:
    """So many blocks. `free` counts those that nobody uses; their content may still be cached."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.fresh = num_blocks
        self.free = num_blocks
        self._freed: OrderedDict[Run, None] = OrderedDict()

    def allocate(self, count: int) -> None:
        """Take blocks for new content. The caller has checked that `free` suffices."""
        self.free -= count
        if count <= self.fresh:
            self.fresh -= count
            return
        count -= self.fresh
        self.fresh = 0
        while count:
            run = next(iter(self._freed))
            size = run.hi - run.lo
            if size > count:
                run.hi -= count
                return
            del self._freed[run]
            count -= size
            if run.home is not None:
                run.home.remove(run)

    def take(self, runs: Iterable[Run]) -> None:
        """Become a user of cached runs."""
        for run in runs:
            if run.users == 0:
                del self._freed[run]
                self.free -= run.hi - run.lo
            run.users += 1

    def release(self, runs: Sequence[Run], tail: int = 0) -> None:
        """Stop using runs, given in token order, and `tail` blocks behind them that nobody else
        can have.
        """
        if tail:
            self._free(Run(None, 0, tail))
        for run in reversed(runs):
            run.users -= 1
            if run.users == 0:
                self._free(run)

    def _free(self, run: Run) -> None:
        run.users = 0
        self._freed[run] = None
        self.free += run.hi - run.lo

    def split(self, run: Run, at: int) -> Run:
        """Cut a findable run that nobody uses at block `at`; returns its head, the tail keeps its
        place among the freed ones. The head is freed last, as its blocks were.
        """
        assert run.home is not None
        head = Run(run.home, run.lo, at)
        head.users = 0
        run.home.insert(run.home.index(run), head)
        run.lo = at
        order = list(self._freed)
        self._freed = OrderedDict.fromkeys(
            piece for known in order for piece in ((known, head) if known is run else (known,))
        )
        return head


def claim(node: Node, lo: int, hi: int) -> list[Run]:
    """The runs of newly computed blocks `lo` to `hi` - 1: they can be found where nothing else with
    that content can.
    """
    if not node or node[-1].hi <= lo:
        run = Run(node, lo, hi)
        node.append(run)
        return [run]
    runs: list[Run] = []
    for known in list(node):
        if known.hi <= lo:
            continue
        if known.lo >= hi:
            break
        if known.lo > lo:
            runs.append(Run(node, lo, known.lo))
        end = min(hi, known.hi)
        runs.append(Run(None, max(lo, known.lo), end))
        lo = end
    if lo < hi:
        runs.append(Run(node, lo, hi))
    node += [run for run in runs if run.home is node]
    node.sort(key=lambda run: run.lo)
    return runs
