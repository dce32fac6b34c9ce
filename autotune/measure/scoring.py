"""A measurement seen with the user's eyes: objective values and signed violations of the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import Infeasible, Score, Unmeasurable
from autotune.measure.quantiles import interval_ranks, wilson_interval
from autotune.spec.expressions import Constraint, Objective
from autotune.spec.vocabulary import MetricName

NOT_DEFINED = "metric_not_defined"
NOT_AVAILABLE = "metric_not_available"
NO_BASELINE = "baseline_not_measured"
REQUESTS_FAILED = "requests_failed"
"""Reason of a trial whose objective lies on failed requests: the candidate's own doing."""


def score(
    measurement: Measurement,
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    baseline: Mapping[str, float | None] | None,
) -> Score | Infeasible | Unmeasurable:
    """Objective values and violations, or why there are none. Never NaN or infinity.

    `baseline`: the baseline's metrics by key, for relative limits; None when this *is* the
    baseline, which is then held against its own values. A violation is (value - limit) / |limit|
    with the sign that makes <= 0 hold; a limit of 0 is taken as 1 in the denominator. A limited
    percentile that failures make infinite is violated by the share of failed requests; an
    *objective* that they make infinite has no value at all, so the candidate is infeasible
    (`requests_failed`). The caller has looked at the measurement's validity before. The search gets
    the violations at the far end of the intervals as well (`_cautious`).
    """
    values: dict[str, float] = {}
    for objective in objectives:
        value = measurement.metrics.get(objective.metric.key)
        if value is None:
            return _no_value(measurement, objective.metric)
        values[objective.text] = value
    reference = measurement.metrics if baseline is None else baseline
    violations: dict[str, float] = {}
    limits: dict[str, float] = {}
    cautious: dict[str, float] = {}
    observed: dict[str, str] = {}
    for constraint in constraints:
        limit = resolve_limit(constraint, reference)
        if limit is None:
            return Unmeasurable(
                reason=NO_BASELINE,
                message=f"{constraint.text}: the baseline has no {constraint.metric.name}",
                measurement=measurement,
            )
        value = measurement.metrics.get(constraint.metric.key)
        if value is None and not _infinite(measurement, constraint.metric):
            return _no_value(measurement, constraint.metric)
        limits[constraint.text] = limit
        violations[constraint.text] = (
            measurement.failed / measurement.planned
            if value is None
            else violation(value, constraint.op, limit)
        )
        far = _cautious(measurement, constraint, limit)
        if isinstance(far, str):
            observed[constraint.text] = far
        else:
            cautious[constraint.text] = max(far, violations[constraint.text])
    return Score(
        values=values, violations=violations, limits=limits, cautious=cautious, observed=observed
    )


def _cautious(measurement: Measurement, constraint: Constraint, limit: float) -> float | str:
    """The violation at the far end of the metric's interval, or why there is none to go by.

    The interval stands for other requests of the same kind. A relative limit compares two replays
    of the same requests, so these move both sides alike, and a candidate that equals the baseline
    must not fail by the width of an interval. A share that not even a perfect replay of so few
    requests would show beyond doubt is held against its observed value, too.
    """
    metric, planned = constraint.metric, measurement.planned
    low, high = measurement.intervals.get(metric.key, (None, None))
    if constraint.relative:
        return "relative to the baseline, which replays the same requests"
    if metric.name == "success_rate":
        perfect = wilson_interval(planned, planned)[0]
        if low is None or perfect is None or perfect < limit:
            return f"{planned} requests cannot show this share beyond doubt"
        return violation(low, constraint.op, limit)
    if metric.statistic is None or not metric.statistic.startswith("p"):
        return f"{metric.name} has no interval"
    if high is not None:
        return violation(high, constraint.op, limit)
    if interval_ranks(float(metric.statistic[1:]), planned)[1] is not None and measurement.failed:
        return measurement.failed / planned
    return f"{planned} requests are too few for the interval of {metric.name}"


def resolve_limit(constraint: Constraint, baseline: Mapping[str, float | None]) -> float | None:
    """The absolute limit in the metric's base unit; None where the baseline has no value for it."""
    if not constraint.relative:
        return constraint.value
    value = baseline.get(constraint.metric.key)
    return None if value is None else constraint.value * value


def violation(value: float, op: str, limit: float) -> float:
    """The normalised signed distance to a limit: <= 0 holds. `op` is `<=` or `>=`."""
    distance = value - limit if op == "<=" else limit - value
    return distance / (abs(limit) or 1.0)


def request_limits(constraints: Sequence[Constraint]) -> dict[str, float]:
    """Latency family -> seconds: the absolute upper limits that goodput holds each request to.

    The tightest one where a family is limited more than once; relative limits are not known yet.
    """
    limits: dict[str, float] = {}
    for constraint in constraints:
        family = constraint.metric.family
        if family in ("ttft", "tpot", "e2e") and constraint.op == "<=" and not constraint.relative:
            limits[family] = min(constraint.value, limits.get(family, constraint.value))
    return limits


def _infinite(measurement: Measurement, metric: MetricName) -> bool:
    """Failures, not missing data, are why this latency has no number."""
    nothing_succeeded = metric.statistic is not None and measurement.ok == 0
    return metric.key in measurement.unbounded or (nothing_succeeded and measurement.failed > 0)


def _no_value(measurement: Measurement, metric: MetricName) -> Infeasible | Unmeasurable:
    if _infinite(measurement, metric):
        share = measurement.failed / measurement.planned
        return Infeasible(
            diagnosis=Diagnosis(
                fault="candidate",
                phase="load",
                reason=REQUESTS_FAILED,
                remedy=None,
                message=f"{metric.name} not met: {share:.1%} of the requests failed",
                evidence=tuple(
                    f"{count} of {measurement.planned} requests: {name}"
                    for name, count in measurement.failed_by_reason.items()
                ),
            ),
            measurement=measurement,
        )
    if metric.family == "tpot":
        reason, message = NOT_DEFINED, "metric not defined: no request with two or more tokens"
    elif metric.statistic is not None:
        reason, message = NOT_DEFINED, f"metric not defined: no request has a {metric.family}"
    else:
        reason, message = NOT_AVAILABLE, f"{metric.name} was not reported by this server"
    return Unmeasurable(reason=reason, message=message, measurement=measurement)
