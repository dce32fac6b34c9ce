"""Made-up traffic with the traits that matter to a server: arrivals, lengths, shared prefixes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.workload.trace import Request, Trace

Arrivals = Literal["poisson", "gamma", "constant", "recorded"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """When things come: `rate` per second, gaps exponential (`poisson`), gamma with shape
    `burstiness` (below 1: burstier than Poisson), `constant`, or the gaps of `recorded` arrivals
    (seconds from any origin, in order).

    Recorded arrivals keep their own rate unless `rate` is given; those beyond their end do not
    come. The first thing always comes at 0 s. Raises ValueError for what makes no traffic.
    """

    kind: Arrivals = "poisson"
    rate: float | None = None
    burstiness: float = 1.0
    recorded: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "recorded" and not self.recorded:
            raise ValueError("recorded arrivals need a recording")
        if self.kind != "recorded" and self.rate is None:
            raise ValueError("arrivals need a rate")
        if self.burstiness <= 0 or (self.rate is not None and self.rate <= 0):
            raise ValueError("rate and burstiness must be above 0")

    def times(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the start, without end unless recorded. Draws from `rng` only when the next
        time is asked for.
        """
        if self.kind == "recorded":
            yield from self._recorded()
            return
        at_s = 0.0
        while True:
            yield at_s
            at_s += self._gap(rng)

    def _recorded(self) -> Iterator[float]:
        first, span = self.recorded[0], self.recorded[-1] - self.recorded[0]
        speed = 1.0
        if self.rate is not None and span > 0:
            speed = self.rate * span / len(self.recorded)
        for at_s in self.recorded:
            yield (at_s - first) / speed

    def _gap(self, rng: random.Random) -> float:
        rate = self.rate or 1.0
        if self.kind == "constant":
            return 1.0 / rate
        if self.kind == "gamma":
            return rng.gammavariate(self.burstiness, 1.0 / (rate * self.burstiness))
        return rng.expovariate(rate)


def synthesize(
    parts: Sequence[Part],
    *,
    process: Process,
    duration_s: float,
    seed: int,
    block_size: int = 64,
) -> Trace:
    """A trace of the requests that come up to `duration_s`, the same for the same arguments.

    Raises ValueError for arguments that make no traffic.
    """
    if not parts or duration_s <= 0 or block_size < 1:
        raise ValueError("parts, duration_s and block_size must be above 0")
    rng = random.Random(seed)
    blocks = _Blocks(parts, block_size)
    requests: list[Request] = []
    for at_s in process.times(rng):
        if at_s > duration_s:
            break
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
    return Trace(requests=tuple(requests), block_size=block_size, source_format="synthetic")


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
