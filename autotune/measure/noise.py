"""How much measurements of one and the same setting differ without a cause. Pure.

Values of launches that were measured several times are a one-way layout with random effects: what
differs within a launch (arrivals meeting the scheduler, clocks) and what differs between launches
(compilation, placement, memory) add up to the variance of a single measurement (Searle, Casella,
McCulloch, Variance Components, 1992, ch. 3: the analysis-of-variance estimators, negative ones set
to 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.canonical import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Relative standard deviations (of the logs) of one metric. `within`, `between`: None where
    nothing was measured that could tell; `spread`: of a single measurement in a launch of its own,
    at least `within`.
    """

    launches: tuple[tuple[float, ...], ...]
    within: float | None
    between: float | None
    spread: float

    @property
    def tie(self) -> float:
        """Two single measurements that differ by no more than this (difference of the logs) are
        equal: it is the standard deviation of the difference of two. Less than that is confirmed by
        no affordable number of pairs.
        """
        return math.sqrt(2) * self.spread

    @property
    def centre(self) -> float:
        """The geometric mean of all measurements."""
        logs = [math.log(value) for values in self.launches for value in values]
        return math.exp(math.fsum(logs) / len(logs))

    @property
    def tie_with_centre(self) -> float:
        """As `tie`, of a single measurement with `centre`, which is surer than one value."""
        return self.spread * math.sqrt(1 + 1 / sum(map(len, self.launches)))

    def to_json(self) -> dict[str, Json]:
        return {
            "launches": [list(values) for values in self.launches],
            "within": self.within,
            "between": self.between,
            "spread": self.spread,
            "tie": self.tie,
        }


def noise_of_launches(launches: Sequence[Sequence[float]]) -> Noise | None:
    """What launches of one setting tell, each with its values in order; None with fewer than two
    values in all, or where a value has no logarithm.
    """
    known = tuple(tuple(values) for values in launches if values)
    count = sum(map(len, known))
    if count < 2 or any(value <= 0 for values in known for value in values):
        return None
    logs = [[math.log(value) for value in values] for values in known]
    means = [math.fsum(values) / len(values) for values in logs]
    groups = len(logs)
    inside = math.fsum((v - m) ** 2 for values, m in zip(logs, means, strict=True) for v in values)
    within = inside / (count - groups) if count > groups else None
    if groups < 2:
        assert within is not None
        spread = math.sqrt(within)
        return Noise(launches=known, within=spread, between=None, spread=spread)
    grand = math.fsum(v for values in logs for v in values) / count
    outside = math.fsum(
        len(values) * (m - grand) ** 2 for values, m in zip(logs, means, strict=True)
    ) / (groups - 1)
    if within is None:
        return Noise(launches=known, within=None, between=None, spread=math.sqrt(outside))
    each = (count - sum(len(values) ** 2 for values in logs) / count) / (groups - 1)
    between = max(0.0, (outside - within) / each)
    return Noise(
        launches=known,
        within=math.sqrt(within),
        between=math.sqrt(between),
        spread=math.sqrt(within + between),
    )


def is_tie(value: float, other: float, tie: float) -> bool:
    """Whether two results differ by no more than the noise."""
    if value == other:
        return True
    return value > 0 and other > 0 and abs(math.log(value / other)) <= tie
