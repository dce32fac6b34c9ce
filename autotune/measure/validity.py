"""Whether a measurement may be believed: did the client keep its schedule, was the work the planned
work, was the server in a steady state, are there enough samples?

`invalid` is never scored; `suspect` is scored and shown as such. A slow server is neither: these
checks look at the client and the work only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.measure.measurement import Validity
from autotune.measure.metrics import latency_samples
from autotune.measure.quantiles import percentile, samples_wanted
from autotune.replay.records import ClientHealth, ReplayResult, RequestRecord
from autotune.spec.vocabulary import MetricName

# Client lag. The floors are absolute; the shares let a slow server tolerate more. The reference of
# the shares is the measured p95 of ttft_service: it holds no lag of ours, so a late client cannot
# excuse itself, and a lenient limit cannot hide lag that is large beside what was measured.
LAG_SUSPECT_S = 0.005
LAG_SUSPECT_SHARE = 0.02
LAG_INVALID_S = 0.025
LAG_INVALID_SHARE = 0.10
# CPU time over wall time of the busiest worker.
CPU_SUSPECT = 0.50
CPU_INVALID = 0.75
# Requests that the client sent, of those it should have sent.
SENT_SUSPECT = 0.99
SENT_INVALID = 0.97
# Answers of another length than the recorded one.
WRONG_LENGTH_INVALID = 0.01
# Prompt tokens by the server's count: a few more per request are templates and markers.
PROMPT_SLACK_TOKENS = 4
PROMPT_SLACK_SHARE = 0.01
PROMPT_SUSPECT = 0.01
PROMPT_TOTAL_INVALID = 0.05
# Stationarity: second half of the window against the first.
HALF_MIN_REQUESTS = 20
GROWTH_SUSPECT = 1.5
IN_FLIGHT_GROWTH_MIN = 4


@dataclass(slots=True)
class _Findings:
    suspect: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)

    def verdict(self) -> Validity:
        if self.invalid:
            return Validity(verdict="invalid", reasons=(*self.invalid, *self.suspect))
        if self.suspect:
            return Validity(verdict="suspect", reasons=tuple(self.suspect))
        return Validity(verdict="valid")


def judge(
    result: ReplayResult, *, limits: Mapping[str, float], limited: Collection[MetricName]
) -> Validity:
    """The verdict on a replay, with one sentence per reason (the worst first).

    `limits`: latency family -> seconds (only `ttft` is used, where no request was answered).
    `limited`: metrics that carry a constraint or an objective; their percentiles need samples.
    """
    measured = [record for record in result.records if record.measured]
    findings = _Findings()
    if result.aborted is not None:
        findings.invalid.append(f"the replay was ended early: {result.aborted}")
    if not measured:
        findings.invalid.append("no request was measured")
        return findings.verdict()
    _client(result.health, _reference_s(measured, limits), findings)
    _sent(measured, findings)
    _work(measured, findings)
    _samples(measured, limited, findings)
    _stationary(measured, result.window_s, findings)
    return findings.verdict()


def lag_thresholds_s(reference_s: float | None) -> tuple[float, float]:
    """Lag in seconds above which a measurement is (suspect, invalid), for a TTFT of that size."""
    reference = reference_s or 0.0
    return (
        max(LAG_SUSPECT_S, LAG_SUSPECT_SHARE * reference),
        max(LAG_INVALID_S, LAG_INVALID_SHARE * reference),
    )


def _reference_s(measured: Sequence[RequestRecord], limits: Mapping[str, float]) -> float | None:
    served = [value for value in latency_samples(measured, "ttft_service") if math.isfinite(value)]
    return percentile(served, 95) if served else limits.get("ttft")


def _client(health: ClientHealth, reference_s: float | None, findings: _Findings) -> None:
    suspect_s, invalid_s = lag_thresholds_s(reference_s)
    lags = {
        "requests left late": health.dispatch_lag_p99_s,
        "the client's event loop was late": health.loop_lag_p99_s,
    }
    for what, lag in lags.items():
        if lag is None:
            continue
        if lag > invalid_s:
            findings.invalid.append(f"{what}: p99 {_ms(lag)}, at most {_ms(invalid_s)}")
        elif lag > suspect_s:
            findings.suspect.append(f"{what}: p99 {_ms(lag)}, better below {_ms(suspect_s)}")
    share = health.cpu_share
    if share is not None and share > CPU_INVALID:
        findings.invalid.append(
            f"the client was busy: {share:.0%} of a core, at most {CPU_INVALID:.0%}"
        )
    elif share is not None and share > CPU_SUSPECT:
        findings.suspect.append(
            f"the client was busy: {share:.0%} of a core, better below {CPU_SUSPECT:.0%}"
        )


def _sent(measured: Sequence[RequestRecord], findings: _Findings) -> None:
    """A later turn of a session that broke cannot be sent: that is the server's doing, not ours."""
    broken = _broken_sessions(measured)
    ours = [
        record
        for record in measured
        if not (
            record.failure == "not_sent"
            and record.session is not None
            and record.turn > broken.get(record.session, record.turn)
        )
    ]
    if not ours:
        return
    share = sum(record.failure != "not_sent" for record in ours) / len(ours)
    if share < SENT_INVALID:
        findings.invalid.append(f"only {share:.1%} of the planned requests were sent")
    elif share < SENT_SUSPECT:
        findings.suspect.append(f"only {share:.1%} of the planned requests were sent")


