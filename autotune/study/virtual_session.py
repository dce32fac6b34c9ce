"""Measuring an engine in virtual time: `measuring.MeasureSession` with a simulated replay.

Plans, records, metrics, validity and score are the real ones; only sending is replaced. What is
missing: the client's own lag, HTTP, and the scraping of `/metrics` (the engine's counts are exact).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from autotune.clock import Clock, StopSignal
from autotune.launch.launcher import RunningServer
from autotune.replay.calibration import ClientPlan
from autotune.replay.glimpse import Glimpse
from autotune.replay.options import ReplayOptions
from autotune.replay.parquet import write_records
from autotune.replay.records import (
    PlannedRequest,
    ReplayProgress,
    ReplayResult,
    RequestRecord,
)
from autotune.replay.schedule import closed_loop
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.traffic import Traffic, VirtualArrival
from autotune.study.measurer import Measurer
from autotune.study.measuring import WARM_UP_AT_ONCE, MeasureSession, MeasureSettings
from autotune.study.virtual_records import (
    HopelessAt,
    WholeReplay,
    ended_replay,
    telemetry_of,
    whole_replay,
)
from autotune.study.virtual_server import VirtualServer
from autotune.study.virtual_watch import ended_at
from autotune.workload.arrivals import scaled
from autotune.workload.prompts import PromptBuilder
from autotune.workload.trace import Request, Trace

_SALT = "virtual"
"""Another salt gives other tokens, but the same lengths and the same sharing."""


class Lengths(PromptBuilder):
    """Prompts that have a length and no content: what they share is known from `Shelf`."""

    def tokens(self, request: Request) -> list[int]:
        """So many zeros."""
        return [0] * request.input_tokens


class Shelf:
    """Traffics that were prepared for replaying, by held-out or not. Studies of one workload may
    share it.
    """

    def __init__(self) -> None:
        self._kept: dict[bool, Traffic] = {}

    def get(self, held_out: bool, make: Callable[[], Traffic]) -> Traffic:
        """The prepared traffic, made at the first call."""
        if held_out not in self._kept:
            self._kept[held_out] = make()
        return self._kept[held_out]


@dataclass(slots=True, kw_only=True)
class VirtualSession(MeasureSession):
    """One measurement of one engine in virtual time. Its salt is the same for all."""

    server: VirtualServer
    shelf: Shelf
    whole: Trace
    held_out: bool
    _primed_s: float = 0.0

    def warm_up(self) -> None:
        """As the real one: requests that are never counted, then the prefixes that the window would
        have found in the cache.
        """
        strangers, primers = self._warm_up_plans()
        alone = Traffic(
            _arrivals(closed_loop(strangers, WARM_UP_AT_ONCE), "stranger "), alike=False
        )
        traffics = {"warmup": alone, "primed": self._known(self._primers(primers))}
        for name, traffic in traffics.items():
            self._sent_before[name] = len(traffic.arrivals)
            self._primed_s = self.server.replay(traffic).end_s if traffic.arrivals else 0.0
            self._warmed_s += self._primed_s
            self.clock.sleep(self._primed_s)

    def replay(
        self,
        *,
        deadline_s: float | None,
        on_progress: Callable[[ReplayProgress], None] | None,
    ) -> ReplayResult:
        """Replay in virtual time; records to parquet."""
        del on_progress
        planned = self._requests()
        options = self._options()
        if deadline_s is not None:
            drain_s = max(1.0, min(options.drain_timeout_s, deadline_s - self.expected_s))
            options = replace(options, drain_timeout_s=drain_s)
        whole = self._whole(planned, options)
        result = ended_replay(
            planned, whole, options=options, hopeless_at=self._hopeless_at(planned, options)
        )
        self._telemetry = telemetry_of(whole, result, self.settings.metric_names)
        self.clock.sleep(result.wall_s)
        if result.aborted == "server_died":
            self.server.die()
        self._write(result)
        return result

    def _write(self, result: ReplayResult) -> None:
        write_records(self.folder / "requests.parquet", result.records)

    def ask(
        self, requests: Sequence[Request], after: Sequence[int | None], *, patience_s: float
    ) -> Sequence[RequestRecord]:
        """As the real one; nothing comes too late."""
        del patience_s
        planned = self._questions(requests, after)
        run = self.server.replay(Traffic(_arrivals(planned, "question "), alike=False))
        self.clock.sleep(run.end_s)
        return whole_replay(planned, run, options=self._options()).records

    def _requests(self) -> list[PlannedRequest]:
        """The requests of a replay: the window's, and the load behind it."""
        planned = self._plan(self.trace.requests, salt=self.salt)
        return planned + self._background(len(planned))

    def _whole(self, planned: Sequence[PlannedRequest], options: ReplayOptions) -> WholeReplay:
        """The replay to its end. The cache is warmed in the same run, well before its begin."""
        primers = self._primers(self._warm_up_plans()[1])
        begin_s = 2 * self._primed_s
        run = self.server.replay(self._known([*primers, *_arrivals(planned, "", begin_s)]))
        run = replace(run, times=run.times[len(primers) :])
        return whole_replay(planned, run, begin_s=begin_s, options=options)

    def _hopeless_at(
        self, planned: Sequence[PlannedRequest], options: ReplayOptions
    ) -> HopelessAt | None:
        """When this replay is given up. What the server itself tells is not looked at meanwhile."""
        watch = self.watch
        if watch is None:
            return None
        exact = watch.mode == "exact"

        def ask() -> Callable[[Glimpse], bool]:
            hopeless = self._hopeless(planned, dict, options)
            assert hopeless is not None
            return hopeless

        return lambda records, end_s: ended_at(records, end_s, ask, bars=watch.bars, exact=exact)

    def _builder(self, salt: str) -> PromptBuilder:
        return Lengths(self.settings.vocab_size, salt, self.trace.block_size)

    def _primers(self, plans: Sequence[PlannedRequest]) -> list[VirtualArrival]:
        return _arrivals(closed_loop(plans, 1), "primer ")

    def _known(self, arrivals: Sequence[VirtualArrival]) -> Traffic:
        return self.shelf.get(self.held_out, self._prepare).again(arrivals)

    def _prepare(self) -> Traffic:
        """All requests that any measurement of this window may send, with their prompts."""
        block_size, vocab = self.whole.block_size, self.settings.vocab_size
        requests = list(self.whole.requests)
        salts = {"primer ": _SALT, "": _SALT, "after": f"{_SALT}/after"}
        groups = {"primer ": list(self.priming), "": requests, "after": requests}
        found = []
        for name, group in groups.items():
            builder = PromptBuilder(vocab, salts[name], block_size)
            first, prefix = (len(requests), "") if name == "after" else (0, name)
            found += [
                VirtualArrival(
                    at_s=0.0,
                    request=SimRequest(
                        id=f"{prefix}{first + i}",
                        prompt=builder.tokens(request),
                        output_tokens=request.output_tokens,
                    ),
                )
                for i, request in enumerate(group)
            ]
        return Traffic(found)


