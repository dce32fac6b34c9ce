"""Changes of a recording's arrivals that a user can ask for: thinning, spreading, scaling."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autotune.workload.reader import ordered
from autotune.workload.trace import Request, Trace

IDENTICAL_SHARE = 0.3
"""A larger share of arrivals that are not alone at their instant suggests a bucketed recording."""
LEAST_BUCKET_S = 0.1
"""Shorter steps are the resolution of a clock, not buckets."""
LEAST_GAPS = 4
"""Fewer gaps between distinct stamps show no grid."""
STEPS_SHARE = 0.9
"""Share of the gaps between distinct stamps that must be whole multiples of a bucket."""
STEP_TOLERANCE_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Arrivals rounded to a grid: its step in seconds, the share that is not alone at its stamp."""

    step_s: float
    identical: float


def find_buckets(requests: Sequence[Request]) -> Buckets | None:
    """The grid that the arrivals were rounded to; None if they do not lie on one.

    The step is the most common gap between distinct stamps; nearly all gaps must be multiples of it
    (a millisecond or two off: Mooncake's 3 s buckets lie at 2.999 to 3.001 s). `requests` are in
    order of time.
    """
    stamps = Counter(request.at_s for request in requests)
    times = sorted(stamps)
    gaps = [round(later - sooner, 2) for sooner, later in pairwise(times)]
    if len(gaps) < LEAST_GAPS:
        return None
    step_s = Counter(gaps).most_common(1)[0][0]
    if step_s < LEAST_BUCKET_S:
        return None
    if sum(_is_multiple(gap, step_s) for gap in gaps) < STEPS_SHARE * len(gaps):
        return None
    crowded = sum(count for count in stamps.values() if count > 1)
    return Buckets(step_s=step_s, identical=crowded / len(requests))


def _is_multiple(gap: float, step_s: float) -> bool:
    return abs(gap - step_s * max(1, round(gap / step_s))) <= max(STEP_TOLERANCE_S, 0.005)


def spread_arrivals(trace: Trace, *, seed: int) -> tuple[Trace, str]:
    """(the trace with bucketed arrivals drawn uniformly within their bucket, what was done).

    Requests keep their order, so the turns of a session do too. A trace whose arrivals lie on no
    grid is returned as it is.
    """
    buckets = find_buckets(trace.requests)
    if buckets is None:
        return trace, "spread_arrivals: the arrivals are not bucketed; they stay as recorded"
    rng = random.Random(f"spread {seed}")
    spread: list[Request] = []
    requests = trace.requests
    low = 0
    while low < len(requests):
        start_s = requests[low].at_s
        high = low
        while high < len(requests) and requests[high].at_s == start_s:
            high += 1
        room_s = buckets.step_s
        if high < len(requests):
            room_s = min(room_s, requests[high].at_s - start_s)
        offsets = sorted(rng.random() * room_s for _ in range(high - low))
        spread += [
            replace(request, at_s=start_s + offset)
            for request, offset in zip(requests[low:high], offsets, strict=True)
        ]
        low = high
    note = (
        f"arrivals were recorded in steps of {buckets.step_s:g} s ({buckets.identical:.0%} share "
        f"their instant); they are spread evenly within their step, seed {seed}"
    )
    return replace(trace, requests=ordered(spread)), note


def bucket_note(trace: Trace) -> str | None:
    """The suggestion to spread arrivals, where a replay as recorded would send bursts that were
    never seen; None otherwise.
    """
    buckets = find_buckets(trace.requests)
    if buckets is None or buckets.identical <= IDENTICAL_SHARE:
        return None
    return (
        f"{buckets.identical:.0%} of the arrivals share their instant with another, in steps of "
        f"{buckets.step_s:g} s: the recording is rounded, and replays as bursts that never "
        "happened; `workload: {spread_arrivals: true}` spreads them"
    )


def thinned(trace: Trace, share: float, *, seed: int) -> Trace:
    """`share` (0 to 1) of the recording's independent requests and whole sessions, at least one,
    chosen at random by the seed; arrival times and session gaps stay.
    """
    if not 0 < share <= 1:
        raise ValueError("share must be above 0 and at most 1")
    if share == 1:
        return trace
    units = list(dict.fromkeys(_unit(i, r) for i, r in enumerate(trace.requests)))
    count = max(1, round(share * len(units)))
    kept = set(random.Random(f"thin {seed}").sample(units, count))
    requests = (r for i, r in enumerate(trace.requests) if _unit(i, r) in kept)
    return replace(trace, requests=ordered(requests))


def _unit(index: int, request: Request) -> str | int:
    """What is kept or left out together: a session, or a request without one."""
    return index if request.session is None else request.session


def scaled(trace: Trace, time_scale: float) -> Trace:
    """Arrivals faster by `time_scale`; the gaps of sessions are people's and stay."""
    if time_scale == 1.0:
        return trace
    requests = tuple(replace(r, at_s=round(r.at_s / time_scale, 6)) for r in trace.requests)
    return replace(trace, requests=requests)
