"""Replay a plan against a server from worker processes, and collect what came back."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.clock import Clock, StopSignal
from autotune.errors import Untrustworthy
from autotune.replay.body import request_body
from autotune.replay.crew import Crew
from autotune.replay.glimpse import LOOK_EVERY_S, Glimpse, Lookout
from autotune.replay.health import combine
from autotune.replay.options import ReplayOptions
from autotune.replay.records import (
    PlannedRequest,
    ReplayProgress,
    ReplayResult,
    RequestRecord,
)
from autotune.replay.schedule import (
    check_plan,
    closed_loop,
    due_times_s,
    horizon_s,
    partition,
    window_of,
)
from autotune.replay.shard import Shard, jobs_of, write_shard

__all__ = ["ReplayOptions", "replay", "warm_up"]

START_LEAD_S = 0.1
"""How far ahead the common start lies once every worker is ready."""
READY_WITHIN_S = 30.0
READY_POLL_S = 0.01
POLL_S = 0.05
TELL_EVERY_S = 0.5
ALIVE_EVERY_S = 0.25
HOPELESS = "hopeless"
OVERDUE_S = 10.0
"""A worker that is not back this long after the deadline is killed."""


def replay(
    requests: Sequence[PlannedRequest],
    *,
    url: str,
    model: str,
    options: ReplayOptions,
    directory: Path,
    clock: Clock,
    stop: StopSignal,
    alive: Callable[[], bool],
    on_progress: Callable[[ReplayProgress], None] | None = None,
    hopeless: Callable[[Glimpse], bool] | None = None,
) -> ReplayResult:
    """Send every request at its due time; one record per request comes back, in index order.

    Args:
        requests: the plan; indices unique, any order. Those that are not `measured`, where others
            are, are background: they are sent as the rest, and broken off when the last measured
            one has ended; those not sent by then have no record.
        url: base address of the server (`http://127.0.0.1:8000`); the route is an option.
        model: the served model name.
        options: limits and body; at their deadline what is in flight is a `timeout`.
        directory: an existing folder; a temporary one is made in it and removed at the end.
        clock: the machine's clock (the workers share its monotonic time).
        stop: ends the replay and raises Interrupted once no worker is left.
        alive: whether the server still runs; must be quick. When it turns False the replay ends
            within about two seconds, `aborted` is `server_died` and the rest `not_sent`.
        on_progress: called about twice a second.
        hopeless: called about four times a second with what has ended since the last call and what
            is open. Once it says True the replay ends: what is in flight is broken off, which makes
            the engine drop it, the rest is not sent (`broken_off` of their records), and `aborted`
            is `hopeless`, unless everything had ended by then.

    Raises ValueError for an inconsistent plan, InputError for a missing API key or an unfit
    route, Interrupted, and Untrustworthy if a worker process breaks.
    """
    check_plan(requests)
    folder = Path(tempfile.mkdtemp(prefix="replay-", dir=directory))
    try:
        deadline_s = _horizon_s(requests) + options.drain_timeout_s
        watched = hopeless is not None
        folders = _write_shards(folder, requests, url, model, options, deadline_s, watched=watched)
        with Crew(folders, options.api_key_env) as crew:
            given_up = None if hopeless is None else _GivenUp(Lookout(folders), hopeless)
            watch = _Watch(crew, requests, deadline_s, clock, stop, alive, on_progress, given_up)
            begun, aborted = watch.until_over()
            reports, wall_s = crew.reports(), clock.monotonic() - begun
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    stop.check()
    records = _in_order(requests, [record for report in reports for record in report.records])
    aborted = aborted or next((r.aborted for r in reports if r.aborted), None)
    if aborted == HOPELESS and not any(r.measured and r.broken_off for r in records):
        aborted = None
    return ReplayResult(
        records=records,
        health=combine(reports),
        window_s=options.window_s or window_of(records),
        wall_s=wall_s,
        aborted=aborted,
    )


def warm_up(
    requests: Sequence[PlannedRequest],
    *,
    url: str,
    model: str,
    options: ReplayOptions,
    directory: Path,
    clock: Clock,
    stop: StopSignal,
    alive: Callable[[], bool],
    concurrency: int = 8,
) -> ReplayResult:
    """Send `requests` as a closed loop of `concurrency` users, and return when all have ended.

    Their times and links are ignored and none is measured. The result says how many were answered
    (`failure is None`); its latencies mean nothing. Limits and errors as for `replay`.
    """
    per_user = -(-len(requests) // concurrency)
    patience_s = options.drain_timeout_s + options.request_timeout_s * per_user
    return replay(
        closed_loop(requests, concurrency),
        url=url,
        model=model,
        options=replace(options, workers=1, drain_timeout_s=patience_s, window_s=None),
        directory=directory,
        clock=clock,
        stop=stop,
        alive=alive,
    )


def _write_shards(
    folder: Path,
    requests: Sequence[PlannedRequest],
    url: str,
    model: str,
    options: ReplayOptions,
    deadline_s: float,
    *,
    watched: bool,
) -> list[Path]:
    run = uuid.uuid4().hex[:8]
    workers = max(1, min(options.workers, len(requests)))
    folders = []
    for number, share in enumerate(partition(requests, workers)):
        bodies = [request_body(planned, model=model, options=options) for planned in share]
        jobs, joined = jobs_of(share, bodies)
        shard = Shard(
            worker=number,
            run=run,
            url=url.rstrip("/") + options.route,
            jobs=jobs,
            deadline_s=deadline_s,
            connect_timeout_s=options.connect_timeout_s,
            first_token_timeout_s=options.first_token_timeout_s,
            idle_timeout_s=options.idle_timeout_s,
            request_timeout_s=options.request_timeout_s,
            fixed_length=options.fixed_length,
            api_key_env=options.api_key_env,
            transport=options.transport,
            scored=any(planned.measured for planned in requests),
            alone=workers == 1,
            watched=watched,
            cores=options.cores[number % len(options.cores) :][:1] if options.cores else (),
        )
        place = folder / f"worker-{number}"
        place.mkdir()
        write_shard(place, shard, joined)
        folders.append(place)
    return folders


class _GivenUp:
    """Asks the caller now and then whether the replay is worth going on with."""

    def __init__(self, lookout: Lookout, hopeless: Callable[[Glimpse], bool]) -> None:
        self._lookout = lookout
        self._hopeless = hopeless
        self._look_at = 0.0

    def at(self, now: float) -> bool:
        """Whether to end the replay; looks only as often as there can be news."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S
        glimpse = self._lookout.look()
        return glimpse is not None and self._hopeless(glimpse)


