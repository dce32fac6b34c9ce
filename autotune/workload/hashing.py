"""Prompt prefixes as opaque numbers: chained hashes of token blocks, and foreign ids renumbered.

The hash key is random and lives only as long as the import; what is kept are numbers in order of
first appearance, which say which prompts begin alike and nothing else.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

BYTES_PER_TOKEN = 4
_DIGEST_BYTES = 16


class PrefixHasher:
    """Block ids of prompts given as four bytes per token. One instance per import."""

    def __init__(self, block_size: int) -> None:
        self._stride = block_size * BYTES_PER_TOKEN
        self._key = secrets.token_bytes(32)
        self._numbers: dict[bytes, int] = {}
        self._fresh = 0

    def ids(self, tokens: bytes, count: int | None = None) -> tuple[int, ...]:
        """One id per started block; an id stands for its block and all before it.

        `count`: how many blocks the prompt is known to have. When the tokens (an estimate) give
        more, the last are dropped; when they give fewer, ids that nothing shares are added.
        """
        digest = b""
        found = []
        for start in range(0, len(tokens), self._stride):
            block = digest + tokens[start : start + self._stride]
            digest = hashlib.blake2b(block, key=self._key, digest_size=_DIGEST_BYTES).digest()
            found.append(self._number(digest))
        if count is None:
            return tuple(found)
        while len(found) < count:
            self._fresh += 1
            found.append(self._number(self._fresh.to_bytes(8, "big")))
        return tuple(found[:count])

    def _number(self, name: bytes) -> int:
        return self._numbers.setdefault(name, len(self._numbers))


class BlockTree:
    """Foreign block ids as 0, 1, 2, ... in order of first appearance.

    An id below another parent is another block, so the result is always a tree, whatever the source
    hashed and however large its numbers are.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def dense(self, foreign: Sequence[int], *, scope: int = 0) -> tuple[int, ...]:
        """The numbers of one prompt's blocks. Equal ids in different scopes are different."""
        parent, found = -1 - scope, []
        numbers = self._numbers
        for block in foreign:
            parent = numbers.setdefault((parent, block), len(numbers))
            found.append(parent)
        return tuple(found)
