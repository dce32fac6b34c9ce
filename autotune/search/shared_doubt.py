"""What a calibration leaves open, as moves of three speeds that all candidates share.

The three are the time of a usual prompt, of a usual decode step, and the fixed cost of a prefill
step; their logs move with those of the coefficients by the shares that these have in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autotune.simulator.calibration import DECODE, NAMES, PREFILL, Fit, Trait

USUAL_BATCH = 8.0
"""Requests in a usual decode step, for the weights of its parts."""
DIRECTIONS: Mapping[str, tuple[str, ...]] = {
    "prefill": PREFILL,
    "decode": DECODE,
    "prefill step": ("f",),
}
"""The three speeds, and the coefficients that are moved to see what each does."""
SIDES = ("prefill", "decode")


class SharedDoubt:
    """The doubt of one fit. `prompt`: tokens of a usual prompt."""

    def __init__(self, fit: Fit, prompt: float) -> None:
        self._fit = fit
        k = fit.seconds()
        prefill = {"b": k["b"] * prompt, "c": k["c"] * prompt**2 / 2, "g": k["g"]}
        decode = {"a": k["a"], "m": k["m"], "d": k["d"] * USUAL_BATCH * prompt}
        rows = []
        for parts in (prefill, decode, {"f": 1.0}):
            total = sum(parts.values())
            rows.append([parts.get(name, 0.0) / total for name in NAMES])
        self._shares = np.array(rows)
        self._place = {name: 2 * i for i, name in enumerate(fit.shifts)}
        self._root = self._cholesky()
        self._known: dict[tuple[str, ...], tuple[list[str], Any]] = {}

    def steps(self, before: Sequence[float], now: Sequence[float]) -> dict[str, float]:
        """How far the three speeds are apart between two sets of logs of the coefficients."""
        by = self._shares @ (np.array(now) - np.array(before))
        return {name: float(step) for name, step in zip(DIRECTIONS, by, strict=True)}

    def pulls(self, traits: Sequence[Trait], slopes: Mapping[str, float]) -> dict[str, float]:
        """By how much a metric's log moves if something shared is off by one spread: the engine's
        pace together with the traits that launches have shown, and new traits each on its own.

        `slopes`: speed -> by how many percent the metric moves per percent.
        """
        names = tuple(trait.name for trait in traits)
        if names not in self._known:
            self._known[names] = self._matrix(traits)
        shared, matrix = self._known[names]
        along = np.array([slopes.get(name, 0.0) for name in DIRECTIONS]) @ matrix
        return dict(zip(shared, along.tolist(), strict=True))

    def _matrix(self, traits: Sequence[Trait]) -> tuple[list[str], Any]:
        """(names, pulls per unit of the three slopes)."""
        seen = np.zeros((len(DIRECTIONS), len(self._root)))
        seen[:, : len(DIRECTIONS)] = np.eye(len(DIRECTIONS))
        names, columns = [], []
        for trait in traits:
            for row, touched in enumerate(trait.scales):
                share = sum(self._shares[row][NAMES.index(name)] for name in touched)
                place = self._place.get(trait.name)
                if place is not None:
                    seen[row, len(DIRECTIONS) + place + row] = share
                else:
                    column = np.zeros(len(DIRECTIONS))
                    column[row] = share * trait.doubt
                    names.append(f"{trait.name} {SIDES[row]}")
                    columns.append(column)
        pace = seen @ self._root
        whole = np.column_stack([pace, *columns]) if columns else pace
        return [f"pace {j}" for j in range(pace.shape[1])] + names, whole

    def _cholesky(self) -> Any:
        """The root of the covariance of the three speeds and of the traits that were shown."""
        count = len(self._fit.covariance)
        turn = np.zeros((len(self._shares) + count - len(NAMES), count))
        turn[: len(self._shares), : len(NAMES)] = self._shares
        turn[len(self._shares) :, len(NAMES) :] = np.eye(count - len(NAMES))
        covariance = turn @ self._fit.covariance @ turn.T
        return np.linalg.cholesky(covariance + 1e-10 * np.eye(len(turn)))
