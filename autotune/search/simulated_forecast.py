"""Forecasts from the fast simulator, calibrated on probes, the baseline's requests and launches.

An exact prediction takes four simulations: as calibrated, and with prefill, decoding and the fixed
costs of prefill each a little quicker. These three slopes carry the calibration's doubt to every
metric, and say how steeply a metric answers to the engine's speed. A rough one takes a simulation
that many candidates share and moves along the slopes of a candidate that behaves alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.canonical import Json
from autotune.search.forecast import Part, Prediction
from autotune.search.shared_doubt import DIRECTIONS, SharedDoubt
from autotune.search.simulated_metrics import ANSWERS, percentile_samples, predictable, whole_of
from autotune.search.simulated_runs import Runs
from autotune.simulator.calibration import (
    NAMES,
    Fit,
    Sight,
    Trait,
    calibrate,
)
from autotune.simulator.fast import run
from autotune.simulator.load import Limits, Load
from autotune.simulator.understanding import Understanding, View
from autotune.space.candidate import Candidate
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import METRICS, MetricName

MOST_SIGHTS = 8
"""So many launches at most are calibrated on, beside the first; later ones teach residuals only."""
SLOPE = -0.05
"""How much quicker a part of the engine is made to see what it does: what matters is how far a
candidate may be better than it looks."""
SKETCHED = 120
"""So many simulations at most are made for the sketches of one round."""
KV_STEP = 0.1
"""Sizes of the KV cache within this (as logs) are one."""
WEAK = 0.12
"""A trait whose factors lie within this (as logs) is followed along slopes."""
FARTHEST = 1.5
"""Nothing is moved further than this along slopes, as a log."""
SettingsOf = Callable[[Candidate], Mapping[str, Json]]
"""All flags that a candidate's launch sets, fixed ones included."""
Slopes = Mapping[str, Mapping[str, float]]
"""Metric key -> direction -> by how many percent it moves per percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be predicted. `reference`: the baseline's metrics by key, for relative limits."""

    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]
    reference: Mapping[str, float | None] = field(default_factory=dict)

    def metrics(self) -> list[MetricName]:
        """Every metric that is optimised, limited, or answered by a launch; each once."""
        named = [
            *(o.metric for o in self.objectives),
            *(c.metric for c in self.constraints),
            *(METRICS[name] for name in ANSWERS),
        ]
        return [m for m in dict.fromkeys(named) if m.searched or predictable(m)]


@dataclass(frozen=True, slots=True)
class _Found:
    """Metrics as simulated under one fit, and their slopes where these were simulated too."""

    values: Mapping[str, float]
    slopes: Slopes | None
    fit: Fit


class _Alike:
    """Lends slopes of exact predictions to rough ones that behave alike."""

    def __init__(self, exact: Sequence[_Found]) -> None:
        self._exact = exact
        self._keys = tuple(dict.fromkeys(key for found in exact for key in found.values))
        self._logs = np.array([self._row(found) for found in exact])
        self._lent: dict[int, Slopes] = {}

    def slopes(self, found: _Found) -> Slopes:
        """The slopes of the exact prediction whose metrics are nearest."""
        if id(found) not in self._lent:
            self._lent[id(found)] = self._nearest(found)
        return self._lent[id(found)]

    def _nearest(self, found: _Found) -> Slopes:
        if not self._exact:
            return {key: {"prefill": 0.5, "decode": 0.5} for key in found.values}
        far = np.nansum((self._logs - self._row(found)) ** 2, axis=1)
        slopes = self._exact[int(np.argmin(far))].slopes
        assert slopes is not None
        return slopes

    def _row(self, found: _Found) -> np.ndarray[Any, Any]:
        values = (found.values.get(key, 0.0) for key in self._keys)
        return np.array([math.log(value) if value > 0 else math.nan for value in values])


