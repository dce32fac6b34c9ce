"""Whether predictions deserve to lead the search: they are compared with every launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

LATEST = 6
"""So many launches are looked at."""
MOST_OFF = 3.5
"""Root mean square of the errors over their claimed spreads, beyond which the claims are void."""
LEAST_OFF = 0.10
"""Errors below this (as a log) are never a reason to distrust."""
LEAST_SPREAD = 0.15
"""Measured values must differ by so much (spread of the log) before their order says anything."""


@dataclass(slots=True)
class Trust:
    """Keeps (predicted, claimed spread, measured) of the launches that were chosen by prediction;
    all are logs.
    """

    _kept: list[tuple[float, float, float]] = field(default_factory=list)

    def learn(self, predicted: float, spread: float, measured: float) -> None:
        """Take over one launch."""
        self._kept.append((predicted, spread, measured))

    @property
    def launches(self) -> int:
        return len(self._kept)

    def lost(self) -> str | None:
        """Why the predictions are not to be followed any more, in words; None while they are."""
        latest = self._kept[-LATEST:]
        if len(latest) < LATEST:
            return None
        errors = [measured - predicted for predicted, _, measured in latest]
        size = math.sqrt(math.fsum(e * e for e in errors) / len(errors))
        over = [(m - p) / s for p, s, m in latest]
        off = math.sqrt(math.fsum(o * o for o in over) / len(over))
        if off > MOST_OFF and size > LEAST_OFF:
            return (
                f"the last {LATEST} launches were off by {math.expm1(size):.0%}, "
                f"{off:.1f} times what was claimed"
            )
        order = rank_correlation([p for p, _, _ in latest], [m for _, _, m in latest])
        if _spread([m for _, _, m in latest]) > LEAST_SPREAD and order < 0 and size > LEAST_OFF:
            return f"the last {LATEST} launches came in another order than predicted"
        return None


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-a, -1 to 1; 0 for fewer than two values."""
    pairs = [
        _sign(one[i] - one[j]) * _sign(other[i] - other[j])
        for i in range(len(one))
        for j in range(i)
    ]
    return sum(pairs) / len(pairs) if pairs else 0.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _spread(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
