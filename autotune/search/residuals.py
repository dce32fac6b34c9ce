"""What predictions leave open, as a Gaussian process over candidates: one per predicted quantity.

The residual is the log of measured over predicted. Its prior covariance is a sum of
- what all candidates share (`Prediction.pulls`: the engine's speed, the effect of a setting);
- the error of the model's form, alike for candidates that are predicted to behave alike, so that
  settings without any predicted difference are one to it;
- an effect of each value of each knob that the model does not understand;
- a share for combinations.
All but the first grow with the steepness of the quantity at the candidate. The scale of it all is
chosen by marginal likelihood (Rasmussen and Williams, Gaussian Processes, 2006, chapter 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

OFFSET = 0.02
FORM, FORM_LENGTH = 0.05, 0.35
NEAR, NEAR_LENGTH = 0.025, 0.12
"""Spreads of the error of the form per unit of steepness, and how far apart (logs of predicted
metrics) candidates may be that share it: what is alike at large, and what only near twins share."""
UNKNOWN = 0.03
"""Spread of the effect of one value of a knob that the model does not understand, per unit of
steepness. Values of other knobs differ only as far as they are predicted to."""
COMBINED = 0.006
NOISE, NOISE_STEEP = 0.015, 0.005
UNPREDICTED = 0.3
"""Spread of a quantity that nothing predicts, over the whole space."""
REACH = 2.0
"""Steps of an ordered knob over which its effect is alike."""
SCALES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
SCALE_SPREAD = 0.5
MOST_KNOWN = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The knobs: how many values each has, whether they are ordered, and understood."""

    counts: tuple[int, ...]
    ordered: tuple[bool, ...]
    understood: tuple[bool, ...]

    def likeness(self, knob: int) -> Array:
        """How alike the effects of two values are, 0 to 1; place 0 is a knob that is not active."""
        count = self.counts[knob] + 1
        if not self.ordered[knob]:
            return np.eye(count)
        place = np.arange(count)
        table: Array = np.exp(-np.abs(place[:, None] - place[None, :]) / REACH)
        table[0, 1:] = table[1:, 0] = 0.0
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Candidates for one quantity. `places`: value of each knob, 0 where it is not active;
    `behaviour`: logs of predicted metrics; `pulls`, `steep`, and whether it is `predicted` at all.
    `alone`: variance of pulls that no column stands for, as no other candidate has them.
    """

    places: Array
    behaviour: Array
    pulls: Array
    steep: Array
    predicted: Array
    alone: Array | None = None

    def take(self, chosen: slice) -> Rows:
        """Some of the rows."""
        return Rows(
            places=self.places[chosen], behaviour=self.behaviour[chosen], pulls=self.pulls[chosen],
            steep=self.steep[chosen], predicted=self.predicted[chosen],
            alone=None if self.alone is None else self.alone[chosen],
        )  # fmt: skip


class Residuals:
    """The process of one quantity, given what was measured."""

    def __init__(self, grid: Grid, rows: Rows, values: Array, extra: Array | None = None) -> None:
        """`values`: residuals of `rows`. `extra`: further spread of single values (bounds)."""
        self._grid = grid
        self._tables = [grid.likeness(knob) for knob in range(len(grid.counts))]
        self._rows = rows
        self._values = values
        noise = NOISE**2 + (NOISE_STEEP * rows.steep) ** 2
        self._noise = noise if extra is None else noise + extra**2
        self.scale = 1.0
        self._solve()

    def at(self, rows: Rows) -> tuple[Array, Array]:
        """(mean, variance) of the residuals of other candidates, without noise."""
        prior = self.scale**2 * self._self(rows)
        if not len(self._values):
            return np.zeros(len(prior)), prior
        cross = self.scale**2 * self._covariance(rows, self._rows)
        mean = cross @ self._weights
        half = np.linalg.solve(self._root, cross.T)
        return mean, np.maximum(prior - np.sum(half**2, axis=0), 1e-10)

    def noise(self, rows: Rows) -> Array:
        """The variance of a measurement."""
        return NOISE**2 + (NOISE_STEEP * rows.steep) ** 2

    def _solve(self) -> None:
        if not len(self._values):
            return
        covariance = self._covariance(self._rows, self._rows)
        best = -np.inf
        for scale in SCALES:
            root = np.linalg.cholesky(scale**2 * covariance + np.diag(self._noise))
            half = np.linalg.solve(root, self._values)
            likelihood = -0.5 * half @ half - np.sum(np.log(np.diag(root)))
            likelihood -= 0.5 * (np.log(scale) / SCALE_SPREAD) ** 2
            if likelihood > best:
                best, self.scale, self._root = likelihood, scale, root
        half = np.linalg.solve(self._root, self._values)
        self._weights = np.linalg.solve(self._root.T, half)

    def _covariance(self, one: Rows, other: Rows) -> Array:
        steep = one.steep[:, None] * other.steep[None, :]
        distance = np.zeros_like(steep)
        for column in range(one.behaviour.shape[1]):
            step = one.behaviour[:, column][:, None] - other.behaviour[:, column][None, :]
            distance += step**2
        form = FORM**2 * np.exp(-0.5 * distance / FORM_LENGTH**2)
        form += NEAR**2 * np.exp(-np.sqrt(distance) / NEAR_LENGTH)
        effects = np.zeros_like(steep)
        together = np.ones_like(steep)
        for knob, table in enumerate(self._tables):
            alike = table[one.places[:, knob][:, None], other.places[:, knob][None, :]]
            known = self._grid.understood[knob]
            if not known:
                effects += UNKNOWN**2 * alike
            together *= 0.5 + 0.5 * alike if known else alike
        total = OFFSET**2 + one.pulls @ other.pulls.T
        total = total + steep * (form + effects + COMBINED**2 * together)
        blind = ~one.predicted[:, None] & ~other.predicted[None, :]
        share = sum(
            table[one.places[:, knob][:, None], other.places[:, knob][None, :]]
            for knob, table in enumerate(self._tables)
        ) / max(1, len(self._tables))  # fmt: skip
        found: Array = total + blind * UNPREDICTED**2 * (0.7 * share + 0.3 * together)
        return found

    def _self(self, rows: Rows) -> Array:
        effects = UNKNOWN**2 * sum(not known for known in self._grid.understood)
        total = OFFSET**2 + np.sum(rows.pulls**2, axis=1)
        total = total + (0.0 if rows.alone is None else rows.alone)
        total = total + rows.steep**2 * (FORM**2 + NEAR**2 + effects + COMBINED**2)
        found: Array = total + (~rows.predicted) * UNPREDICTED**2
        return found


def pull_matrix(pulls: Sequence[Mapping[str, float]], names: Sequence[str]) -> Array:
    """One row per candidate, one column per shared unknown."""
    place = {name: i for i, name in enumerate(names)}
    matrix = np.zeros((len(pulls), len(names)))
    for row, own in enumerate(pulls):
        for name, value in own.items():
            if name in place:
                matrix[row, place[name]] = value
    return matrix
