"""A measurement seen with the user's eyes: objective values and signed violations of the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import Infeasible, Score, Unmeasurable
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
    (`requests_failed`). The caller has looked at the measurement's validity before.
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
    return Score(values=values, violations=violations, limits=limits)


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
