"""The best value that a metric of a running replay can still end with. Exact, not statistical.

The argument is one of counting over the *planned* requests. A percentile of N samples is the k-th
smallest: it is above a limit as soon as N - k + 1 requests are certain to be above it. Certain are
finished requests, failures (+infinity) and open ones by what they have waited so far; of all others
the best is assumed. Requests whose latency is not defined leave the sample, and one that may yet
leave it is best assumed to stay with a latency of 0: a sample more below the limit moves the rank
by at most one. The formulas are those of `metrics.py`, applied to the best that a request can be.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.measure.metrics import FORMULAS, meets, tokens_inside
from autotune.measure.quantiles import percentile, rank_of
from autotune.replay.glimpse import Glimpse, OpenRequest
from autotune.replay.records import PlannedRequest, RequestRecord
from autotune.replay.schedule import due_times_s, window_of
from autotune.spec.vocabulary import STATISTICS, MetricName

RISING = frozenset({"kv_usage_max", "preemptions", "gpu_memory_peak", "startup_seconds"})
"""Metrics of the server that can only grow, so what was seen is the best that is possible."""
_PERCENT = {name: float(name[1:]) for name in STATISTICS if name.startswith("p")}
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many of the `planned` requests are known to be `over` a limit, and how many put its
    percentile out of reach.
    """

    over: int
    needed: int
    planned: int


