"""How a trial ends: a closed set. Only `Measured` has objective values.

Nothing is ever scored as 0, 1e9 or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A measurement seen with the user's eyes.

    `values`: objective text -> value in the metric's unit, in the user's direction. `violations`:
    constraint text -> normalised signed violation ((value - limit) / |limit|, sign so that <= 0
    holds); a limit that failures make unbounded has the share of failures that is too much.
    `limits`: constraint text -> resolved absolute limit.
    """

    values: Mapping[str, float]
    violations: Mapping[str, float]
    limits: Mapping[str, float]

    @property
    def feasible(self) -> bool:
        return all(violation <= 0 for violation in self.violations.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The server served, the measurement is valid or suspect."""

    measurement: Measurement
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """These parameters cannot work here: a violated constraint, never launched again.

    `measurement`: the numbers, where it served but failed so many requests that it has no value.
    """

    diagnosis: Diagnosis
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasurable:
    """No verdict on the parameters: the client, the machine or the metric was at fault."""

    reason: str
    message: str
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Ended by the user or a kill; says nothing about the parameters (`interrupted` in files)."""

    message: str = "interrupted"


Outcome = Measured | Infeasible | Unmeasurable | Stopped
