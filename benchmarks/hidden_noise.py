"""The noise of launches on hidden machines: 2 % of what each measures."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

NOISE = 0.02
"""Standard deviation of the logarithm of what a launch measures."""
SPEEDS = 12
LAUNCH_SHARE = 0.75
"""Share of the variance that is the launch's; the rest is each replay's own."""


class Blur:
    """The noise of one launch, drawn from `seed` (None: there is none), in factors.

    A launch that is measured at one rate: `next_replay` gives by how much all its requests wait
    longer for the first token, and by how much the time between their tokens is longer, so that
    what is measured has 2 % noise at every load. Half of the variance is common to the two, three
    quarters of it to all replays of the launch. A launch whose capacity is searched for: the whole
    engine is slower by `speed`, one of a dozen evenly likely values. `gain`: a true factor on both.
    """

    def __init__(self, seed: int | None, *, capacity: bool = False) -> None:
        self._rng = random.Random(seed)
        self._spread = 0.0 if seed is None or capacity else NOISE
        self.speed = self.gain = 1.0
        if seed is not None and capacity:
            # The quantiles of a dozen launches vary a little less than launches do
            quantile = (self._rng.randrange(SPEEDS) + 0.5) / SPEEDS
            self.speed = math.exp(NormalDist(0.0, 1.02 * NOISE).inv_cdf(quantile))
        self._launch = self._pair(LAUNCH_SHARE)

    def next_replay(self) -> tuple[float, float]:
        """The factors on the wait for the first token and on the time between tokens."""
        own = self._pair(1 - LAUNCH_SHARE)
        first, between = (math.exp(a + b) for a, b in zip(self._launch, own, strict=True))
        return self.gain * first, self.gain * between

    def _pair(self, share: float) -> tuple[float, float]:
        spread = self._spread * math.sqrt(share / 2)
        common, first, between = (self._rng.gauss(0.0, spread) for _ in range(3))
        return common + first, common + between