class _Watch:
    """The parent's side of a running replay."""

    def __init__(
        self,
        crew: Crew,
        requests: Sequence[PlannedRequest],
        deadline_s: float,
        clock: Clock,
        stop: StopSignal,
        alive: Callable[[], bool],
        on_progress: Callable[[ReplayProgress], None] | None,
        given_up: _GivenUp | None,
    ) -> None:
        self._crew = crew
        self._deadline_s = deadline_s
        self._planned = len(_scored(requests))
        self._last_due_s = _horizon_s(requests)
        self._clock = clock
        self._stop = stop
        self._alive = alive
        self._on_progress = on_progress
        self._given_up = given_up

    def until_over(self) -> tuple[float, str | None]:
        """Start the workers together and wait for them. Returns the start instant, and why the
        replay was ended early if it was ended from here.
        """
        crew, clock, told = self._crew, self._clock, False
        self._await_ready()
        start = clock.monotonic() + START_LEAD_S
        crew.start(start)
        ended: str | None = None
        kill_at = start + self._deadline_s + OVERDUE_S
        look_at = tell_at = start
        while not crew.finished():
            now = clock.monotonic()
            if self._stop.forced or now > kill_at:
                crew.kill()
                self._stop.check()
                raise Untrustworthy(
                    message="the replay client did not end in time",
                    seen=f"a worker still ran {now - start:.0f} s after the start",
                    so="the measurement is void",
                )
            reason = "stopped" if self._stop.requested else None
            if reason is None and ended is None and now >= look_at:
                look_at = now + ALIVE_EVERY_S
                reason = None if self._alive() else "server_died"
            if reason is None and ended is None and self._given_up and self._given_up.at(now):
                reason = HOPELESS
            if reason is not None and ended != reason:
                ended, kill_at = reason, now + OVERDUE_S
                crew.stop(reason)
            if not told and crew.measured():
                told = True
                crew.enough()
            if self._on_progress is not None and now >= tell_at:
                tell_at = now + TELL_EVERY_S
                self._on_progress(self._progress(now - start))
            clock.sleep(POLL_S)
        if self._on_progress is not None:
            self._on_progress(self._progress(clock.monotonic() - start))
        return start, ended

    def _await_ready(self) -> None:
        give_up = self._clock.monotonic() + READY_WITHIN_S
        while not self._crew.ready():
            self._stop.check()
            if self._clock.monotonic() > give_up:
                raise Untrustworthy(
                    message="the replay client did not start",
                    seen=f"a worker process was not ready within {READY_WITHIN_S:.0f} s",
                    so="nothing was measured",
                )
            self._clock.sleep(READY_POLL_S)

    def _progress(self, elapsed_s: float) -> ReplayProgress:
        return self._crew.progress(
            elapsed_s=elapsed_s, total_s=self._last_due_s, planned=self._planned
        )


def _in_order(
    requests: Sequence[PlannedRequest], records: Sequence[RequestRecord]
) -> tuple[RequestRecord, ...]:
    """The records by index; none lost but background that was not sent, or the client is broken."""
    ordered = tuple(sorted(records, key=lambda record: record.index))
    found = [record.index for record in ordered]
    scored = {request.index for request in _scored(requests)}
    planned = {request.index for request in requests}
    if len(set(found)) != len(found) or not scored <= set(found) <= planned:
        raise Untrustworthy(
            message="the replay client lost requests",
            seen=f"{len(scored)} planned, {len(scored & set(found))} accounted for",
            so="the measurement is void",
        )
    return ordered


def _scored(requests: Sequence[PlannedRequest]) -> list[PlannedRequest]:
    """What the replay is about: the measured requests, or all where none is."""
    return [request for request in requests if request.measured] or list(requests)


def _horizon_s(requests: Sequence[PlannedRequest]) -> float:
    """The latest due time of what the replay is about, if answers take no time."""
    if all(request.measured for request in requests):
        return horizon_s(requests)
    scored = {request.index for request in _scored(requests)}
    # Links may lead through requests that are not measured, so all of them are looked at.
    return max(
        (due for index, due in due_times_s(requests).items() if index in scored), default=0.0
    )
