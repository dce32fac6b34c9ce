"""How the load of a study is sent from this machine: how many workers, on which cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from autotune.clock import Clock, StopSignal
from autotune.replay.calibration import (
    ClientPlan,
    capacity_here,
    own_cores,
    plan_client,
    spare_cores,
)
from autotune.workload.trace import Request

SPAN_S = 10.0
"""The load is that of the busiest span of this length: answers take seconds to come, so a shorter
peak of arrivals is no peak of events."""
_LOCAL = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104 - compared with, not bound


def client_plan(
    requests: Sequence[Request],
    url: str,
    folder: Path,
    *,
    clock: Clock,
    stop: StopSignal,
    cores: Sequence[int] | None = None,
) -> ClientPlan:
    """Workers and cores for a trace against the server at `url`. `cores`: those that are shared
    with its engine (None: all that this process may use).

    Measures this machine once a day (about 3 s, in `folder`), and only if the load is worth it.
    Raises Interrupted.
    """
    return plan_client(
        expected_chunks_per_s(requests),
        lambda: capacity_here(folder, clock=clock, stop=stop),
        cores=own_cores() if cores is None else cores,
        local=(urlsplit(url).hostname or "") in _LOCAL,
    )


def expected_chunks_per_s(requests: Sequence[Request]) -> float:
    """Output tokens per second in the busiest `SPAN_S` seconds of due times, if the server keeps
    up. Each token may come as an event of its own.
    """
    ordered = sorted(requests, key=lambda request: request.at_s)
    most = tokens = first = 0
    for last in ordered:
        tokens += last.output_tokens
        while last.at_s - ordered[first].at_s >= SPAN_S:
            tokens -= ordered[first].output_tokens
            first += 1
        most = max(most, tokens)
    return most / SPAN_S


def stronger(plan: ClientPlan, cores: Sequence[int] | None = None) -> ClientPlan:
    """Twice the workers, as far as there are cores to spare; else the same plan. `cores` as in
    `client_plan`.
    """
    cores = tuple(own_cores() if cores is None else cores)
    workers = max(plan.workers, min(2 * plan.workers, spare_cores(len(cores))))
    return replace(plan, workers=workers, cores=cores[-workers:] if plan.cores else ())


def shares(slots: int) -> list[tuple[int, ...] | None]:
    """The cores of each slot, none in two of them: its engine's client takes some of these. None
    for a single slot (all are its own).
    """
    if slots == 1:
        return [None]
    cores = own_cores()
    each = len(cores) // slots
    if each == 0:
        # Fewer cores than slots: nothing to share out, so nobody is pinned
        return [cores[index % len(cores) :][:1] for index in range(slots)]
    return [cores[index * each : (index + 1) * each] for index in range(slots)]
