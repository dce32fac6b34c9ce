"""How much of each prompt an infinite prefix cache would hold, counted over a stream of rows.

Block ids are chained into 64-bit keys, so a key stands for a block and everything before it, and a
request's leading blocks that were seen are exactly its keys that were seen. Keys live in a few
sorted arrays: eight bytes per distinct block. Two different prefixes get one key with a chance of
about n * n / 2**65 for n blocks: one in a hundred thousand for fifteen million.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Keys = npt.NDArray[np.uint64]
    Ints = npt.NDArray[np.int64]

CHUNK_IDS = 500_000
RUN_KEYS = 4_000_000
"""Runs are merged up to this size; merging larger ones would double the memory for a moment."""
MASK = 2**64 - 1


class ReuseCounter:
    """Counts the leading known blocks of requests, in the order they are added."""

    def __init__(self) -> None:
        self._ids = array("Q")
        self._counts = array("q")
        self._leading: list[Ints] = []
        self._seen = _KeySet()
        self._any = False

    def add(self, blocks: Sequence[int]) -> None:
        """The next request's block ids; none when unknown."""
        self._counts.append(len(blocks))
        known = len(self._ids)
        try:
            self._ids.extend(blocks)
        except OverflowError:
            # Part of them is in already
            del self._ids[known:]
            self._ids.extend(block & MASK for block in blocks)
        if len(self._ids) >= CHUNK_IDS or len(self._counts) >= CHUNK_IDS:
            self._fold()

    def leading(self) -> Ints | None:
        """Leading known blocks of each request so far; None when no ids were known at all."""
        import numpy as np

        self._fold()
        return np.concatenate(self._leading) if self._any else None

    def _fold(self) -> None:
        import numpy as np

        counts = np.array(self._counts, dtype=np.int64)
        ids = np.array(self._ids, dtype=np.uint64)
        self._ids, self._counts = array("Q"), array("q")
        self._any |= bool(len(ids))
        keys = chained(ids, counts)
        new = np.zeros(len(keys) + 1, dtype=np.int64)
        new[1:] = np.cumsum(self._seen.add(keys))
        ends = np.cumsum(counts)
        self._leading.append(counts - (new[ends] - new[ends - counts]))


def chained(ids: Keys, counts: Ints) -> Keys:
    """Keys of rows of ids laid end to end (`counts` ids each): each key depends on its id and on
    all before it in its row.
    """
    import numpy as np

    starts = np.cumsum(counts) - counts
    # Longest rows first, so that the rows that reach a depth are a slice
    order = np.argsort(-counts, kind="stable")
    starts, lengths = starts[order], counts[order]
    keys = np.empty_like(ids)
    parents = np.full(len(order), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for depth in range(int(lengths[0]) if len(lengths) else 0):
        reach = int(np.searchsorted(-lengths, -depth, side="left"))
        places = starts[:reach] + depth
        parents[:reach] = _mixed(parents[:reach], ids[places])
        keys[places] = parents[:reach]
    return keys


def _mixed(parents: Keys, ids: Keys) -> Keys:
    """A new key from a parent's and an id: the finaliser of SplitMix64 over their combination."""
    import numpy as np

    u = np.uint64
    mixed = parents * u(0xD6E8FEB86659FD93) + ids
    mixed ^= mixed >> u(30)
    mixed *= u(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> u(27)
    mixed *= u(0x94D049BB133111EB)
    mixed ^= mixed >> u(31)
    return mixed


class _KeySet:
    """A growing set of keys in sorted runs, small ones merged into larger ones."""

    def __init__(self) -> None:
        self._runs: list[Keys] = []

    def add(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Whether each key is new, also among those before it in `keys`; they are in afterwards."""
        import numpy as np

        distinct, first = np.unique(keys, return_index=True)
        fresh = np.ones(len(distinct), dtype=np.bool_)
        for run in self._runs:
            places = np.searchsorted(run, distinct)
            places[places == len(run)] = 0
            fresh &= run[places] != distinct
        new = np.zeros(len(keys), dtype=np.bool_)
        new[first[fresh]] = True
        if fresh.any():
            self._runs.append(distinct[fresh])
            self._merge()
        return new

    def _merge(self) -> None:
        import numpy as np

        while len(self._runs) > 1:
            small, large = self._runs[-1], self._runs[-2]
            if len(small) * 2 < len(large) or len(small) + len(large) > RUN_KEYS:
                return
            merged = np.concatenate((large, small))
            merged.sort(kind="stable")
            self._runs[-2:] = [merged]
