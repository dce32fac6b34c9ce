"""How much a launch is worth: expected improvement times the chance that it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from autotune.search.targets import Limits, Target
from autotune.spec.units import format_duration
from autotune.spec.vocabulary import METRICS

Array = np.ndarray[Any, Any]

TIE = 1e-5
"""A knob that stays as it is today is worth so much of the log of the first objective."""
FORESEEN = 0.3
LAST = 1e-9
"""A launch that serves with a smaller chance than the first is worth so much of its gain: it comes
when nothing else is left."""
DRAWS = 64
"""Draws per candidate where several objectives are weighed against each other."""
SURE_SHARE = 0.25
"""Without anything feasible so far, a launch has to beat what so large a share would reach."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A target at some candidates: mean and variance of the quantity, and of a measurement."""

    mean: Array
    variance: Array
    noise: Array


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The launch with the best value that keeps the limits: what is believed of its first objective
    and what was measured.
    """

    mean: float
    measured: float


@dataclass(frozen=True, slots=True)
class Appraisal:
    """Candidates in the order given. `gain`: expected improvement of the first objective's log;
    `holds`: chance that all limits hold; `serves`: chance that the launch does. `score`: their
    product.
    """

    beliefs: Mapping[str, Belief]
    gain: Array
    holds: Array
    serves: Array
    score: Array
    incumbent: Incumbent | None

    def best(self, changes: Array) -> int:
        """The most valuable candidate; of equals the one with the fewest changes."""
        return int(np.argmax(self.score - TIE * self.score.max(initial=0.0) * changes))

    def words(self, targets: Sequence[Target], limits: Limits) -> str:
        """Why the first candidate is launched."""
        target = targets[0]
        belief = self.beliefs[target.name]
        mean, spread = float(belief.mean[0]), float(np.sqrt(belief.variance[0]))
        value = target.value(mean, None)
        metric = METRICS[target.name.split()[-1]]
        text = format_duration(value) if metric.unit == "s" else f"{value:.4g}"
        parts = [f"{metric.name} {text} expected, to {np.expm1(spread):.0%}"]
        if self.incumbent is not None and len([t for t in targets if t.objective]) == 1:
            better = (
                np.expm1(self.incumbent.mean - mean)
                if target.sign < 0
                else -np.expm1(mean - self.incumbent.mean)
            )
            side = "better" if better >= 0 else "worse"
            parts.append(f"{abs(better):.0%} {side} than the best so far")
        if float(self.holds[0]) < 0.995:
            parts.append(f"limits hold with a chance of {float(self.holds[0]):.0%}")
        if float(self.serves[0]) < 0.9:
            parts.append(f"serves with a chance of {float(self.serves[0]):.0%}")
        return "; ".join(parts)


def appraise(
    targets: Sequence[Target],
    beliefs: Mapping[str, Belief],
    tried: Mapping[str, Belief],
    serves: Array,
    *,
    incumbent: Incumbent | None,
    seed: int,
) -> Appraisal:
    """Judge candidates. `beliefs` of them, `tried`: of those that were launched and served;
    `serves`: the chance that a launch serves. `seed` of the weights of several objectives.
    `incumbent`: the best so far, None without any.
    """
    objectives = [t for t in targets if t.objective]
    limits = [t for t in targets if not t.objective and t.name in beliefs]
    holds = _holds(limits, beliefs, len(serves))
    kept = _holds(limits, tried, None) if tried else np.zeros(0)
    if len(objectives) == 1:
        gain = _improvement(beliefs[objectives[0].name], holds, incumbent)
    else:
        gain = _weighed(objectives, beliefs, tried, kept, seed)
    score = gain * holds * serves * np.where(serves < FORESEEN, LAST, 1.0)
    if not score.max(initial=0.0) > 0:
        score = holds * serves * 1e-12
    return Appraisal(beliefs, gain, holds, serves, score, incumbent)


def _holds(limits: Sequence[Target], beliefs: Mapping[str, Belief], count: int | None) -> Array:
    """The chance that all limits hold."""
    if count is None:
        count = len(next(iter(beliefs.values())).mean)
    chance = np.ones(count)
    for limit in limits:
        belief = beliefs[limit.name]
        # Near the limit the measurement decides as much as the truth
        spread = np.sqrt(belief.variance + belief.noise / 2)
        chance = chance * ndtr(-belief.mean / spread)
    return chance


def _improvement(belief: Belief, holds: Array, incumbent: Incumbent | None) -> Array:
    """By how much the truth behind the best *measured* value is expected to fall: one that is no
    better may be measured better by luck, and would then take the place of the best.

    For a belief N(m, s^2), noise n, the incumbent's belief i and measured value v this is
    (i - m) F(z) + s^2 / sqrt(s^2 + n^2) f(z), z = (v - m) / sqrt(s^2 + n^2). Without an incumbent
    it is the usual expected improvement over what is easily reached.
    """
    variance, noise = belief.variance, belief.noise
    if incumbent is None:
        sure = belief.mean[holds >= np.quantile(holds, 1 - SURE_SHARE)]
        easy = float(np.max(sure)) + 0.05
        incumbent, noise = Incumbent(easy, easy), np.zeros_like(variance)
    spread = np.sqrt(variance + noise)
    better = (incumbent.measured - belief.mean) / spread
    density = np.exp(-0.5 * better**2) / np.sqrt(2 * np.pi)
    gain = (incumbent.mean - belief.mean) * ndtr(better) + variance / spread * density
    found: Array = np.maximum(gain, 0.0)
    return found


def _weighed(
    objectives: Sequence[Target],
    beliefs: Mapping[str, Belief],
    tried: Mapping[str, Belief],
    kept: Array,
    seed: int,
) -> Array:
    """Expected improvement of the largest weighted distance to the best corner, under weights drawn
    anew for each launch (ParEGO: Knowles 2006), by draws from the beliefs.
    """
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(len(objectives)))
    good = kept >= 0.5
    names = [target.name for target in objectives]
    corner = [
        min([float(beliefs[n].mean.min()), *([float(tried[n].mean.min())] if tried else [])])
        for n in names
    ]

    def cost(values: Sequence[Array]) -> Array:
        parts = np.array([w * (v - c) for w, v, c in zip(weights, values, corner, strict=True)])
        total: Array = parts.max(axis=0) + 0.05 * parts.sum(axis=0)
        return total

    usual = cost([beliefs[n].mean for n in names])
    best = float(usual.max())
    if good.any():
        best = float(cost([tried[n].mean[good] for n in names]).min())
    draws = [
        beliefs[n].mean[None, :]
        + np.sqrt(beliefs[n].variance)[None, :] * rng.standard_normal((DRAWS, len(usual)))
        for n in names
    ]
    gain: Array = np.maximum(best - cost(draws), 0.0).mean(axis=0)
    return gain
