"""What a study asks for, as quantities that can be predicted and compared: logs to be made small.

An objective is the log of its value, with the sign that makes smaller better; a limit is the log of
the value over the limit, signed so that above 0 it is broken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.measure.outcome import CANNOT_BEAT_BEST, EarlyEnd, Infeasible, Measured, Outcome
from autotune.search.forecast import Prediction
from autotune.search.proposer import Known
from autotune.space.candidate import Candidate
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import CAPACITY_RESOLUTION

SMALLEST = 1e-9
"""Stands for 0 in logs."""
BEYOND, CUT_SHORT = 0.02, 0.04
"""Where nothing else is known: so far beyond what was seen lies the log of the final value of a
replay that was ended early, and its further spread."""
ESTIMATED = 0.04
"""Further spread of the log of a value that was estimated from a part of a replay."""
LOST_TO_BEST = 0.15
"""A launch that could not hold the best capacity holds about so much less, as a log."""
RARE = frozenset({"success_rate"})
"""Metrics whose limits are met or not, without a distance that says anything."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One observed quantity: its value, and further doubt of it."""

    value: float
    extra: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One objective or limit. `name`: its text; `key`: its metric's key; `sign`: what makes smaller
    better; `limit`: in base units, None for objectives and while it is not known.
    """

    name: str
    key: str
    sign: int
    objective: bool
    rare: bool = False
    searched: bool = False

    def log(self, value: float, limit: float | None) -> float:
        """The quantity of a value in base units."""
        log = math.log(max(value, SMALLEST))
        return self.sign * (log if limit is None else log - math.log(max(limit, SMALLEST)))

    def value(self, quantity: float, limit: float | None) -> float:
        """The value in base units behind a quantity."""
        return math.exp(self.sign * quantity) * (1.0 if limit is None else max(limit, SMALLEST))


def targets_of(
    objectives: Sequence[Objective], constraints: Sequence[Constraint]
) -> tuple[Target, ...]:
    """The objectives first, then the limits; a capacity is found where these hold, so that they are
    no targets beside it.
    """
    if any(o.metric.searched for o in objectives):
        constraints = ()
    found = [
        Target(
            name=o.text, key=o.metric.key, sign=1 if o.direction == "minimize" else -1,
            objective=True,
            searched=o.metric.searched,
        )
        for o in objectives
    ]  # fmt: skip
    found += [
        Target(
            name=c.text, key=c.metric.key, sign=1 if c.op == "<=" else -1, objective=False,
            rare=c.metric.name in RARE,
        )
        for c in constraints
    ]  # fmt: skip
    return tuple(found)


class Limits:
    """The absolute limits by constraint text, as far as they are known."""

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self._constraints = tuple(constraints)
        self._known = {c.text: c.value for c in constraints if not c.relative}

    def __getitem__(self, name: str) -> float | None:
        return self._known.get(name)

    def learn(self, limits: Mapping[str, float]) -> None:
        """Take over what a score says of limits that refer to the baseline."""
        self._known |= limits

    def guess(self, baseline: Prediction | None) -> None:
        """Where a limit refers to the baseline and nobody said what that is: as predicted."""
        for constraint in self._constraints:
            if baseline is not None and constraint.text not in self._known:
                value = baseline.metrics.get(constraint.metric.key)
                if value is not None:
                    self._known[constraint.text] = constraint.value * value


def seen_in(
    outcome: Outcome,
    targets: Sequence[Target],
    *,
    best: Mapping[str, float],
    whole: Mapping[str, float] | None = None,
) -> dict[str, Seen]:
    """What an outcome says of each target, by name. `best`: the best objective quantity so far.
    `whole`: the quantities that a replay which was ended early would have had, by name.
    """
    if isinstance(outcome, Measured):
        values = outcome.score.values
        found = {
            t.name: _objective(t, values[t.name], outcome.measurement.intervals.get(t.key))
            for t in targets
            if t.objective and values.get(t.name) is not None and math.isfinite(values[t.name])
        }
        return found | _violated(outcome.score.violations, targets)
    if not isinstance(outcome, Infeasible):
        return {}
    found = {} if outcome.score is None else _violated(outcome.score.violations, targets)
    if outcome.stopped is not None:
        found |= _cut_short(outcome.stopped, targets, whole or {})
    elif outcome.diagnosis.reason == CANNOT_BEAT_BEST:
        for target in targets:
            if target.objective and target.name in best:
                found[target.name] = Seen(best[target.name] + LOST_TO_BEST, 0.1)
    return found


def _objective(
    target: Target, value: float, interval: tuple[float | None, float | None] | None
) -> Seen:
    """An objective's quantity. Of a capacity it is known that it holds one rate and not another;
    where these are far apart (it was given up), the truth lies somewhere between.
    """
    if target.searched and interval is not None and interval[0] and interval[1]:
        low, high = target.log(interval[0], None), target.log(interval[1], None)
        if abs(high - low) > math.log1p(2 * CAPACITY_RESOLUTION):
            return Seen((low + high) / 2, abs(high - low) / math.sqrt(12))
    return Seen(target.log(value, None))


def seen_before(known: Known, targets: Sequence[Target]) -> dict[str, Seen]:
    """What an earlier trial says of each target, by name."""
    objectives = [target for target in targets if target.objective]
    found: dict[str, Seen] = {}
    if known.values is not None:
        found = {
            target.name: Seen(target.log(value, None))
            for target, value in zip(objectives, known.values, strict=False)
            if math.isfinite(value)
        }
    found |= _violated(known.violations, targets)
    return found if known.stopped is None else found | _cut_short(known.stopped, targets)


def known_of(candidate: Candidate, outcome: Outcome, targets: Sequence[Target]) -> Known:
    """A launch as a finished trial, for a search method that takes over."""
    if isinstance(outcome, Measured):
        values = [outcome.score.values.get(t.name) for t in targets if t.objective]
        whole = [float(value) for value in values if value is not None and math.isfinite(value)]
        return Known(
            candidate=candidate,
            values=whole if len(whole) == len(values) else None,
            violations=outcome.score.search_violations,
        )
    if isinstance(outcome, Infeasible) and served(outcome) is not None:
        return Known(
            candidate=candidate,
            values=None,
            violations=outcome.violations,
            diagnosis=outcome.diagnosis,
            stopped=outcome.stopped,
        )
    return Known(candidate=candidate, values=None, violations={})


def served(outcome: Outcome) -> bool | None:
    """Whether the launch served; None where nothing is known."""
    if isinstance(outcome, Measured):
        return True
    if not isinstance(outcome, Infeasible):
        return None
    if outcome.stopped is not None or outcome.diagnosis.reason == CANNOT_BEAT_BEST:
        return True
    return False if outcome.diagnosis.fault in ("candidate", "study") else None


def _violated(violations: Mapping[str, float], targets: Sequence[Target]) -> dict[str, Seen]:
    """Normalised violations as logs: the value is 1 + v times the limit, or 1 - v of it."""
    found = {}
    for target in targets:
        by = violations.get(target.name)
        if target.objective or by is None or not math.isfinite(by):
            continue
        ratio = 1 + by if target.sign > 0 else 1 - by
        found[target.name] = Seen(target.sign * math.log(max(ratio, SMALLEST)))
    return found


def _cut_short(
    stopped: EarlyEnd, targets: Sequence[Target], whole: Mapping[str, float] | None = None
) -> dict[str, Seen]:
    """Estimates of the `whole`. What ended the replay would have been no better than the best that
    was still possible; without an estimate it is taken for a little worse than what was seen.
    """
    found = {name: Seen(value, ESTIMATED) for name, value in (whole or {}).items()}
    for target in targets:
        lost = stopped.key == CANNOT_BEAT_BEST and target.name == stopped.target
        if not (lost or target.name == stopped.key):
            continue
        limit = None if target.objective else stopped.limit
        seen, best = (
            None if v is None else target.log(v, limit) for v in (stopped.seen, stopped.best)
        )
        estimate = found.get(target.name)
        if estimate is not None:
            least = estimate.value if best is None else best
            found[target.name] = Seen(max(estimate.value, least), ESTIMATED)
        elif known := [v for v in (seen, best) if v is not None]:
            found[target.name] = Seen(max(known) + BEYOND, CUT_SHORT)
    return found
