"""Whether a measurement may be believed: did the client keep its schedule, was the work the planned
work, was the server in a steady state, are there enough samples?

`invalid` is never scored; `suspect` is scored and shown as such. A slow server is neither: these
checks look at the client and the work only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from autotune.measure.measurement import Cause, Validity
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
# Sockets in use of those that the machine has for one address.
PORTS_SUSPECT = 0.5
PORTS_INVALID = 0.8
# Output tokens by the server's counter against what its answers said, when none failed.
SERVER_TOKENS_SUSPECT = 0.05
SERVER_TOKENS_LEAST = 100
# Stationarity: second half of the window against the first.
HALF_MIN_REQUESTS = 20
GROWTH_SUSPECT = 1.5
IN_FLIGHT_GROWTH_MIN = 4


@dataclass(slots=True)
class _Findings:
    suspect: list[tuple[Cause, str]] = field(default_factory=list)
    invalid: list[tuple[Cause, str]] = field(default_factory=list)

    def verdict(self) -> Validity:
        found = [*self.invalid, *self.suspect]
        return Validity(
            verdict="invalid" if self.invalid else "suspect" if self.suspect else "valid",
            reasons=tuple(text for _, text in found),
            causes=tuple(cause for cause, _ in found),
        )


def judge(
    result: ReplayResult,
    *,
    limits: Mapping[str, float],
    limited: Collection[MetricName],
    telemetry: Mapping[str, float | None] = MappingProxyType({}),
    stopped_early: str | None = None,
) -> Validity:
    """The verdict on a replay, with one sentence per reason (the worst first).

    `limits`: latency family -> seconds (only `ttft` is used, where no request was answered).
    `limited`: metrics that carry a constraint or an objective; their percentiles need samples.
    `telemetry`: `Telemetry.summary()`; its token counter tells whether this server answered.
    `stopped_early`: why we ended the replay before its end, if we did; `result` then holds only
    what had ended by itself, and what is missing is not held against it.
    """
    measured = [record for record in result.records if record.measured]
    findings = _Findings()
    if stopped_early is not None:
        findings.suspect.append(("stopped_early", stopped_early))
        _client(result.health, _reference_s(measured, limits), findings)
        if measured:
            _work(measured, findings)
        _server(result, telemetry, findings)
        return findings.verdict()
    if result.aborted is not None:
        findings.invalid.append(("ended_early", f"the replay was ended early: {result.aborted}"))
    if not measured:
        findings.invalid.append(("nothing_measured", "no request was measured"))
        return findings.verdict()
    _client(result.health, _reference_s(measured, limits), findings)
    _sent(measured, findings)
    _work(measured, findings)
    _server(result, telemetry, findings)
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
            text = f"{what}: p99 {_ms(lag)}, at most {_ms(invalid_s)}"
            findings.invalid.append(("client_late", text))
        elif lag > suspect_s:
            text = f"{what}: p99 {_ms(lag)}, better below {_ms(suspect_s)}"
            findings.suspect.append(("client_late", text))
    ports = health.extra.get("port_share")
    shares: tuple[tuple[Cause, str, float | None, float, float], ...] = (
        ("client_busy", "the client was busy: {:.0%} of a core", health.cpu_share,
         CPU_SUSPECT, CPU_INVALID),
        ("client_ports", "the client used {:.0%} of this machine's ports", ports,
         PORTS_SUSPECT, PORTS_INVALID),
    )  # fmt: skip
    for cause, what, share, suspect, invalid in shares:
        if share is not None and share > invalid:
            findings.invalid.append((cause, f"{what.format(share)}, at most {invalid:.0%}"))
        elif share is not None and share > suspect:
            findings.suspect.append((cause, f"{what.format(share)}, better below {suspect:.0%}"))


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
    text = f"only {share:.1%} of the planned requests were sent"
    if share < SENT_INVALID:
        findings.invalid.append(("not_sent", text))
    elif share < SENT_SUSPECT:
        findings.suspect.append(("not_sent", text))


def _broken_sessions(measured: Sequence[RequestRecord]) -> dict[str, int]:
    broken: dict[str, int] = {}
    for record in measured:
        if record.session is not None and record.failure not in (None, "not_sent"):
            broken[record.session] = min(record.turn, broken.get(record.session, record.turn))
    return broken


def _work(measured: Sequence[RequestRecord], findings: _Findings) -> None:
    wrong = sum(record.failure == "wrong_length" for record in measured) / len(measured)
    if wrong > WRONG_LENGTH_INVALID:
        text = f"{wrong:.1%} of the answers had another length than planned"
        findings.invalid.append(("wrong_length", text))
    counted = [
        (record.input_tokens, record.planned_input_tokens)
        for record in measured
        # Text has no planned length: its tokens are the server's to count
        if record.failure is None
        and record.input_tokens is not None
        and record.planned_input_tokens > 0
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
        findings.invalid.append(("prompt_length", text))
    else:
        findings.suspect.append(("prompt_length", text))


def _server(
    result: ReplayResult, telemetry: Mapping[str, float | None], findings: _Findings
) -> None:
    """Did the server that was watched, and it alone, give these answers, and only these?"""
    names = {r.answered_as for r in result.records if r.answered_as is not None}
    if len(names) > 1:
        findings.invalid.append(
            ("wrong_server", f"the answers name {len(names)} models: {', '.join(sorted(names))}")
        )
    counted = telemetry.get("generation_tokens")
    got = sum(record.output_tokens or 0 for record in result.records)
    if counted is None or got < SERVER_TOKENS_LEAST:
        return
    if counted == 0:
        findings.invalid.append(
            ("wrong_server", f"the watched server made none of the {got} tokens that came")
        )
    elif all(record.failure is None for record in result.records if record.measured) and (
        abs(counted - got) > SERVER_TOKENS_SUSPECT * got
    ):
        text = (
            f"the server counted {counted:.0f} output tokens, {got} came here: "
            "others use it, or not all answers are its own"
        )
        findings.suspect.append(("other_traffic", text))


def _samples(
    measured: Sequence[RequestRecord], limited: Collection[MetricName], findings: _Findings
) -> None:
    for metric in sorted(limited, key=lambda metric: metric.name):
        if metric.statistic is None or not metric.statistic.startswith("p"):
            continue
        percent = float(metric.statistic[1:])
        count, wanted = len(latency_samples(measured, metric.family)), samples_wanted(percent)
        if count < wanted:
            text = f"{count} requests are too few for {metric.name}: at least {wanted} are needed"
            findings.suspect.append(("too_few_samples", text))


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
        text = (
            f"not stationary: the wait for the first token was {slower} in the second half, "
            f"requests in flight grew from {half_way} to {at_end}"
        )
        findings.suspect.append(("not_stationary", text))


def _in_flight(records: Sequence[RequestRecord], moment_s: float) -> int:
    return sum(
        record.due_s <= moment_s and (record.end_s is None or record.end_s > moment_s)
        for record in records
        if record.failure != "not_sent"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
