"""When each request leaves, and through which worker. Pure.

One absolute schedule for all workers: request times never depend on when an earlier one was sent.
A turn of a session waits for its predecessor's answer, so a session stays with one worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.replay.records import PlannedRequest, RequestRecord


def check_plan(requests: Sequence[PlannedRequest]) -> None:
    """Raise ValueError unless indices are unique and every `after` names another request of the
    plan without a circle.
    """
    by_index = {request.index: request for request in requests}
    if len(by_index) != len(requests):
        raise ValueError("two planned requests have the same index")
    settled: set[int] = set()
    for request in requests:
        path: set[int] = set()
        here: PlannedRequest | None = request
        while here is not None and here.index not in settled:
            if here.index in path:
                raise ValueError(f"request {here.index} waits for itself")
            path.add(here.index)
            if here.after is None:
                break
            if here.after not in by_index:
                raise ValueError(
                    f"request {here.index} waits for {here.after}, which is not planned"
                )
            here = by_index[here.after]
        settled |= path


def partition(requests: Sequence[PlannedRequest], workers: int) -> list[list[PlannedRequest]]:
    """`workers` interleaved shares of the schedule, each ordered by due time.

    What belongs together (one session, or linked by `after`) counts as one piece and stays whole;
    pieces are dealt round by round in order of their first due time, so that no worker holds a
    stretch of the schedule to itself.
    """
    if workers < 1:
        raise ValueError("a replay needs at least one worker")
    pieces: dict[int, list[PlannedRequest]] = {}
    for request, root in zip(requests, _pieces(requests), strict=True):
        pieces.setdefault(root, []).append(request)
    ordered = sorted(pieces.values(), key=lambda piece: min((r.due_s, r.index) for r in piece))
    shares: list[list[PlannedRequest]] = [[] for _ in range(workers)]
    for place, piece in enumerate(ordered):
        shares[place % workers].extend(piece)
    return [sorted(share, key=lambda r: (r.due_s, r.index)) for share in shares]


def _pieces(requests: Sequence[PlannedRequest]) -> list[int]:
    """For each request the representative index of the piece it belongs to (disjoint sets)."""
    parent = {request.index: request.index for request in requests}

    def find(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    of_session: dict[str, int] = {}
    for request in requests:
        if request.after is not None:
            parent[find(request.index)] = find(request.after)
        if request.session is not None:
            first = of_session.setdefault(request.session, request.index)
            parent[find(request.index)] = find(first)
    return [find(request.index) for request in requests]


def horizon_s(requests: Sequence[PlannedRequest]) -> float:
    """The latest of `due_times_s`; 0 for an empty plan."""
    return max(due_times_s(requests).values(), default=0.0)


def due_times_s(requests: Sequence[PlannedRequest]) -> dict[int, float]:
    """Per index the seconds after the start at which it is due if answers take no time."""
    by_index = {request.index: request for request in requests}
    known: dict[int, float] = {}
    for request in requests:
        chain = []
        here = request
        while here.index not in known and here.after is not None:
            chain.append(here)
            here = by_index[here.after]
        due = known.setdefault(here.index, here.due_s)
        for link in reversed(chain):
            due = known[link.index] = max(link.due_s, due + link.gap_s)
    return known


def window_of(records: Sequence[RequestRecord]) -> tuple[float, float]:
    """(start, end) of the measured requests by due time, seconds.

    N requests at an even rate r span N/r, so the end lies one mean gap after the last due time.
    When all are due at once there is no rate, and the end is the last measured answer's.
    """
    measured = [record for record in records if record.measured]
    if not measured:
        return (0.0, 0.0)
    first = min(record.due_s for record in measured)
    last = max(record.due_s for record in measured)
    if last > first:
        return (first, last + (last - first) / (len(measured) - 1))
    ends = [record.end_s for record in measured if record.end_s is not None]
    return (first, max(ends, default=first))


def closed_loop(requests: Sequence[PlannedRequest], concurrency: int) -> list[PlannedRequest]:
    """The same requests as a closed loop of `concurrency` users: each leaves as soon as the one
    `concurrency` places before it has been answered. Indices become places; none is measured.
    """
    return [
        replace(
            request,
            index=place,
            due_s=0.0,
            after=place - concurrency if place >= concurrency else None,
            gap_s=0.0,
            session=None,
            measured=False,
        )
        for place, request in enumerate(requests)
    ]
