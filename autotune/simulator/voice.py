"""What a simulated model says, and what it thinks of a text: fixed words, invented numbers.

There is no model, but settings that change answers have to be told from settings that do not. So a
number stands for the damage (`loss` of a weight or KV format in the profile): the relative rise in
perplexity. Log-probabilities fall by just that much on average, greedy answers part earlier from
what they would have been, and with a loss of 1 or more they are garbage. Nothing here was measured.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

WORDS = ("the", "a", "time", "of", "server", "light", "and", "water", "to", "stone", "in", "day",
         "road", "is", "over", "quiet")  # fmt: skip
GARBAGE_FROM = 1.0
"""From this loss on an answer is one token, repeated: what broken numbers give."""
PART_RATE = 4.0
"""A token of a greedy answer is another one with a chance of this times the loss."""
_LEAST_NLL, _SPAN_NLL = 0.5, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """How one launch of the engine speaks. `loss` 0: as it should."""

    loss: float = 0.0

    def words(self, prompt: Sequence[int], first: int, count: int) -> list[str]:
        """The tokens number `first` (from 0) onwards of the answer to a prompt."""
        if self.loss >= GARBAGE_FROM:
            return ["!"] * count
        parts_at = self._parts_at(prompt)
        # An odd step beside the list never meets it again within an answer
        return [
            f" {WORDS[(index + 7 * (index >= parts_at)) % len(WORDS)]}"
            for index in range(first, first + count)
        ]

    def logprobs(self, tokens: Sequence[int]) -> list[float | None]:
        """The log-probability of each token after those before it; None for the first. They follow
        from the token and the one before it.
        """
        rise = math.log1p(self.loss)
        found: list[float | None] = [None]
        for before, token in pairwise(tokens):
            nll = _LEAST_NLL + _SPAN_NLL * _chance(before, token, 1)
            found.append(-(nll + 2 * rise * _chance(before, token, 2)))
        return found

    def _parts_at(self, prompt: Sequence[int]) -> float:
        """The first token of an answer that is another one; infinite for a sound engine."""
        share = min(PART_RATE * self.loss, 0.999)
        if share <= 0:
            return math.inf
        luck = _chance(len(prompt), prompt[0], prompt[-1])
        return math.floor(math.log(max(luck, 1e-9)) / math.log1p(-share))


SOUND = Voice()
"""An engine whose settings change no answer."""


def _chance(*numbers: int) -> float:
    """A number in [0, 1) that follows from these."""
    text = ",".join(map(str, numbers)).encode()
    return zlib.crc32(text, zlib.adler32(text)) / 2**32