def _broken_sessions(measured: Sequence[RequestRecord]) -> dict[str, int]:
    broken: dict[str, int] = {}
    for record in measured:
        if record.session is not None and record.failure not in (None, "not_sent"):
            broken[record.session] = min(record.turn, broken.get(record.session, record.turn))
    return broken


def _work(measured: Sequence[RequestRecord], findings: _Findings) -> None:
    wrong = sum(record.failure == "wrong_length" for record in measured) / len(measured)
    if wrong > WRONG_LENGTH_INVALID:
        findings.invalid.append(f"{wrong:.1%} of the answers had another length than planned")
    counted = [
        (record.input_tokens, record.planned_input_tokens)
        for record in measured
        if record.failure is None and record.input_tokens is not None
    ]
    if not counted:
        return
    off = sum(
        abs(seen - planned) > max(PROMPT_SLACK_TOKENS, PROMPT_SLACK_SHARE * planned)
        for seen, planned in counted
    ) / len(counted)
    if off <= PROMPT_SUSPECT:
        return
    seen_total = sum(seen for seen, _ in counted)
    planned_total = sum(planned for _, planned in counted)
    text = (
        f"{off:.1%} of the prompts had another length for the server than planned "
        f"({seen_total} tokens in all, planned {planned_total})"
    )
    if abs(seen_total - planned_total) > PROMPT_TOTAL_INVALID * planned_total:
        findings.invalid.append(text)
    else:
        findings.suspect.append(text)


def _samples(
    measured: Sequence[RequestRecord], limited: Collection[MetricName], findings: _Findings
) -> None:
    for metric in sorted(limited, key=lambda metric: metric.name):
        if metric.statistic is None or not metric.statistic.startswith("p"):
            continue
        percent = float(metric.statistic[1:])
        count, wanted = len(latency_samples(measured, metric.family)), samples_wanted(percent)
        if count < wanted:
            findings.suspect.append(
                f"{count} requests are too few for {metric.name}: at least {wanted} are needed"
            )


def _stationary(
    measured: Sequence[RequestRecord], window_s: tuple[float, float], findings: _Findings
) -> None:
    start, end = window_s
    middle = (start + end) / 2
    first = latency_samples((r for r in measured if r.due_s < middle), "ttft")
    second = latency_samples((r for r in measured if r.due_s >= middle), "ttft")
    if min(len(first), len(second)) < HALF_MIN_REQUESTS:
        return
    early, late = percentile(first, 50), percentile(second, 50)
    half_way, at_end = _in_flight(measured, middle), _in_flight(measured, end)
    grows = at_end >= max(GROWTH_SUSPECT * half_way, half_way + IN_FLIGHT_GROWTH_MIN)
    if math.isfinite(early) and late > GROWTH_SUSPECT * early and grows:
        slower = f"{late / early:.1f} times as long" if math.isfinite(late) else "without end"
        findings.suspect.append(
            "not stationary: the wait for the first token was "
            f"{slower} in the second half, requests in flight grew from {half_way} to {at_end}"
        )


def _in_flight(records: Sequence[RequestRecord], moment_s: float) -> int:
    return sum(
        record.due_s <= moment_s and (record.end_s is None or record.end_s > moment_s)
        for record in records
        if record.failure != "not_sent"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
