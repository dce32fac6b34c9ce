"""From a replay in virtual time to what a real client brings back: records, health, telemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import sub

from autotune.measure.quantiles import percentile
from autotune.replay.options import ReplayOptions
from autotune.replay.records import (
    BROKEN_OFF,
    ClientHealth,
    Failure,
    PlannedRequest,
    ReplayResult,
    RequestRecord,
)
from autotune.replay.replayer import HOPELESS
from autotune.replay.schedule import due_times_s, window_of
from autotune.simulator.virtual import VirtualRun, VirtualTimes

_TOLD = {
    "kv_usage": "kv_usage_max", "preemptions": "preemptions", "prefix_queries": "prefix_hit_rate",
    "queue_time": "queue_p95", "running": "running_max", "waiting": "waiting_max",
    "prompt_tokens": "prompt_tokens", "generation_tokens": "generation_tokens",
}  # fmt: skip
"""What an engine tells, by our name -> what telemetry makes of it."""
_ABSENT = ("gpu_memory_peak", "power_mean", "energy_joules", "host_cpu_share", "host_steal_share")
DEATH_SEEN_S = 0.25
"""A dead server is noticed this long after its last event."""
PERFECT = ClientHealth(dispatch_lag_p99_s=0.0, loop_lag_p99_s=0.0, cpu_share=0.0)
"""A client that is never late."""

HopelessAt = Callable[[Sequence[RequestRecord], float], float | None]
"""From the records of a replay as it runs to its end, and the seconds until then: when it is given
up, None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeReplay:
    """A replay as it runs if nobody ends it. `records`: one per planned request, without an end
    where there was none. `died_s`: when the engine died; None: it did not. `server`: what telemetry
    would say of it.
    """

    records: tuple[RequestRecord, ...]
    died_s: float | None
    server: Mapping[str, float | None]


def whole_replay(
    planned: Sequence[PlannedRequest],
    run: VirtualRun,
    *,
    begin_s: float = 0.0,
    options: ReplayOptions,
) -> WholeReplay:
    """What clients saw of a run. `run.times` are those of `planned`, whose due times are counted
    from `begin_s` of the run.

    A request that outlives its limits fails, but stays in the engine: nothing is aborted.
    """
    return WholeReplay(
        records=tuple(
            _record(p, t, begin_s, options) for p, t in zip(planned, run.times, strict=True)
        ),
        died_s=None if run.died is None else run.end_s - begin_s,
        server=_telemetry(run),
    )


def ended_replay(
    planned: Sequence[PlannedRequest],
    whole: WholeReplay,
    *,
    options: ReplayOptions,
    hopeless_at: HopelessAt | None = None,
) -> ReplayResult:
    """What `replay.replayer.replay` would have returned: ended by the last measured answer, the
    server's death, the deadline, or because it was given up.
    """
    dues = due_times_s(planned)
    scored = [p for p in planned if p.measured] or list(planned)
    deadline_s = max((dues[p.index] for p in scored), default=0.0) + options.drain_timeout_s
    aims = {p.index for p in scored}
    last_s = max((r.end_s or 0.0 for r in whole.records if r.index in aims), default=0.0)
    aborted = None
    if whole.died_s is not None:
        aborted, last_s = "server_died", whole.died_s + DEATH_SEEN_S
    elif last_s > deadline_s:
        aborted, last_s = "deadline", deadline_s
    given_up = None if hopeless_at is None else hopeless_at(whole.records, last_s)
    if given_up is not None and given_up < last_s:
        aborted, last_s = HOPELESS, given_up
    ends = (_until(r, last_s, aborted, counts=r.index in aims) for r in whole.records)
    records = [record for record in ends if record is not None]
    return ReplayResult(
        records=tuple(records),
        health=PERFECT,
        window_s=options.window_s or window_of(records),
        wall_s=last_s,
        aborted=aborted,
    )


