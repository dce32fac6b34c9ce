"""Simulated replays of a study's traffic, each made once: metrics under a pace and some limits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from autotune.measure.scoring import request_limits
from autotune.search.simulated_capacity import near_capacity, simulated_capacity
from autotune.search.simulated_metrics import simulated_value, worst_violation
from autotune.simulator.fast import run
from autotune.simulator.load import Limits, Load, Pace, Times
from autotune.spec.expressions import Constraint
from autotune.spec.vocabulary import MetricName

RISE = 0.04
"""How much faster arrivals are made to see how the violation of the limits answers to the rate."""


class Runs:
    """Keeps replays until `forget`. A pace goes by a name: equal names mean equal paces.

    `load_at(multiplier)`: the traffic. `reference`: metrics that relative limits refer to.
    """

    def __init__(
        self,
        load_at: Callable[[float], Load],
        metrics: Sequence[MetricName],
        constraints: Sequence[Constraint],
        reference: Mapping[str, float | None],
    ) -> None:
        self._load_at = load_at
        self._metrics = tuple(metrics)
        self._constraints = tuple(constraints)
        self._reference = reference
        self._bounds = request_limits(constraints)
        self._runs: dict[Hashable, list[tuple[Limits, Times]]] = {}
        self._near = 1.0

    def forget(self) -> None:
        """The paces have changed."""
        self._runs.clear()

    def values(
        self,
        limits: Limits,
        pace: Pace,
        name: Hashable,
        *,
        near: float | None = None,
        rough: bool = False,
    ) -> dict[str, float]:
        """The metrics by key that are defined; with a capacity among them, the others are those at
        that rate. `near`: about what the capacity is, where it is known. `rough`: with as few
        simulations as will do.
        """
        found: dict[str, float] = {}
        rate: float | None = 1.0
        for metric in self._metrics:
            if metric.searched:
                violation = partial(self._violation, limits, pace, name)
                if rough:
                    capacity, rate = near_capacity(violation, start=near or self._near)
                else:
                    capacity = rate = simulated_capacity(violation, start=near)
                    self._near = capacity or self._near
                if capacity is not None:
                    found[metric.key] = capacity
        return found | self._plain(limits, pace, name, rate or 1.0)

    def moved(
        self, limits: Limits, pace: Pace, name: Hashable, before: Mapping[str, float]
    ) -> dict[str, float]:
        """The metrics under a slightly other pace, given those `before`. Others are taken at the
        same rate; a capacity follows from how the violation moves with pace and rate.
        """
        searched = next((m for m in self._metrics if m.searched), None)
        rate = 1.0 if searched is None else before.get(searched.key, 1.0)
        found = self._plain(limits, pace, name, rate)
        if searched is not None and searched.key in before:
            here = self._violation(limits, pace, name, rate)
            there = self._violation(limits, pace, name, rate * (1 + RISE))
            if here is not None and there is not None and there > here:
                shift = -here / (there - here) * RISE
                found[searched.key] = rate * (1 + max(-0.5, min(0.5, shift)))
        return found

    def _plain(self, limits: Limits, pace: Pace, name: Hashable, rate: float) -> dict[str, float]:
        load, times = self._times(limits, pace, name, rate)
        values = {
            m.key: simulated_value(m, load, times, limits, self._bounds)
            for m in self._metrics
            if not m.searched
        }
        return {key: value for key, value in values.items() if value is not None}

    def _violation(self, limits: Limits, pace: Pace, name: Hashable, rate: float) -> float | None:
        load, times = self._times(limits, pace, name, rate)
        return worst_violation(
            self._constraints,
            self._reference,
            lambda metric: simulated_value(metric, load, times, limits, self._bounds),
        )

    def _times(self, limits: Limits, pace: Pace, name: Hashable, rate: float) -> tuple[Load, Times]:
        """A replay; one whose limits held nobody up stands for all with the same or more room."""
        load = self._load_at(rate)
        where = (name, rate, replace(limits, seqs=0, kv_tokens=0))
        runs = self._runs.setdefault(where, [])
        for known, times in runs:
            free = not (times.seats_blocked or times.memory_blocked)
            enough = limits.seqs >= times.most_seated and limits.kv_tokens >= times.most_tokens
            if known == limits or (free and enough):
                return load, times
        times = run(load, limits, pace)
        runs.append((limits, times))
        return load, times
