"""What a prefix cache would hold when a window begins, as requests that put it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.workload.trace import Request, Trace

DEFAULT_SHARE = 0.2
"""Unless told otherwise, priming sends at most this share of the window's own prompt tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priming:
    """Prefill-only requests, oldest last use first. `found` counts the prefixes that the history
    holds, `found_tokens` their prompt tokens, bounded or not.
    """

    requests: tuple[Request, ...] = ()
    found: int = 0
    found_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt tokens that the priming sends."""
        return sum(request.input_tokens for request in self.requests)

    def described(self, what: str) -> str | None:
        """What is sent before `what`, in words; None if the history holds nothing of it."""
        if not self.found:
            return None
        if not self.requests:
            return f"{what}: not primed; {self.found} prefixes came before it"
        left = self.found - len(self.requests)
        more = f"; {left} older ones are left out" if left else ""
        return (
            f"{what} is primed with {len(self.requests)} prefixes that came before it, "
            f"{self.tokens:,} of {self.found_tokens:,} tokens{more}"
        )


def prime(
    trace: Trace, low: int, high: int, max_tokens: int | None, cache_tokens: int | None = None
) -> Priming:
    """Priming of the requests [low, high) of a trace by those before them.

    The longest leading blocks of each prompt that the history holds, none inside another; most
    recently used first until `max_tokens` (None: the default share of the window, and at most
    `cache_tokens`) are spent, and sent oldest first, so that a cache that is too small forgets the
    oldest ones as it would have.
    """
    window = trace.requests[low:high]
    if max_tokens is None:
        max_tokens = round(DEFAULT_SHARE * sum(request.input_tokens for request in window))
        max_tokens = max_tokens if cache_tokens is None else min(max_tokens, cache_tokens)
    last_use: dict[int, int] = {}
    for index, request in enumerate(trace.requests[:low]):
        for block in request.blocks:
            last_use[block] = index
    found = _prefixes(window, last_use, trace.block_size)
    ranked = sorted(found, key=lambda prefix: (last_use[prefix[-1]], prefix), reverse=True)
    chosen: list[Request] = []
    total = 0
    for prefix in ranked:
        total += found[prefix]
        if total > max_tokens:
            break
        chosen.append(Request(at_s=0.0, input_tokens=found[prefix], output_tokens=1, blocks=prefix))
    return Priming(
        requests=tuple(reversed(chosen)), found=len(found), found_tokens=sum(found.values())
    )


def _prefixes(
    window: Sequence[Request], known: dict[int, int], block_size: int
) -> dict[tuple[int, ...], int]:
    """Leading blocks that are known -> their tokens; a prefix of another one is left out."""
    found: dict[tuple[int, ...], int] = {}
    for request in window:
        length = 0
        while length < len(request.blocks) and request.blocks[length] in known:
            length += 1
        if length:
            prefix = request.blocks[:length]
            tokens = min(length * block_size, request.input_tokens)
            found[prefix] = max(found.get(prefix, 0), tokens)
    # An id stands for everything before it, so the last one names the whole prefix
    inner = {block for prefix in found for block in prefix[:-1]}
    return {prefix: tokens for prefix, tokens in found.items() if prefix[-1] not in inner}
