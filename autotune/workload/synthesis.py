"""Made-up traffic with the traits that matter to a server: arrivals, lengths, shared prefixes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.workload.trace import Request, Trace

Arrivals = Literal["poisson", "gamma", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Token counts: lognormal with this median, clipped to [low, high]. `spread` is the standard
    deviation of the logarithm; 0 gives the median always.
    """

    median: int
    low: int
    high: int
    spread: float = 0.5

    def draw(self, rng: random.Random) -> int:
        """One length."""
        value = round(math.exp(rng.gauss(math.log(self.median), self.spread)))
        return min(self.high, max(self.low, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of request in a mix.

    `weight` is its share relative to the other parts. `inputs` counts whole prompts, the shared
    prefix of `shared_tokens` (cut down to whole blocks) included; each request uses the prefix of
    one of `groups` groups, group k being 1/k as popular as the first.
    """

    inputs: Lengths
    outputs: Lengths
    weight: float = 1.0
    groups: int = 0
    shared_tokens: int = 0


def synthesize(
    parts: Sequence[Part],
    *,
    rate: float,
    duration_s: float,
    seed: int,
    arrivals: Arrivals = "poisson",
    burstiness: float = 1.0,
    block_size: int = 64,
) -> Trace:
    """A trace of about `rate * duration_s` requests, the same for the same arguments.

    `rate` in requests/s. Gaps are exponential (`poisson`), gamma with shape `burstiness` (below 1:
    burstier than Poisson) or constant. Raises ValueError for arguments that make no traffic.
    """
    if not parts or rate <= 0 or duration_s <= 0 or burstiness <= 0 or block_size < 1:
        raise ValueError("parts, rate, duration_s, burstiness and block_size must be above 0")
    rng = random.Random(seed)
    blocks = _Blocks(parts, block_size)
    requests: list[Request] = []
    at_s = 0.0
    while at_s <= duration_s:
        index = rng.choices(range(len(parts)), [part.weight for part in parts])[0]
        inputs, outputs = parts[index].inputs.draw(rng), parts[index].outputs.draw(rng)
        requests.append(
            Request(
                at_s=round(at_s, 3),
                input_tokens=inputs,
                output_tokens=outputs,
                blocks=blocks.of(index, inputs, rng),
            )
        )
        at_s += _gap(rng, rate, arrivals, burstiness)
    meta = {"source": "synthetic", "seed": seed, "rate": rate, "arrivals": arrivals}
    return Trace(
        requests=tuple(requests), block_size=block_size, source_format="synthetic", meta=meta
    )


def _gap(rng: random.Random, rate: float, arrivals: Arrivals, burstiness: float) -> float:
    if arrivals == "constant":
        return 1.0 / rate
    if arrivals == "gamma":
        return rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
    return rng.expovariate(rate)


class _Blocks:
    """Hands out block ids: one run of ids per group, then fresh ones."""

    def __init__(self, parts: Sequence[Part], block_size: int) -> None:
        self._size = block_size
        self._next = 0
        self._prefixes = [
            [self._fresh(part.shared_tokens // block_size) for _ in range(part.groups)]
            for part in parts
        ]

    def of(self, part: int, input_tokens: int, rng: random.Random) -> tuple[int, ...]:
        """The ids of a prompt; a prompt shorter than its shared prefix is a part of it."""
        groups = self._prefixes[part]
        popularity = [1 / (k + 1) for k in range(len(groups))]
        shared = rng.choices(groups, popularity)[0] if groups else ()
        # Only whole blocks are shared, so that the last one of a prompt is its own.
        shared = shared[: (input_tokens - 1) // self._size]
        return shared + self._fresh(-(-input_tokens // self._size) - len(shared))

    def _fresh(self, count: int) -> tuple[int, ...]:
        ids = tuple(range(self._next, self._next + count))
        self._next += count
        return ids