class Outlook:
    """What is known of one running replay. Give it every glimpse; ask for what is possible."""

    def __init__(self, planned: Sequence[PlannedRequest], limits: Mapping[str, float]) -> None:
        """`planned`: every request of the replay. `limits`: latency family -> seconds, the
        per-request limits of goodput.
        """
        self._planned = {request.index: request for request in planned}
        self._measured = {request.index for request in planned if request.measured}
        self._limits = dict(limits)
        self._ended: dict[int, RequestRecord] = {}
        self._open: list[OpenRequest] = []
        self._values: dict[str, list[float]] = {family: [] for family in FORMULAS}
        self._undefined = dict.fromkeys(FORMULAS, 0)
        self._failed = 0
        self._missed = 0
        self._server: Mapping[str, float | None] = {}
        self.at_s = 0.0
        follows = any(self._planned[index].after is not None for index in self._measured)
        self._window_s, self._exact_window = _window(planned), not follows

    @property
    def planned(self) -> int:
        """How many measured requests there are in all."""
        return len(self._measured)

    @property
    def ended(self) -> int:
        """How many measured requests have ended, well or badly."""
        return sum(index in self._measured for index in self._ended)

    @property
    def failed(self) -> int:
        """How many measured requests have failed."""
        return self._failed

    def take(self, glimpse: Glimpse, server: Mapping[str, float | None]) -> None:
        """Take over what is new. `server`: what telemetry knows so far, by metric name."""
        for record in glimpse.ended:
            self._ended[record.index] = record
            if record.index in self._measured:
                self._count(record)
        self._open = [request for request in glimpse.open if request.index not in self._ended]
        self._server = server
        self.at_s = max(self.at_s, glimpse.at_s)

    def _count(self, record: RequestRecord) -> None:
        self._failed += record.failure is not None
        self._missed += not meets(record, self._limits)
        for family, formula in FORMULAS.items():
            value = math.inf if record.failure is not None else formula(record)
            if value is None:
                self._undefined[family] += 1
            else:
                self._values[family].append(value)

    # ---- what is possible

    def best(self, metric: MetricName) -> float | None:
        """The best final value still possible, in base units: the smallest where lower is better,
        the largest where higher is. None where nothing is known; +infinity where failures leave no
        finite one.
        """
        if metric.family in FORMULAS:
            return self._best_latency(metric)
        if metric.name in RISING:
            return self._server.get(metric.name)
        special: Mapping[str, Callable[[], float | None]] = {
            "success_rate": self._best_success,
            "goodput": self._best_goodput,
            "request_throughput": self._best_requests,
            "output_throughput": self._best_tokens,
        }
        ask = special.get(metric.name)
        return None if ask is None or not self._measured else ask()

    def tally(self, metric: MetricName, limit: float) -> Tally | None:
        """How the counting stands for a percentile of a latency; None for any other metric."""
        if metric.family not in FORMULAS or metric.statistic not in _PERCENT:
            return None
        known = self._known(metric.family)
        count = self.planned - self._undefined[metric.family]
        if count < 1:
            return None
        needed = count - rank_of(_PERCENT[metric.statistic], count) + 1
        return Tally(over=sum(v > limit for v in known), needed=needed, planned=self.planned)

    def seen(self, metric: MetricName) -> float | None:
        """The metric over the requests that are due so far, open ones with what they have waited:
        of this part of the replay the least that it can be. Where a part has no value of its own,
        the best that is possible.
        """
        if metric.family in FORMULAS and metric.statistic in _PERCENT:
            known = self._known(metric.family)
            return percentile(known, _PERCENT[metric.statistic]) if known else None
        if metric.name == "success_rate":
            return 1 - self._failed / self.ended if self.ended else None
        return self.best(metric)

    def waits(self) -> list[tuple[float, float]]:
        """(due, ttft) in order of due times, up to the last request that has its first token; of
        those before it that have not, what they have waited. Failures are left out. Seconds.
        """
        found = [
            (r.due_s, r.first_token_s - r.due_s, True)
            for r in self._ended_measured()
            if r.failure is None and r.first_token_s is not None
        ]
        found += [(r.due_s, r.first_s - r.due_s, r.answering) for r in self._open_measured()]
        frontier = max((due for due, _, served in found if served), default=-math.inf)
        return sorted((due, wait) for due, wait, _ in found if due <= frontier)

    @property
    def longest_s(self) -> float:
        """The longest that any measured request took, or has taken so far."""
        ended = [r.end_s - r.due_s for r in self._ended_measured() if r.end_s is not None]
        return max([*ended, *(self.at_s - r.due_s for r in self._open_measured())], default=0.0)

    def in_flight(self) -> list[int]:
        """How many measured requests each one found in flight when it was due, in that order."""
        ended = self._ended_measured()
        ends = sorted(r.end_s for r in ended if r.end_s is not None)
        dues = sorted([*(r.due_s for r in ended), *(r.due_s for r in self._open_measured())])
        return [before - bisect_right(ends, due) for before, due in enumerate(dues)]

    # ---- latencies

    def _best_latency(self, metric: MetricName) -> float | None:
        if metric.statistic == "max":
            finite = [v for v in self._values[metric.family] if math.isfinite(v)]
            return max(finite, default=None)
        if metric.statistic == "mean":
            return self._best_mean(metric.family)
        return self.with_rest_at(metric, 0.0)

    def with_rest_at(self, metric: MetricName, rest: float) -> float | None:
        """A percentile if every request that nothing is known of took `rest` (seconds).

        With 0 the best that is possible. None where no request can have a value.
        """
        assert metric.statistic is not None
        known = self._known(metric.family)
        count = self.planned - self._undefined[metric.family]
        unknown = count - len(known)
        if count < 1:
            return None
        if rest <= 0 and rank_of(_PERCENT[metric.statistic], count) <= unknown:
            return 0.0
        return percentile([*known, *([rest] * unknown)], _PERCENT[metric.statistic])

    def _best_mean(self, family: str) -> float | None:
        """Over successes, so whatever would raise it may fail instead."""
        finite = [v for v in self._values[family] if math.isfinite(v)]
        if not finite:
            return None
        waited = self._waited(family)
        unknown = self.planned - self._undefined[family] - len(self._values[family]) - len(waited)
        total, count = math.fsum(finite), len(finite) + unknown
        heapq.heapify(waited)
        while waited and waited[0] * count < total:
            total, count = total + heapq.heappop(waited), count + 1
        return total / count * (1 - _ROUNDING)

    def _known(self, family: str) -> list[float]:
        return self._values[family] + self._waited(family)

    def _waited(self, family: str) -> list[float]:
        """Of each open request that is sure to have a latency, the least that it can be."""
        # Before it has ended, a request is sure to have a `tpot` only if more tokens must come;
        # of `chunk_gap` nothing is sure
        sure = [
            request
            for request in self._open_measured()
            if family in ("ttft", "e2e")
            or (family == "ttft_service" and request.sent_s is not None)
            or (family == "tpot" and request.answering and request.unfinished)
        ]
        values = (FORMULAS[family](self._at_best(request)) for request in sure)
        return [value for value in values if value is not None]

    # ---- shares and rates

    def _best_success(self) -> float:
        return (self.planned - self._failed) / self.planned

    def _best_goodput(self) -> float | None:
        lost = self._missed + sum(
            not meets(self._at_best(request), self._limits) for request in self._open_measured()
        )
        return self._rate(self.planned - lost)

    def _best_requests(self) -> float | None:
        if not self._exact_window:
            return None
        start, end = self._window_s
        done = sum(
            r.failure is None and r.last_token_s is not None and start <= r.last_token_s < end
            for r in self._ended.values()
        )
        return self._rate(
            done + sum(request.last_s < end for request in self._open) + self._later()
        )

    def _later(self) -> int:
        """Requests that nothing is known of, and that may yet end inside the window."""
        known = {*self._ended, *(request.index for request in self._open)}
        end = self._window_s[1]
        return sum(r.due_s < end for index, r in self._planned.items() if index not in known)

    def _best_tokens(self) -> float | None:
        if not self._exact_window:
            return None
        start, end = self._window_s
        known = {*self._ended, *(request.index for request in self._open)}
        tokens = sum(
            tokens_inside(r, start, end) for r in self._ended.values() if r.failure is None
        )
        for request in self._open:
            planned = self._planned[request.index].output_tokens
            if request.answering and request.unfinished and request.first_s >= start:
                tokens += tokens_inside(self._at_best(request), start, end)
            elif request.first_s < end:
                tokens += planned
        tokens += sum(
            r.output_tokens for i, r in self._planned.items() if i not in known and r.due_s < end
        )
        return self._rate(tokens)

    def _rate(self, count: float) -> float | None:
        start, end = self._window_s
        if end <= start:
            return None
        return count / (end - start) * (1 + _ROUNDING)

    # ---- requests

    def _ended_measured(self) -> list[RequestRecord]:
        return [record for index, record in self._ended.items() if index in self._measured]

    def _open_measured(self) -> list[OpenRequest]:
        return [request for request in self._open if request.index in self._measured]

    def _at_best(self, request: OpenRequest) -> RequestRecord:
        """The record that an open request would have if all went as well as it still can. One that
        has had its last token for all that is known may have a `tpot` that is not defined.
        """
        planned = self._planned[request.index]
        tokens = planned.output_tokens if request.unfinished else request.first_event_tokens
        return RequestRecord(
            index=request.index,
            due_s=request.due_s,
            measured=planned.measured,
            planned_input_tokens=0,
            planned_output_tokens=planned.output_tokens,
            sent_s=request.sent_s,
            first_token_s=request.first_s,
            last_token_s=request.last_s,
            output_tokens=tokens,
            first_event_tokens=request.first_event_tokens,
        )


def _window(planned: Sequence[PlannedRequest]) -> tuple[float, float]:
    """The measured window if answers take no time: it ends no earlier than this. Empty where the
    first measured request waits for another, for then it may begin later.
    """
    dues = due_times_s(planned)
    first = min((p for p in planned if p.measured), key=lambda p: dues[p.index], default=None)
    if first is None or first.after is not None:
        return 0.0, 0.0
    return window_of(
        [
            RequestRecord(
                index=request.index, due_s=dues[request.index], measured=request.measured,
                planned_input_tokens=0, planned_output_tokens=request.output_tokens,
            )
            for request in planned
        ]
    )  # fmt: skip