class SimulatedForecast:
    """A `Forecast`. `load_at(multiplier)` gives the study's traffic at a multiple of its rate;
    `sights` hold the probes and the baseline's requests.
    """

    def __init__(
        self,
        load_at: Callable[[float], Load],
        understanding: Understanding,
        settings_of: SettingsOf,
        wanted: Wanted,
        sights: Sequence[Sight],
        *,
        kv_tokens: Callable[[Candidate], int | None] = lambda candidate: None,
    ) -> None:
        """`kv_tokens`: what the KV cache holds, None where nobody knows. Raises ValueError where
        `sights` hold no sample.
        """
        self._load_at = load_at
        self._understanding = understanding
        self._settings_of = settings_of
        self._kv_tokens = kv_tokens
        self._runs = Runs(load_at, wanted.metrics(), wanted.constraints, wanted.reference)
        aims: list[Objective | Constraint] = [*wanted.objectives, *wanted.constraints]
        self._asked = tuple(dict.fromkeys(aim.metric.key for aim in aims))
        self._first = tuple(sights)
        self._later: list[Sight] = []
        self._learned = 0
        jobs = load_at(1.0).jobs
        self._prompt = sum(job.prompt for job in jobs) / len(jobs)
        self._calibrated(calibrate(self._first))
        self._views: dict[str, View] = {}
        self._exact: dict[tuple[Any, ...], _Found] = {}
        self._shared: dict[tuple[Any, ...], dict[Limits, _Found]] = {}
        self._left = SKETCHED
        self._gave_way: str | None = None

    def understands(self, knob: str) -> bool:
        return self._understanding.understands(knob)

    def predict(self, candidate: Candidate) -> Prediction | None:
        view = self._view(candidate)
        limits, strong = self._kin(view)
        key = _key(limits, strong)
        known = self._exact.get(key)
        if known is None or known.fit is not self.fit:
            known = self._exact[key] = self._simulated(limits, strong, known)
        assert known.slopes is not None
        values = self._moved(known, known.slopes, strong, view.traits)
        return self._prediction(view, values, known.slopes)

    def sketch(self, candidates: Sequence[Candidate]) -> list[Prediction | None]:
        self._left = SKETCHED
        alike = _Alike(list(self._exact.values()))
        return [self._sketched(self._view(candidate), alike) for candidate in candidates]

    def _sketched(self, view: View, alike: _Alike) -> Prediction | None:
        """`alike` lends slopes in this round."""
        limits, strong = self._kin(view)
        known = self._exact.get(_key(limits, strong))
        if known is not None:
            assert known.slopes is not None
            slopes = known.slopes
        else:
            known = self._shared_with(limits, strong)
            slopes = alike.slopes(known)
        return self._prediction(view, self._moved(known, slopes, strong, view.traits), slopes)

    def _kin(self, view: View) -> tuple[Limits, tuple[Trait, ...]]:
        """What a candidate is simulated by, with all that differ from it in weak traits only: these
        are followed along slopes.
        """
        return _usual(view.limits), tuple(trait for trait in view.traits if self._strong(trait))

    def _prediction(
        self, view: View, values: Mapping[str, float], slopes: Slopes
    ) -> Prediction | None:
        if not values:
            return None
        asked = [key for key in self._asked if key in values]
        return Prediction(
            metrics=values,
            pulls={key: self._doubt.pulls(view.traits, slopes.get(key, {})) for key in asked},
            steepness={key: abs(sum(slopes.get(key, {}).values())) for key in values},
        )

    def learn(
        self,
        candidate: Candidate,
        metrics: Mapping[str, float | None],
        part: Part | None = None,
        probes: Sequence[Sight] = (),
    ) -> Mapping[str, float]:
        """See `Forecast.learn`; `probes` of the same launch."""
        self._learned += 1
        self._first = (*self._first, *probes)
        load = self._load_at(metrics.get(METRICS["capacity"].key) or 1.0)
        view = self._view(candidate)
        if len(self._later) < MOST_SIGHTS:
            samples = percentile_samples(load, metrics, self.predict(candidate), part)
            if samples:
                sight = Sight(load=load, limits=view.limits, traits=view.traits, samples=samples)
                self._later.append(sight)
                self._calibrated(calibrate([*self._first, *self._later], start=self.fit))
                self._runs.forget()
        if part is None:
            return {}
        times = run(load, view.limits, self.fit.pace(view.traits))
        return whole_of(part, metrics, self._asked, load, times)

    def give_way(self, why: str) -> None:
        self._gave_way = why

    def facts(self) -> Mapping[str, Json]:
        return {
            "coefficients": self.fit.seconds(),
            "spread": {
                name: math.sqrt(float(self.fit.covariance[i, i])) for i, name in enumerate(NAMES)
            },
            "traits": {
                name: {"prefill": math.exp(pre), "decode": math.exp(dec)}
                for name, (pre, dec) in self.fit.shifts.items()
            },
            "median_error": self.fit.off,
            "samples": sum(len(s.samples) for s in (*self._first, *self._later)),
            "launches_calibrated_on": 1 + len(self._later),
            "launches_learned": self._learned,
            "gave_way": self._gave_way,
        }

    def _calibrated(self, fit: Fit) -> None:
        self.fit = fit
        # The earlier fits are held, so that their identities stay theirs
        self._known_steps: dict[tuple[Any, ...], tuple[Fit, Mapping[str, float]]] = {}
        self._doubt = SharedDoubt(fit, self._prompt)

    # ---- predictions

    def _view(self, candidate: Candidate) -> View:
        known = self._views.get(candidate.key)
        if known is None:
            known = self._understanding.view(self._settings_of(candidate))
            self._views[candidate.key] = known
        # What is known of memory changes with every launch
        tokens = self._kv_tokens(candidate)
        if tokens is None:
            return known
        return replace(known, limits=replace(known.limits, kv_tokens=tokens))

    def _simulated(self, limits: Limits, strong: Sequence[Trait], before: _Found | None) -> _Found:
        """Values and slopes; `before`: what an earlier fit said of the same."""
        name = tuple(trait.name for trait in strong)
        near = None
        if before is not None:
            assert before.slopes is not None
            moved = self._moved(before, before.slopes, strong, strong)
            near = moved.get(METRICS["capacity"].key)
        values = self._runs.values(limits, self.fit.pace(strong), (name, None), near=near)
        slopes: dict[str, dict[str, float]] = {key: {} for key in values}
        for direction, names in DIRECTIONS.items():
            pace = self.fit.pace(strong, dict.fromkeys(names, SLOPE))
            there = self._runs.moved(limits, pace, (name, direction), values)
            for key, value in values.items():
                slopes[key][direction] = _slope(value, there.get(key))
        return _Found(values, slopes, self.fit)

    def _shared_with(self, limits: Limits, strong: Sequence[Trait]) -> _Found:
        """The simulation of these limits and strong traits; one of the nearest limits where no more
        are to be made.
        """
        names = tuple(trait.name for trait in strong)
        kin = self._shared.setdefault((names, _kind(limits)), {})
        found = kin.get(limits)
        if found is None and (self._left > 0 or not kin):
            self._left -= 1
            pace = self.fit.pace(strong)
            values = self._runs.values(limits, pace, (names, None), rough=True)
            found = kin[limits] = _Found(values, None, self.fit)
        return found or kin[min(kin, key=lambda other: _far(limits, other))]

    def _strong(self, trait: Trait) -> bool:
        shift = self.fit.shifts.get(trait.name, (0.0, 0.0))
        logs = [abs(math.log(factor)) for factor in trait.expected.values()]
        return max([*logs, abs(shift[0]), abs(shift[1])]) > WEAK

    def _steps(
        self, before: Fit, had: Sequence[Trait], has: Sequence[Trait]
    ) -> Mapping[str, float]:
        """How far the speeds are from those of an earlier fit and other traits; kept."""
        key = id(before), tuple(t.name for t in had), tuple(t.name for t in has)
        if key not in self._known_steps:
            steps = self._doubt.steps(before.logs_with(had), self.fit.logs_with(has))
            self._known_steps[key] = before, steps
        return self._known_steps[key][1]

    def _moved(
        self, old: _Found, slopes: Slopes, had: Sequence[Trait], has: Sequence[Trait]
    ) -> Mapping[str, float]:
        """What was simulated with other traits, or under an earlier fit, along slopes."""
        if old.fit is self.fit and tuple(had) == tuple(has):
            return old.values
        steps = self._steps(old.fit, had, has)
        values = {}
        for key, value in old.values.items():
            own = slopes.get(key, {})
            log = sum(own.get(name, 0.0) * step for name, step in steps.items())
            values[key] = value * math.exp(min(FARTHEST, max(-FARTHEST, log)))
        return values


def _key(limits: Limits, traits: Sequence[Trait]) -> tuple[Any, ...]:
    return limits, tuple(trait.name for trait in traits)


def _usual(limits: Limits) -> Limits:
    """Limits without what makes hardly a difference."""
    tokens = math.exp(round(math.log(limits.kv_tokens) / KV_STEP) * KV_STEP)
    return replace(limits, block_size=16, kv_tokens=int(tokens))


def _kind(limits: Limits) -> Limits:
    """What two limits must have in common for one to stand for the other."""
    return replace(limits, budget=0, seqs=0, threshold=0, kv_tokens=0)


def _far(one: Limits, other: Limits) -> float:
    """How different limits are, in doublings."""
    pairs = ((one.budget, other.budget), (one.seqs, other.seqs), (one.kv_tokens, other.kv_tokens))
    far = sum(abs(math.log2(a / b)) for a, b in pairs)
    return far + (one.threshold != other.threshold)


def _slope(value: float, moved: float | None) -> float:
    """By how many percent a metric moves per percent; a metric at 0 does not."""
    if moved is None or value <= 0 or moved <= 0:
        return 0.0
    return math.log(moved / value) / SLOPE
