"""When a replay is not worth its end: it cannot meet a limit any more, or not beat the best so far.

The exact rules are never wrong: they fire only when no way in which the rest of the replay could go
would change the answer (`measure/bounds.py`). The growing queue is a forecast, and off unless asked
for: it takes the rest to wait as the latest requests do, once their waits rise beyond chance
(Mann-Kendall trend test: Mann, Econometrica 13, 1945; exact distribution of Kendall, 1938).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from autotune.engines.engine import Diagnosis
from autotune.measure.bounds import Outlook, Tally
from autotune.measure.outcome import CANNOT_BEAT_BEST, EarlyEnd, EarlyRule
from autotune.measure.quantiles import percentile
from autotune.measure.scoring import request_limits, resolve_limit, violation
from autotune.replay.glimpse import Glimpse
from autotune.replay.records import PlannedRequest
from autotune.replay.schedule import due_times_s
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import MetricName

Mode = Literal["exact", "growing_queue", "off"]

BLOCKS = 8
BLOCK_REQUESTS = 5
"""The trend is looked for in what requests find in flight when they come: medians of so many blocks
of so many requests or more, in the order of coming."""
TREND_P = 0.001
"""Chance of such a rise without a trend. Queues remember, so it is set low."""
QUEUE_GROWTH = 1.5
QUEUE_GROWTH_MIN = 4
"""The last block must find so many times what the fourth of eight found, and so many more."""
LEAST_SHARE = 0.25
"""A forecast is made only when this share of the planned requests is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A value that a metric has to reach: `limit` in base units, to be met (`op` `<=` or `>=`); to
    be beaten where `key` is `CANNOT_BEAT_BEST`. `text`: the limit or the objective.
    """

    metric: MetricName
    op: Literal["<=", ">="]
    limit: float
    text: str
    key: str


def bars(
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    *,
    baseline: Mapping[str, float | None] | None,
    to_beat: float | None,
) -> list[Bar]:
    """What a trial of the search has to reach: every limit, and the best value so far.

    `baseline`: metrics by key that relative limits refer to; a relative limit without a value there
    is no bar. `to_beat`: of the first objective; only a study with a single objective has one.
    """
    found = []
    for constraint in constraints:
        limit = resolve_limit(constraint, baseline or {})
        if limit is not None:
            found.append(
                Bar(
                    metric=constraint.metric, op=constraint.op, limit=limit, text=constraint.text,
                    key=constraint.text,
                )
            )  # fmt: skip
    if to_beat is not None and len(objectives) == 1:
        objective = objectives[0]
        found.append(
            Bar(
                metric=objective.metric,
                op="<=" if objective.direction == "minimize" else ">=",
                limit=to_beat,
                text=objective.text,
                key=CANNOT_BEAT_BEST,
            )
        )
    return found


class EarlyStop:
    """Watches one replay. Give `look` every glimpse; `end` says why, once it is hopeless."""

    def __init__(
        self,
        planned: Sequence[PlannedRequest],
        bars: Sequence[Bar],
        constraints: Sequence[Constraint],
        *,
        mode: Mode = "exact",
        drain_s: float = math.inf,
    ) -> None:
        """`planned`: every request of the replay. `constraints`: the study's, for the per-request
        limits of goodput. `drain_s`: seconds at most that are waited for answers after the last due
        time.
        """
        self._bars = tuple(bars)
        self._outlook = Outlook(planned, request_limits(constraints))
        self._drain_s = drain_s
        self._forecasts = mode == "growing_queue"
        dues = due_times_s(planned)
        self._last_due_s = max((dues[p.index] for p in planned if p.measured), default=0.0)
        self.end: EarlyEnd | None = None

    def look(self, glimpse: Glimpse, server: Mapping[str, float | None]) -> bool:
        """Whether the replay is hopeless now. `server`: what telemetry knows, by metric name."""
        self._outlook.take(glimpse, server)
        if self.end is None:
            self.end = next((e for bar in self._bars if (e := self._exact(bar)) is not None), None)
        if self.end is None and self._forecasts:
            self.end = self._forecast()
        return self.end is not None

    def _exact(self, bar: Bar) -> EarlyEnd | None:
        best = self._outlook.best(bar.metric)
        if best is None or not _beyond(best, bar):
            return None
        beats = bar.key == CANNOT_BEAT_BEST
        return self._ended(bar, "cannot_beat_best" if beats else "limit_out_of_reach", best)

    def _forecast(self) -> EarlyEnd | None:
        """The first bar that the rest cannot reach if the queue goes on as it does."""
        rest = self._rest_s()
        if rest is None:
            return None
        for bar in self._bars:
            waits = bar.metric.family in ("ttft", "e2e")
            if not waits or not (bar.metric.statistic or "").startswith("p"):
                continue
            seen = self._outlook.seen(bar.metric)
            value = self._outlook.with_rest_at(bar.metric, rest)
            if seen is not None and _beyond(seen, bar) and value and _beyond(value, bar):
                return self._ended(bar, "growing_queue", self._outlook.best(bar.metric))
        return None

    def _rest_s(self) -> float | None:
        """How long the rest will wait for its first token at least: the lowest decile of the latest
        waits; None unless the queue grows.
        """
        found = self._outlook.in_flight()
        size = len(found) // BLOCKS
        if size < BLOCK_REQUESTS or len(found) < LEAST_SHARE * self._outlook.planned:
            return None
        depths = [statistics.median(found[i : i + size]) for i in range(0, BLOCKS * size, size)]
        half, now = depths[BLOCKS // 2 - 1], depths[-1]
        if now < max(QUEUE_GROWTH * half, half + QUEUE_GROWTH_MIN) or trend_p(depths) > TREND_P:
            return None
        latest = [wait for _, wait in self._outlook.waits()][-BLOCK_REQUESTS:]
        return percentile(latest, 10) if latest else None

    def _ended(self, bar: Bar, rule: EarlyRule, best: float | None) -> EarlyEnd:
        outlook = self._outlook
        seen = outlook.seen(bar.metric)
        tally = outlook.tally(bar.metric, bar.limit) or Tally(over=0, needed=0, planned=0)
        return EarlyEnd(
            rule=rule,
            target=bar.text,
            key=bar.key,
            limit=bar.limit,
            best=_finite(best),
            seen=_finite(seen),
            violation=self._distance(bar, seen),
            planned=outlook.planned,
            ended=outlook.ended,
            over=tally.over if tally.planned else None,
            needed=tally.needed if tally.planned else None,
            at_s=outlook.at_s,
            last_due_s=self._last_due_s,
            saved_s=self._saved_s(),
        )

    def _distance(self, bar: Bar, seen: float | None) -> float:
        """As in a score: a percentile that failures make infinite counts by their share."""
        if seen is None or math.isinf(seen):
            return self._outlook.failed / max(1, self._outlook.ended)
        return violation(seen, bar.op, bar.limit)

    def _saved_s(self) -> float:
        """From now to the last due time, and from there the longest wait so far as the drain."""
        drain_s = min(self._drain_s, self._outlook.longest_s)
        return max(0.0, self._last_due_s + drain_s - self._outlook.at_s)


def diagnosis_of(end: EarlyEnd) -> Diagnosis:
    """What to say of a candidate whose replay was ended early: it launches and serves, and is not
    worth more time.
    """
    return Diagnosis(
        fault="candidate", phase="load", reason=end.rule, remedy=None, message=end.sentence,
    )  # fmt: skip


def trend_p(values: Sequence[float]) -> float:
    """The chance that values without a trend rise as much as these, in this order: one-sided
    Mann-Kendall test, exact for distinct values (ties count as no rise, which is the safe side).
    """
    rises = sum(b > a for i, a in enumerate(values) for b in values[i + 1 :])
    ways = _ways(len(values))
    return sum(ways[rises:]) / math.factorial(len(values))


@lru_cache(maxsize=64)
def _ways(count: int) -> tuple[int, ...]:
    """By number of rising pairs, how many orders of `count` distinct values have it (Mahonian)."""
    ways = [1]
    for size in range(2, count + 1):
        ways = [
            sum(ways[max(0, total - size + 1) : total + 1]) for total in range(len(ways) + size - 1)
        ]
    return tuple(ways)


def _beyond(value: float, bar: Bar) -> bool:
    return value > bar.limit if bar.op == "<=" else value < bar.limit


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
