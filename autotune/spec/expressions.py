"""Objectives and constraints as users write them: `minimize ttft_p95`, `tpot_p95 <= 1.1 x baseline`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.spec.vocabulary import MetricName


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What to make small or large. `text` is its canonical form (`minimize ttft_p95`)."""

    metric: MetricName
    direction: Literal["minimize", "maximize"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A limit on a metric.

    `value` is in the metric's base unit (seconds, shares), or a factor of the baseline's measured
    value when `relative`. `text` is the canonical form and the constraint's name in files.
    """

    metric: MetricName
    op: Literal["<=", ">="]
    value: float
    relative: bool
    text: str


def parse_objective(text: object) -> Objective:
    """Read an objective. Raises ValueError with the nearest known metric."""
    raise ValueError(text)


def parse_constraint(text: object) -> Constraint:
    """Read a constraint. Raises ValueError with the nearest known metric."""
    raise ValueError(text)
