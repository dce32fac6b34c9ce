"""Which prompts begin alike, without keeping any of them.

Prompts are cut into chunks; a chunk is known by a keyed hash of itself and everything before it.
The key is random, lives as long as the recording, and is never written; what is written are dense
numbers that say only "the same beginning as before".
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

from autotune.workload.recording.prompt import Prompt

BLOCK_SIZE = 64
CHUNK_BYTES = 256
"""A block's worth of token ids, and about one of text."""
MOST_CHUNKS = 1_000_000
"""What is remembered: some 64 M tokens of distinct prompts in 300 MB; the longest unused goes."""
_DIGEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A prompt that was given block ids."""

    blocks: tuple[int, ...]
    tokens: int
    size: int
    whole: bytes


class PrefixMemory:
    """Remembers beginnings of prompts within bounds."""

    def __init__(self, *, most_chunks: int = MOST_CHUNKS) -> None:
        self._key = secrets.token_bytes(32)
        self._most_chunks = most_chunks
        self._chunks: OrderedDict[bytes, _Placed] = OrderedDict()
        self._next_block = 0

    def chain(self, prompt: Prompt) -> list[bytes]:
        """Digests of the scope, and of everything up to the end of each whole chunk."""
        last = self._hash(b"scope", prompt.scope)
        found = [last]
        content = prompt.content
        for start in range(0, len(content) - CHUNK_BYTES + 1, CHUNK_BYTES):
            last = self._hash(last, content[start : start + CHUNK_BYTES])
            found.append(last)
        return found

    def tail(self, chain: list[bytes], content: bytes, size: int) -> bytes:
        """The digest of the first `size` bytes, less than a chunk behind a member of the chain."""
        whole = size // CHUNK_BYTES
        return self._hash(chain[whole] + b"tail", content[whole * CHUNK_BYTES : size])

    def blocks(self, prompt: Prompt, chain: list[bytes], tokens: int) -> tuple[int, ...]:
        """One id per started block of a prompt of `tokens` tokens. Leading ids are those of the
        earlier prompt with the longest common beginning, as far as both prompts' tokens reach,
        supposing that tokens lie evenly over the bytes; the rest is new.
        """
        content = prompt.content
        whole = self.tail(chain, content, len(content))
        owner: _Placed | None = None
        known = 0
        for digest in chain[1:]:
            earlier = self._chunks.get(digest)
            if earlier is None:
                break
            owner, known = earlier, known + 1
        if owner is not None and owner.whole == whole and owner.tokens == tokens:
            blocks = owner.blocks
        else:
            shared = 0
            if owner is not None:
                common = known * CHUNK_BYTES
                reach = min(tokens * common // len(content), owner.tokens * common // owner.size)
                shared = reach // BLOCK_SIZE
            count = -(-tokens // BLOCK_SIZE)
            fresh = range(self._next_block, self._next_block + count - shared)
            blocks = (*(owner.blocks[:shared] if owner is not None else ()), *fresh)
            self._next_block = fresh.stop
        self._remember(
            chain,
            _Placed(blocks=blocks, tokens=tokens, size=len(content), whole=whole),
        )
        return blocks

    def _remember(self, chain: list[bytes], placed: _Placed) -> None:
        # From the end on, so that a beginning is always younger than what hangs on it
        for digest in reversed(chain[1:]):
            if digest in self._chunks:
                self._chunks.move_to_end(digest)
            else:
                self._chunks[digest] = placed
        while len(self._chunks) > self._most_chunks:
            self._chunks.popitem(last=False)

    def _hash(self, before: bytes, data: bytes) -> bytes:
        return blake2b(before + data, digest_size=_DIGEST, key=self._key).digest()
