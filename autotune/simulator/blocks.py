"""The paged KV cache: reference-counted blocks, reuse by chained hashes, LRU over free blocks."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence


def block_hashes(tokens: Sequence[int], block_size: int, salt: str | None = None) -> list[int]:
    """One hash per full block of `tokens`; each covers everything before it and the salt.

    Equal in every process: built from integers only.
    """
    previous = zlib.crc32(salt.encode()) + 1 if salt else 0
    hashes = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        previous = hash((previous, *tokens[start : start + block_size]))
        hashes.append(previous)
    return hashes


class BlockPool:
    """A fixed number of KV blocks. Blocks are small integers from 0.

    A block with no user keeps its content until it is the least recently freed one and somebody
    needs a block. Never-used blocks are handed out first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._fresh = 0
        self._freed: OrderedDict[int, None] = OrderedDict()
        self._users: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Number of blocks that nobody uses (their content may still be cached)."""
        return self.num_blocks - self._fresh + len(self._freed)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1."""
        return 1.0 - self.free / self.num_blocks

    def match(self, hashes: Sequence[int], limit: int) -> list[int]:
        """The cached blocks of the longest known prefix of `hashes`, at most `limit` of them."""
        found = []
        for value in hashes[:limit]:
            block = self._block_of.get(value)
            if block is None:
                break
            found.append(block)
        return found

    def unused_among(self, blocks: Iterable[int]) -> int:
        """How many of these cached blocks count as free now (taking them costs a free block)."""
        return sum(1 for block in blocks if self._users.get(block, 0) == 0)

    def take(self, blocks: Iterable[int]) -> None:
        """Become a user of cached blocks."""
        for block in blocks:
            users = self._users.get(block, 0)
            if users == 0:
                del self._freed[block]
            self._users[block] = users + 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks for new content, forgetting what they held. The caller has checked
        that `free` suffices.
        """
        taken = []
        for _ in range(count):
            if self._fresh < self.num_blocks:
                block = self._fresh
                self._fresh += 1
            else:
                block, _none = self._freed.popitem(last=False)
                known = self._hash_of.pop(block, None)
                if known is not None:
                    del self._block_of[known]
            self._users[block] = 1
            taken.append(block)
        return taken

    def remember(self, block: int, value: int) -> None:
        """Let the full block be found by its hash; the first block with a hash keeps it."""
        if value not in self._block_of and block not in self._hash_of:
            self._block_of[value] = block
            self._hash_of[block] = value

    def release(self, blocks: Sequence[int]) -> None:
        """Stop using blocks, given in token order; the tail is evicted before the head."""
        for block in reversed(blocks):
            users = self._users[block] - 1
            self._users[block] = users
            if users == 0:
                self._freed[block] = None

    def forget(self) -> bool:
        """Drop all cached content. False, and nothing done, while any block is in use."""
        if self.free < self.num_blocks:
            return False
        self._freed.clear()
        self._hash_of.clear()
        self._block_of.clear()
        self._users.clear()
        self._fresh = 0
        return True
