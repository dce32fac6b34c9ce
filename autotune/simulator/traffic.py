"""Arrivals prepared once for many runs: which requests begin alike, per block size.

The blocks of all prompts form a tree of chained hashes. Its shared part is cut into nodes: runs of
blocks that every request takes as a whole; what only one request has needs no hashes at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.simulator.blocks import block_hashes
from autotune.simulator.scheduler import SimRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualArrival:
    """A request and the moment it is sent, in seconds from the start of the replay.

    `after`: the id of a request whose end it waits for; then it is sent `gap_s` seconds after that
    end, but not before `at_s`.
    """

    at_s: float
    request: SimRequest
    after: str | None = None
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Chain:
    """The shared beginning of one prompt: node numbers, and where each ends, in blocks."""

    nodes: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    @property
    def blocks(self) -> int:
        """How many leading blocks are shared with any other request."""
        return self.ends[-1] if self.ends else 0


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The chains of all requests, in the order of arrivals, and how many nodes there are."""

    chains: tuple[Chain, ...]
    nodes: int


class Traffic:
    """Arrivals in the order given, with their prefix trees by block size."""

    def __init__(self, arrivals: Sequence[VirtualArrival], *, alike: bool = True) -> None:
        """`alike`: whether prompts may begin alike; if not, they are not looked at. Raises
        ValueError where ids repeat or an arrival waits for one that is not there.
        """
        self._alike = alike
        self.arrivals = tuple(arrivals)
        self.index = {arrival.request.id: i for i, arrival in enumerate(self.arrivals)}
        if len(self.index) != len(self.arrivals):
            raise ValueError("request ids repeat")
        unknown = {a.after for a in self.arrivals if a.after is not None} - self.index.keys()
        if unknown:
            raise ValueError(f"arrivals wait for unknown requests: {sorted(unknown)}")
        self.followers: dict[int, list[int]] = {}
        for i, arrival in enumerate(self.arrivals):
            if arrival.after is not None:
                self.followers.setdefault(self.index[arrival.after], []).append(i)
        self._trees: dict[int, PrefixTree] = {}
        self._whole: tuple[Traffic, list[int]] | None = None

    def again(self, arrivals: Sequence[VirtualArrival]) -> Traffic:
        """Some of the same requests, by their ids, sent at other times; their prompts are not
        looked at again. Raises KeyError for an id that is not there.
        """
        other = Traffic(arrivals)
        other._whole = self, [self.index[arrival.request.id] for arrival in arrivals]
        return other

    def tree(self, block_size: int) -> PrefixTree:
        """The prefix tree for blocks of so many tokens; computed at the first call."""
        if block_size not in self._trees:
            if not self._alike:
                tree = PrefixTree((Chain(),) * len(self.arrivals), 0)
            elif self._whole is None:
                tree = _tree([a.request for a in self.arrivals], block_size)
            else:
                whole, places = self._whole
                known = whole.tree(block_size)
                tree = PrefixTree(tuple(known.chains[i] for i in places), known.nodes)
            self._trees[block_size] = tree
        return self._trees[block_size]


def _tree(requests: Sequence[SimRequest], size: int) -> PrefixTree:
    hashes = [block_hashes(r.prompt, size, r.cache_salt) for r in requests]
    users = Counter(value for found in hashes for value in found)
    shared = []
    cuts: set[int] = set()
    for request, found in zip(requests, hashes, strict=True):
        count = next((i for i, value in enumerate(found) if users[value] < 2), len(found))
        shared.append(found[:count])
        # A prompt's own last token is always computed, so it may take one block less than it has
        ends = {count, len(found), (len(request.prompt) - 1) // size}
        ends |= {i + 1 for i in range(count - 1) if users[found[i]] != users[found[i + 1]]}
        cuts.update(found[end - 1] for end in ends if 0 < end <= count)
    numbers: dict[int, int] = {}
    chains = []
    for found in shared:
        ends_at = [i + 1 for i, value in enumerate(found) if value in cuts]
        starts = [0, *ends_at[:-1]] if ends_at else []
        nodes = tuple(numbers.setdefault(found[start], len(numbers)) for start in starts)
        chains.append(Chain(nodes, tuple(ends_at)))
    return PrefixTree(tuple(chains), len(numbers))
