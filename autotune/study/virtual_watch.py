"""When a watched replay in virtual time would have been ended: the same rule, asked afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autotune.measure.metrics import FORMULAS
from autotune.measure.quantiles import rank_of
from autotune.replay.glimpse import LOOK_EVERY_S, Glimpse, OpenRequest
from autotune.replay.records import RequestRecord
from autotune.search.early_stop import Bar

Ask = Callable[[], Callable[[Glimpse], bool]]
"""Begins a new watch over the same replay."""


def ended_at(
    records: Sequence[RequestRecord],
    until_s: float,
    ask: Ask,
    *,
    bars: Sequence[Bar],
    exact: bool,
) -> float | None:
    """The first look at which the replay is hopeless, in seconds; None: it runs to its end.

    `records`: of the replay as it runs to `until_s`. `bars`: what the rule looks at. `exact`: the
    rule is never wrong, so what is hopeless once stays so, and the first look is searched for; the
    last watch that was begun then is the one that ended the replay.
    """
    looks = int(until_s / LOOK_EVERY_S)
    if not exact:
        watch, before_s = ask(), -1.0
        for look in range(1, looks + 1):
            at_s = look * LOOK_EVERY_S
            if watch(_glimpse(records, before_s, at_s)):
                return at_s
            before_s = at_s
        return None

    def hopeless(look: int) -> bool:
        return ask()(_glimpse(records, -1.0, min(until_s, look * LOOK_EVERY_S)))

    if not hopeless(looks + 1):
        return None
    low, high = 0, looks + 1
    # Asking is dear: the first two looks asked are those around the likely end
    likely_s = min((_likely_s(records, bar) for bar in bars), default=0.0)
    likely = math.ceil(min(likely_s, until_s) / LOOK_EVERY_S)
    tries = [look for look in (likely, likely - 1) if low < look < high]
    last = high
    while high - low > 1:
        look = tries.pop(0) if tries else (low + high) // 2
        if not low < look < high:
            continue
        last = look
        low, high = (low, look) if hopeless(look) else (look, high)
    if high > looks:
        return None
    if last != high:
        hopeless(high)
    return high * LOOK_EVERY_S


def _likely_s(records: Sequence[RequestRecord], bar: Bar) -> float:
    """When so many requests are known to be over a limit that its percentile must be; infinite for
    other metrics, and where it never is.
    """
    family, statistic = bar.metric.family, bar.metric.statistic or ""
    if family not in ("ttft", "tpot", "e2e") or not statistic.startswith("p"):
        return math.inf
    measured = [record for record in records if record.measured]
    known = sorted(_over_s(record, family, bar.limit) for record in measured)
    needed = len(measured) - rank_of(float(statistic[1:]), len(measured)) + 1
    return known[needed - 1]


def _over_s(record: RequestRecord, family: str, limit_s: float) -> float:
    """When it is known that a request is over a limit; infinite where it is not."""
    value = math.inf if record.failure is not None else FORMULAS[family](record)
    if value is None or value <= limit_s:
        return math.inf
    end_s = math.inf if record.end_s is None else record.end_s
    begin_s, times = record.due_s, 1
    if family == "tpot":
        begin_s = math.inf if record.first_token_s is None else record.first_token_s
        times = record.planned_output_tokens - record.first_event_tokens
    return min(end_s, begin_s + limit_s * times)


def _glimpse(records: Sequence[RequestRecord], after_s: float, at_s: float) -> Glimpse:
    ended = [r for r in records if r.end_s is not None and after_s < r.end_s <= at_s]
    running = [
        r
        for r in records
        if r.sent_s is not None and r.sent_s <= at_s and (r.end_s is None or r.end_s > at_s)
    ]
    return Glimpse(at_s=at_s, ended=ended, open=[_open(record, at_s) for record in running])


def _open(record: RequestRecord, at_s: float) -> OpenRequest:
    answering = record.first_token_s is not None and record.first_token_s <= at_s
    return OpenRequest(
        index=record.index,
        due_s=record.due_s,
        sent_s=record.sent_s,
        first_s=record.first_token_s if answering and record.first_token_s is not None else at_s,
        last_s=at_s,
        answering=answering,
        unfinished=record.planned_output_tokens > 1,
        first_event_tokens=record.first_event_tokens,
    )
