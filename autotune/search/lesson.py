"""What a finished trial teaches a search method, in the method's own terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.measure.outcome import CANNOT_BEAT_BEST
from autotune.search.choices import Indices
from autotune.spec.expressions import Constraint, Objective

LAUNCH = "launch"
RULE = "rule"
"""Names of two constraints that every trial has beside the user's; the third is that its replay was
not ended because it is worse than the best."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A trial that says something of its settings.

    `values`: objective values in the user's order and directions, None where it has none.
    `violations`: one for each constraint, in a fixed order; above 0 it is violated.
    """

    indices: Indices
    values: tuple[float, ...] | None
    violations: Mapping[str, float]

    @property
    def violation(self) -> float:
        """The sum of what is violated; 0 for a trial that meets every limit."""
        return sum(v for v in self.violations.values() if v > 0)


class Goals:
    """Objectives and limits of a study: turns what trials gave into what methods take."""

    def __init__(self, objectives: Sequence[Objective], constraints: Sequence[Constraint]) -> None:
        self.objectives = tuple(objectives)
        self.directions = [objective.direction for objective in objectives]
        limits = (constraint.text for constraint in constraints)
        self.keys = (LAUNCH, RULE, CANNOT_BEAT_BEST, *limits)

    def values(self, values: Sequence[float | None]) -> tuple[float, ...] | None:
        """Objective values if all are there and finite, else None: no stand-in is ever stored."""
        finite = [float(v) for v in values if v is not None and math.isfinite(v)]
        complete = len(finite) == len(values) == len(self.objectives)
        return tuple(finite) if complete else None

    def costs(self, lesson: Lesson) -> tuple[float, ...] | None:
        """The values with their signs turned so that less is better."""
        if lesson.values is None:
            return None
        pairs = zip(lesson.values, self.directions, strict=True)
        return tuple(value if way == "minimize" else -value for value, way in pairs)

    def measured(self, violations: Mapping[str, float]) -> dict[str, float]:
        """All constraints of a trial with values, in their fixed order.

        Methods add violations up, so each is squeezed below 1: a candidate that served badly always
        ranks before one that did not start.
        """
        return {
            LAUNCH: 0.0,
            RULE: 0.0,
            CANNOT_BEAT_BEST: _squeezed(violations.get(CANNOT_BEAT_BEST, 0.0)),
            **{key: _squeezed(violations.get(key, math.inf)) for key in self.keys[3:]},
        }

    def infeasible(self, known: Mapping[str, float]) -> dict[str, float]:
        """All constraints of a trial without values: as far as it served, what is known of its
        limits and no more; all are violated if it did not.
        """
        if not known:
            return dict.fromkeys(self.keys, 1.0)
        return self.measured({**dict.fromkeys(self.keys, 0.0), **known})


def _squeezed(violation: float) -> float:
    """A violation with its order and sign kept, below 1: v / (1 + v) for positive v."""
    if violation <= 0:
        return violation
    return 1.0 if math.isinf(violation) else violation / (1 + violation)
