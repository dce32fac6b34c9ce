"""Prompts as token ids, made from block ids: equal leading ids give equal leading tokens.

Tokens come from SHAKE-128 of (salt, block id), so they are the same in every process, and another
salt gives prompts that no earlier measurement can have put into a prefix cache.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection
from pathlib import Path

from autotune.workload.trace import Request

DEFAULT_VOCAB = 32_000
"""Used when the model's own size is unknown: the smallest vocabulary among the common models."""
_NESTED = ("text_config", "llm_config", "language_config")


class PromptBuilder:
    """Makes the prompts of one measurement.

    Ids stay clear of both ends of the vocabulary, where special tokens live (Mistral's tekken has
    1,000 at the start; Gemma, Llama and Qwen keep theirs in the last 3 %), and of `special_ids`
    wherever these are.
    """

    def __init__(
        self,
        vocab_size: int,
        salt: str,
        block_size: int,
        special_ids: Collection[int] = (),
    ) -> None:
        if vocab_size < 16 or block_size < 1:
            raise ValueError(f"vocab_size {vocab_size} or block_size {block_size} is too small")
        self._low = min(1000, vocab_size // 8)
        high = vocab_size - vocab_size // 20
        inside = sorted(number for number in set(special_ids) if self._low <= number < high)
        if high - self._low - len(inside) < 2:
            raise ValueError("hardly any token of the vocabulary is not special")
        self._span = high - self._low - len(inside)
        # How many usable ids lie below each special one
        self._gaps = [number - self._low - i for i, number in enumerate(inside)]
        self._block_size = block_size
        self._salt = hashlib.sha256(salt.encode("utf-8", "surrogatepass")).digest()
        self._turns = [int.from_bytes(self._salt[i : i + 4], "little") % self._span for i in (0, 4)]
        self._blocks: dict[int, bytes] = {}
        self._strangers = 0

    def tokens(self, request: Request) -> list[int]:
        """`request.input_tokens` token ids.

        Without block ids: turns of one session extend each other's prompts, the tokens where an
        answer stood being random ones of its length; other requests share nothing, which depends
        on how many came before them, so ask in the same order to get the same prompts again.
        """
        if request.blocks:
            return self._from_blocks(request)
        if request.session is not None:
            return self._draw(f"session {request.session}", request.input_tokens)
        self._strangers += 1
        tokens = self._draw(f"request {self._strangers}", request.input_tokens)
        for i, token in enumerate(self._stamp(self._strangers)[: len(tokens)]):
            tokens[i] = token
        return tokens

    def _from_blocks(self, request: Request) -> list[int]:
        size = self._block_size
        if len(request.blocks) * size < request.input_tokens:
            raise ValueError(f"line {request.line}: fewer blocks than prompt tokens")
        ids = self._scaled(b"".join(map(self._block, request.blocks)))
        for start, block in zip(range(0, len(ids), size), request.blocks, strict=True):
            ids[start : start + min(2, size)] = self._stamp(block)[:size]
        del ids[request.input_tokens :]
        return ids

    def _block(self, block: int) -> bytes:
        words = self._blocks.get(block)
        if words is None:
            words = self._words(f"block {block}", self._block_size)
            self._blocks[block] = words
        return words

    def _draw(self, what: str, length: int) -> list[int]:
        return self._scaled(self._words(what, length))

    def _words(self, what: str, length: int) -> bytes:
        name = what.encode("utf-8", "surrogatepass")
        return hashlib.shake_128(self._salt + name).digest(4 * length)

    def _scaled(self, words: bytes) -> list[int]:
        """Four bytes each, taken as a fraction of the usable vocabulary."""
        import numpy as np

        numbers = np.frombuffer(words, dtype="<u4").astype(np.uint64)
        scaled = (numbers * np.uint64(self._span)) >> np.uint64(32)
        if self._gaps:
            gaps = np.array(self._gaps, dtype=np.uint64)
            scaled += np.searchsorted(gaps, scaled, side="right").astype(np.uint64)
        ids: list[int] = (scaled + np.uint64(self._low)).tolist()
        return ids

    def _usable(self, number: int) -> int:
        """The usable id of this rank."""
        return self._low + number + bisect_right(self._gaps, number)

    def _stamp(self, number: int) -> tuple[int, int]:
        """The number as the first two tokens of its block.

        Siblings then differ in the first token (unless their numbers are a multiple of the usable
        vocabulary apart) and always in the first two, so that an engine with smaller blocks finds
        no sharing that was not there.
        """
        high, low = divmod(number, self._span)
        first, second = self._turns
        return self._usable((low + first) % self._span), self._usable((high + second) % self._span)


def vocab_of(model: str) -> int:
    """The vocabulary size in the `config.json` of a local model folder (nested text models too);
    `DEFAULT_VOCAB` for names of a hub or when it is not stated.
    """
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return DEFAULT_VOCAB
    if not isinstance(config, dict):
        return DEFAULT_VOCAB
    for part in (config, *(config.get(name) for name in _NESTED)):
        size = part.get("vocab_size") if isinstance(part, dict) else None
        if isinstance(size, int) and size >= 16:
            return size
    return DEFAULT_VOCAB
