"""What is believed of every candidate: predictions, corrected by all that was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.search.acquisition import Belief, Incumbent
from autotune.search.candidate_pool import CandidatePool
from autotune.search.choices import Choices
from autotune.search.forecast import Forecast, Prediction
from autotune.search.residuals import MOST_KNOWN, Grid, Residuals, Rows, pull_matrix
from autotune.search.targets import Limits, Seen, Target

BEHAVIOUR = ("ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s", "capacity")
"""Predicted metrics by which candidates are alike, beside those of the targets."""
Array = np.ndarray[Any, Any]
_NOTHING = Prediction(metrics={})


@dataclass(frozen=True, slots=True)
class _Process:
    """The residuals of one target: `pulls`: the names of their columns; `centre`: what stands for a
    prediction where there is none.
    """

    residuals: Residuals
    pulls: Sequence[str]
    centre: float


class GuidedModel:
    """Predictions for the places of a pool and the residuals of launches."""

    def __init__(
        self, targets: Sequence[Target], limits: Limits, pool: CandidatePool, choices: Choices,
        forecast: Forecast,
    ) -> None:  # fmt: skip
        self._targets = tuple(targets)
        self._limits = limits
        self._pool = pool
        self._forecast = forecast
        self._names = tuple(sorted({name for i in pool.indices for name in i}))
        self._grid = Grid(
            counts=tuple(choices.count(name) for name in self._names),
            ordered=tuple(choices.is_ordered(name) for name in self._names),
            understood=tuple(forecast.understands(name) for name in self._names),
        )
        self._keys = tuple(dict.fromkeys([*(t.key for t in targets), *BEHAVIOUR]))
        self._seen: list[tuple[int, Mapping[str, Seen]]] = []
        self._predictions: dict[int, Prediction] = {}
        self._exact: set[int] = set()
        self._processes: dict[tuple[str, tuple[int, ...]], _Process] = {}

    @property
    def unknown(self) -> frozenset[str]:
        """The knobs whose effects are learned from launches only."""
        known = self._grid.understood
        return frozenset(n for n, yes in zip(self._names, known, strict=True) if not yes)

    @property
    def measured(self) -> frozenset[int]:
        """The places whose launches gave a value of the first objective."""
        name = self._targets[0].name
        return frozenset(p for p, s in self._seen if name in s and not s[name].extra)

    def incumbent(self) -> Incumbent | None:
        """The best measured value of the first objective among launches that kept the limits."""
        name = self._targets[0].name
        limits = [target.name for target in self._targets if not target.objective]
        kept = [
            (seen[name].value, place)
            for place, seen in self._seen
            if name in seen
            and not seen[name].extra
            and all(seen[limit].value <= 0 for limit in limits if limit in seen)
        ]
        if not kept:
            return None
        value, place = min(kept)
        return Incumbent(float(self.beliefs([place])[name].mean[0]), value)

    def learn(self, place: int, seen: Mapping[str, Seen]) -> None:
        """Take over what a launch of the candidate at `place` said of the targets."""
        self._processes.clear()
        if seen:
            self._seen.append((place, seen))

    def believed(self) -> dict[int, float]:
        """Place -> the objective's value in base units that a measured launch is believed to have;
        {} with several objectives.
        """
        first, *others = self._targets
        places = sorted(self.measured)
        if not places or any(other.objective for other in others):
            return {}
        mean = self.beliefs(places)[first.name].mean
        return {p: first.value(float(m), None) for p, m in zip(places, mean, strict=True)}

    def outdated(self) -> None:
        """The forecast has learned: what it said before is rough now."""
        self._predictions.clear()
        self._exact.clear()
        self._processes.clear()

    def prediction(self, place: int) -> Prediction:
        """The forecast's own word on a candidate, without residuals."""
        if place not in self._exact:
            found = self._forecast.predict(self._pool.candidates[place])
            self._predictions[place] = found or _NOTHING
            self._exact.add(place)
        return self._predictions[place]

    def sketch(self, places: Sequence[int]) -> None:
        """Look at these candidates roughly, the first best; what is shared with others that were
        predicted since is taken over.
        """
        new = [place for place in places if place not in self._exact]
        found = self._forecast.sketch([self._pool.candidates[place] for place in new])
        self._predictions |= {p: f or _NOTHING for p, f in zip(new, found, strict=True)}

    def sharpen(self, places: Sequence[int]) -> None:
        """Predict these exactly."""
        for place in places:
            self.prediction(place)

    def beliefs(self, places: Sequence[int], *, pending: Sequence[int] = ()) -> dict[str, Belief]:
        """Every target at these candidates, which were looked at before. `pending` launches are
        taken to end as expected.
        """
        for place in (*(place for place, _ in self._seen), *pending):
            self.prediction(place)
        for place in places:
            if place not in self._predictions:
                self.prediction(place)
        likeness = self._likeness(places)
        found = {}
        for target in self._targets:
            if target.rare:
                continue
            process = self._process(target, pending)
            rows = self._rows(target, places, process.pulls, likeness)
            prior = self._prior(target, places, process.centre)
            mean, variance = process.residuals.at(rows)
            found[target.name] = Belief(mean + prior, variance, process.residuals.noise(rows))
        return found

    def expected(self, place: int, beliefs: Mapping[str, Belief]) -> dict[str, float]:
        """Metric key -> expected value in base units, for one candidate at row 0 of `beliefs`:
        those of the targets with what launches taught, others as predicted.
        """
        found = dict(self.prediction(place).metrics)
        for target in self._targets:
            belief = beliefs.get(target.name)
            limit = None if target.objective else self._limits[target.name]
            if belief is not None and (target.objective or limit is not None):
                found[target.key] = target.value(float(belief.mean[0]), limit)
        return found

    def _process(self, target: Target, pending: Sequence[int]) -> _Process:
        """What launches taught of a target; kept until something is learned."""
        key = target.name, tuple(pending)
        if key not in self._processes:
            self._processes[key] = self._learned(target, pending)
        return self._processes[key]

    def _learned(self, target: Target, pending: Sequence[int]) -> _Process:
        known = [(p, s[target.name]) for p, s in self._seen if target.name in s][-MOST_KNOWN:]
        centre = self._centre(target, known)
        places = [*(place for place, _ in known), *pending]
        pulls = sorted({n for p in places for n in self._predictions[p].pulls.get(target.key, ())})
        rows = self._rows(target, places, pulls, self._likeness(places))
        count = len(known)
        values = np.array([s.value for _, s in known])
        values = values - self._prior(target, places[:count], centre)
        extra = np.array([s.extra for _, s in known])
        residuals = Residuals(self._grid, rows.take(slice(0, count)), values, extra)
        if pending:
            expected, _ = residuals.at(rows.take(slice(count, None)))
            residuals = Residuals(
                self._grid,
                rows,
                np.concatenate([values, expected]),
                np.concatenate([extra, np.zeros(len(pending))]),
            )
        return _Process(residuals, pulls, centre)

    def _centre(self, target: Target, known: Sequence[tuple[int, Seen]]) -> float:
        """What stands for a prediction where there is none: the mean of what was measured."""
        values = [seen.value for _, seen in known if not seen.extra]
        return math.fsum(values) / len(values) if values else 0.0

    def _prior(self, target: Target, places: Sequence[int], centre: float) -> Array:
        """The forecast's word on a target; `centre` where it has none."""
        limit = None if target.objective else self._limits[target.name]
        blind = not target.objective and limit is None

        def one(place: int) -> float:
            value = self._predictions[place].metrics.get(target.key)
            return centre if value is None or blind else target.log(value, limit)

        return np.array([one(place) for place in places])

    def _rows(
        self,
        target: Target,
        places: Sequence[int],
        pulls: Sequence[str],
        likeness: tuple[Array, Array],
    ) -> Rows:
        """`pulls`: what columns stand for; `likeness`: what is the same for every target."""
        found = [self._predictions[place] for place in places]
        own = [prediction.pulls.get(target.key, {}) for prediction in found]
        known = frozenset(pulls)
        alone = [sum(v * v for name, v in each.items() if name not in known) for each in own]
        return Rows(
            places=likeness[0],
            behaviour=likeness[1],
            pulls=pull_matrix(own, pulls),
            steep=np.array([_steep(p.steepness.get(target.key, 1.0)) for p in found]),
            predicted=np.array([target.key in p.metrics for p in found], dtype=bool),
            alone=np.array(alone, dtype=float),
        )

    def _likeness(self, places: Sequence[int]) -> tuple[Array, Array]:
        """The values of all knobs (0: not active), and the logs of the predicted behaviour."""
        indices = [self._pool.indices[place] for place in places]
        found = [self._predictions[place].metrics for place in places]
        values = [[own.get(name, -1) + 1 for name in self._names] for own in indices]
        logs = [[_log(metrics.get(key)) for key in self._keys] for metrics in found]
        return (
            np.array(values, dtype=int).reshape(len(places), len(self._names)),
            np.array(logs, dtype=float).reshape(len(places), len(self._keys)),
        )


def _log(value: float | None) -> float:
    return 0.0 if value is None or value <= 0 else math.log(value)


def _steep(value: Any) -> float:
    return min(4.0, max(0.5, float(value)))
