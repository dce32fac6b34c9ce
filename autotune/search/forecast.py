"""What a model says of candidates before they are launched: the protocol of forecasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune.canonical import Json
from autotune.space.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Expected metrics of one candidate. Doubts are of natural logs: 0.05 is about 5 %.

    `metrics`: metric key -> value in base units. `pulls`: metric key -> by how much its log moves
    if something that all candidates share (the speed of prefill, what a setting does) is off by one
    spread; equal names mean the same thing. `steepness`: metric key -> by how many percent it
    changes if the engine is one percent slower; above 1 near saturation.
    """

    metrics: Mapping[str, float]
    pulls: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    steepness: Mapping[str, float] = field(default_factory=dict)

    def doubt(self, key: str) -> float:
        """The spread of a metric's log, as far as it comes from what candidates share."""
        return math.sqrt(sum(pull**2 for pull in self.pulls.get(key, {}).values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """How much of a replay was run: up to `until_s` seconds after its start, by when `ended`
    requests had been answered.
    """

    until_s: float
    ended: int


class Forecast(Protocol):
    """A model of the engine under the study's traffic, calibrated on launches."""

    def predict(self, candidate: Candidate) -> Prediction | None:
        """What is expected of a candidate; None for one that the model cannot judge. Metrics that
        it does not know are left out.
        """
        ...

    def sketch(self, candidates: Sequence[Candidate]) -> list[Prediction | None]:
        """Rough predictions of many, in bounded time: the earlier in the sequence, the better."""
        ...

    def understands(self, knob: str) -> bool:
        """Whether the effect of a knob follows from the model; of others it is learned."""
        ...

    def learn(
        self, candidate: Candidate, metrics: Mapping[str, float | None], part: Part | None = None
    ) -> Mapping[str, float]:
        """Take over what a launch gave, metric key -> value in base units. `part`: its replay was
        ended early, and the metrics are those of the requests that had been answered.

        Returns what the whole replay would have given, as far as the part tells; {} for a whole.
        """
        ...

    def give_way(self, why: str) -> None:
        """The search does not follow this model any more: why, in words."""
        ...

    def facts(self) -> Mapping[str, Json]:
        """The state of the model, for files and the report: coefficients, errors, launches."""
        ...