def telemetry_of(
    whole: WholeReplay, result: ReplayResult, told: Mapping[str, str]
) -> dict[str, float | None]:
    """What `measure.telemetry.Telemetry.summary` would say. `told`: what this engine tells, by our
    names. The counts of the engine are exact; the GPU and this machine are not there.
    """
    known = {key for name, key in _TOLD.items() if name in told}
    values = {
        **whole.server,
        "prompt_tokens": float(sum(r.planned_input_tokens for r in result.records)),
        "generation_tokens": float(sum(r.output_tokens or 0 for r in result.records)),
    }
    return {**dict.fromkeys(_ABSENT), **{k: v if k in known else None for k, v in values.items()}}


def _record(
    planned: PlannedRequest, times: VirtualTimes, begin_s: float, options: ReplayOptions
) -> RequestRecord:
    """The record of a request that was let run to its end; without an end if it had none."""
    sent_s = times.sent_s - begin_s
    tokens = times.token_s
    complete = times.last_token_s is not None
    gap_s = max(map(sub, tokens[1:], tokens[:-1]), default=None)
    late = None
    first_s = tokens[0] - begin_s - sent_s if tokens else None
    if first_s is not None and first_s > options.first_token_timeout_s:
        late = "no token", options.first_token_timeout_s
    elif complete and tokens[-1] - begin_s - sent_s > options.request_timeout_s:
        late = "no end", options.request_timeout_s
    return RequestRecord(
        index=planned.index,
        due_s=sent_s,
        measured=planned.measured,
        planned_input_tokens=len(planned.prompt),
        planned_output_tokens=planned.output_tokens,
        sent_s=sent_s,
        begun_s=sent_s,
        headers_s=sent_s,
        first_token_s=tokens[0] - begin_s if tokens else None,
        first_visible_s=tokens[0] - begin_s if tokens else None,
        last_token_s=tokens[-1] - begin_s if tokens else None,
        end_s=(sent_s + late[1] if late else tokens[-1] - begin_s) if complete else None,
        input_tokens=len(planned.prompt) if complete else None,
        output_tokens=len(tokens),
        cached_tokens=times.cached_tokens,
        events=len(tokens),
        max_gap_s=gap_s,
        status=200,
        finish_reason="length" if complete else None,
        failure="timeout" if late else None,
        detail=f"{late[0]} within {late[1]:g} s" if late else None,
        session=planned.session,
        turn=planned.turn,
    )


def _until(
    record: RequestRecord, last_s: float, aborted: str | None, *, counts: bool
) -> RequestRecord | None:
    """The record of a replay that ended at `last_s`: what was in flight is broken off. None for
    background (not `counts`) that was not sent.
    """
    if record.end_s is not None and record.end_s <= last_s:
        return record
    why = f"{BROKEN_OFF}{aborted or 'all was measured'}"
    if (record.sent_s or 0.0) <= last_s:
        kind: Failure = "timeout" if aborted == "deadline" else "cut"
        return replace(record, end_s=last_s, failure=kind, detail=why, finish_reason=None)
    if not counts:
        return None
    return RequestRecord(
        index=record.index,
        due_s=record.due_s,
        measured=record.measured,
        planned_input_tokens=record.planned_input_tokens,
        planned_output_tokens=record.planned_output_tokens,
        failure="not_sent",
        detail=why,
        session=record.session,
        turn=record.turn,
    )


def _telemetry(run: VirtualRun) -> dict[str, float | None]:
    served = [times for times in run.times if times.queued_s is not None]
    queued = [times.queued_s for times in served if times.queued_s is not None]
    return {
        "kv_usage_max": run.kv_usage_max,
        "preemptions": float(sum(times.preemptions for times in run.times)),
        "prefix_hit_rate": run.prefix_hits / run.prefix_queries if run.prefix_queries else None,
        "queue_p95": percentile(queued, 95) if queued else None,
        "running_max": _most(served, waiting=False),
        "waiting_max": _most(served, waiting=True),
    }


def _most(served: Sequence[VirtualTimes], *, waiting: bool) -> float:
    """The largest number of requests that waited, or ran, at the same time."""
    changes: list[tuple[float, int]] = []
    for times in served:
        assert times.queued_s is not None
        begun_s = times.sent_s + times.queued_s
        end_s = begun_s if waiting else times.last_token_s
        changes.append((times.sent_s if waiting else begun_s, 1))
        if end_s is not None:
            changes.append((end_s, -1))
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return float(most)