def _arrivals(
    planned: Sequence[PlannedRequest], prefix: str, begin_s: float = 0.0
) -> list[VirtualArrival]:
    return [
        VirtualArrival(
            at_s=begin_s + p.due_s,
            request=SimRequest(
                id=f"{prefix}{p.index}", prompt=p.prompt, output_tokens=p.output_tokens
            ),
            after=None if p.after is None else f"{prefix}{p.after}",
            gap_s=p.gap_s,
        )
        for p in planned
    ]


class VirtualMeasurer(Measurer):
    """Makes virtual sessions, of the given kind."""

    def __init__(
        self,
        settings: MeasureSettings,
        shelf: Shelf,
        *,
        clock: Clock,
        stop: StopSignal,
        kind: type[VirtualSession] = VirtualSession,
    ) -> None:
        super().__init__(settings, clock=clock, stop=stop)
        self._shelf = shelf
        self._kind = kind
        self._traces: dict[tuple[bool, float], Trace] = {}

    def session(
        self,
        server: RunningServer,
        trace: Trace,
        folder: Path,
        startup_s: float | None,
        *,
        salt: str,
        held_out: bool = False,
        multiplier: float = 1.0,
    ) -> VirtualSession:
        """See `Measurer.session`; the server is a virtual one."""
        assert isinstance(server, VirtualServer)
        key = held_out, multiplier
        if key not in self._traces:
            self._traces[key] = scaled(trace, multiplier)
        real = super().session(
            server, self._traces[key], folder, startup_s, salt=_SALT, held_out=held_out
        )
        known = {f.name: getattr(real, f.name) for f in fields(MeasureSession) if f.init}
        return self._kind(**known, server=server, shelf=self._shelf, whole=trace, held_out=held_out)

    def _client(
        self, trace: Trace, url: str, folder: Path, traffic: tuple[bool, float]
    ) -> ClientPlan:
        """Nothing is sent, so nothing is measured about this machine."""
        return ClientPlan()
