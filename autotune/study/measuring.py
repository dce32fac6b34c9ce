"""Measuring one running server: warm-up, priming, replay, judgement.

Used by every trial and by `autotune replay`, so both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.measure.gpu_reader import nvml_reader
from autotune.measure.host_reader import HostReader
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Measured, Unmeasurable
from autotune.measure.scoring import request_limits, score
from autotune.measure.summary import measure
from autotune.measure.telemetry import Telemetry
from autotune.replay.calibration import ClientPlan
from autotune.replay.glimpse import Glimpse
from autotune.replay.options import CHAT, COMPLETIONS
from autotune.replay.parquet import write_records
from autotune.replay.records import (
    PlannedRequest,
    ReplayProgress,
    ReplayResult,
    RequestRecord,
)
from autotune.replay.replayer import ReplayOptions, replay, warm_up
from autotune.spec.expressions import Constraint, Objective
from autotune.study.client import stronger
from autotune.study.watching import EarlyWatch, Server, given_up
from autotune.workload.prompts import PromptBuilder
from autotune.workload.trace import Request, Trace

WARM_UP_OUTPUT_TOKENS = 8
WARM_UP_REQUESTS = 8
"""How many requests `warmup: auto` sends: enough to touch the shapes of the traffic, from the
shortest prompt to the longest, without costing more than a few seconds."""
WARM_UP_AT_ONCE = 4
BACKGROUND_S = 30.0
"""Load goes on for at most so long after the window, until the last measured answer has ended."""
QUIET_S = 0.1
"""Between questions to an idle engine."""
LEAD_S = 0.5
"""Replay starts this long before the first due time, so that connections and loops are up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """What every measurement of a study has in common. `workers`: None lets them follow from the
    load and this machine's capacity. `cores`: None lets client and engine use all there are.
    """

    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]
    metric_names: Mapping[str, str]
    vocab_size: int
    special_ids: frozenset[int] = frozenset()
    warmup: int | None
    workers: int | None = None
    priming: Sequence[Request] = ()
    held_out_priming: Sequence[Request] = ()
    drain_s: float = 60.0
    api_key_env: str | None = None
    gpus: tuple[str, ...] | None = None
    cores: tuple[int, ...] | None = None


@dataclass(slots=True, kw_only=True)
class MeasureSession:
    """One measurement of one server, step by step."""

    server_url: str
    model: str
    alive: Callable[[], bool]
    trace: Trace
    folder: Path
    startup_s: float | None
    salt: str
    settings: MeasureSettings
    clock: Clock
    stop: StopSignal
    priming: Sequence[Request] = ()
    engine: str | None = None
    max_num_seqs: int | None = None
    client: ClientPlan = field(default_factory=ClientPlan)
    watch: EarlyWatch | None = None
    repeated_because: tuple[str, ...] = ()
    _sent_before: dict[str, int] = field(default_factory=dict)
    _warmed_s: float = 0.0

    @property
    def expected_s(self) -> float:
        """How long the replay takes if the server keeps up."""
        return self.trace.duration_s + LEAD_S + 1.0

    def warm_up(self) -> None:
        """Send requests that are never counted: first strangers that wake the engine's kernels,
        then the prefixes that the window would have found in the cache.
        """
        strangers, primers = self._warm_up_plans()
        at_once = WARM_UP_AT_ONCE
        for name, batch, together in (("warmup", strangers, at_once), ("primed", primers, 1)):
            if batch:
                answered = warm_up(
                    batch,
                    url=self.server_url,
                    model=self.model,
                    options=replace(self._options(), route=COMPLETIONS),
                    directory=self.folder,
                    clock=self.clock,
                    stop=self.stop,
                    alive=self.alive,
                    concurrency=together,
                )
                self._warmed_s += answered.wall_s
            self._sent_before[name] = len(batch)

    def _warm_up_plans(self) -> tuple[list[PlannedRequest], list[PlannedRequest]]:
        """The strangers, and those whose prefixes shall be in the cache."""
        count = WARM_UP_REQUESTS if self.settings.warmup is None else self.settings.warmup
        chosen = spread(self.trace.requests, count)
        strangers = self._plan(
            [
                replace(r, at_s=0.0, output_tokens=min(r.output_tokens, WARM_UP_OUTPUT_TOKENS),
                        blocks=(), messages=())
                for r in chosen
            ],
            salt=f"{self.salt}/warm",
        )  # fmt: skip
        primers = [replace(r, at_s=0.0, output_tokens=1) for r in self.priming]
        return strangers, self._plan(primers, salt=self.salt)

    def replay(
        self,
        *,
        deadline_s: float | None,
        on_progress: Callable[[ReplayProgress], None] | None,
    ) -> ReplayResult:
        """Replay the trace at its recorded times; telemetry beside it; records to parquet."""
        planned = self._plan(self.trace.requests, salt=self.salt)
        planned += self._background(len(planned))
        options = self._options()
        if deadline_s is not None:
            drain_s = max(1.0, min(options.drain_timeout_s, deadline_s - self.expected_s))
            options = replace(options, drain_timeout_s=drain_s)
        telemetry = Telemetry(
            self.server_url,
            self.settings.metric_names,
            gpu=nvml_reader(self.settings.gpus),
            host=HostReader(),
        )
        telemetry.start()
        try:
            result = replay(
                planned,
                url=self.server_url,
                model=self.model,
                options=options,
                directory=self.folder,
                clock=self.clock,
                stop=self.stop,
                alive=self.alive,
                on_progress=on_progress,
                hopeless=self._hopeless(planned, telemetry.summary, options),
            )
        finally:
            self._telemetry = telemetry.stop()
            telemetry.write_parquet(self.folder / "telemetry.parquet")
        write_records(self.folder / "requests.parquet", result.records)
        return result

    def ask(
        self, requests: Sequence[Request], after: Sequence[int | None], *, patience_s: float
    ) -> Sequence[RequestRecord]:
        """The answers to requests that count for nothing: each is sent when the one at its place in
        `after` has been answered, or at once (None). What is not answered `patience_s` later fails.
        """
        return replay(
            self._questions(requests, after),
            url=self.server_url,
            model=self.model,
            options=replace(
                self._options(), route=COMPLETIONS, workers=1, drain_timeout_s=patience_s
            ),
            directory=self.folder,
            clock=self.clock,
            stop=self.stop,
            alive=self.alive,
        ).records

    def _questions(
        self, requests: Sequence[Request], after: Sequence[int | None]
    ) -> list[PlannedRequest]:
        planned = self._plan(requests, salt=f"{self.salt}/asked")
        return [replace(p, after=a, gap_s=QUIET_S) for p, a in zip(planned, after, strict=True)]

    def _hopeless(
        self, planned: Sequence[PlannedRequest], server: Server, options: ReplayOptions
    ) -> Callable[[Glimpse], bool] | None:
        if self.watch is None:
            return None
        drain_s = options.drain_timeout_s
        return self.watch.hopeless(planned, server, startup_s=self.startup_s, drain_s=drain_s)

    def _background(self, count: int) -> list[PlannedRequest]:
        """The beginning of the window once more after its end, never counted: without it the last
        measured requests would enjoy a server that empties. Other prompts, so no warm cache.
        """
        again = background_of(self.trace)
        return [
            replace(
                p,
                index=p.index + count,
                after=None if p.after is None else p.after + count,
                measured=False,
            )
            for p in self._plan(again, salt=f"{self.salt}/after")
        ]

    def measurement(self, result: ReplayResult) -> Measurement:
        """The numbers of a replay, with their validity."""
        constraints = self.settings.constraints
        context: dict[str, Json] = {
            "cache_state": "salted per measurement",
            "warmup_requests": self._sent_before.get("warmup", 0),
            "priming_requests": self._sent_before.get("primed", 0),
            "warmup_s": round(self._warmed_s, 3),
        }
        if self.engine is not None:
            context["engine"] = self.engine
        if self.max_num_seqs is not None:
            context["max_num_seqs"] = self.max_num_seqs
        for name in ("host_cpu_share", "host_steal_share"):
            context[name] = self._telemetry.get(name)
        if self.repeated_because:
            context["repeated_because"] = list(self.repeated_because)
        found = measure(
            result,
            telemetry=self._telemetry,
            startup_s=self.startup_s,
            limits=request_limits(constraints),
            limited=[
                *(c.metric for c in constraints),
                *(o.metric for o in self.settings.objectives),
            ],
            context=context,
            stopped=self.watch.end(result) if self.watch is not None else None,
        )
        return replace(found, client={**found.client, **self.client.facts()})

    def again(self, validity: Validity | None, *, left_s: float | None) -> MeasureSession | None:
        """A second session against the same server if the client spoiled this one: with more
        workers where there are cores to spare, and a cache state of its own. None if it is not the
        client's fault, if this is the second session, or if `left_s` seconds are too few.
        """
        if validity is None or not validity.client_limited or self.repeated_because:
            return None
        if left_s is not None and left_s < self.expected_s + self._warmed_s:
            return None
        return replace(
            self,
            client=stronger(self.client, self.settings.cores),
            salt=f"{self.salt}-again",
            repeated_because=validity.reasons,
            _sent_before={},
            _telemetry={},
            _warmed_s=0.0,
        )

    def judge(
        self, result: ReplayResult, *, baseline: Mapping[str, float | None] | None
    ) -> Measured | Infeasible | Unmeasurable:
        """A measurement seen through the objectives and limits; an invalid one has no score."""
        measurement = self.measurement(result)
        if measurement.validity.verdict == "invalid":
            return Unmeasurable(
                reason="measurement_invalid",
                message="; ".join(measurement.validity.reasons),
                measurement=measurement,
            )
        if self.watch is not None and (end := self.watch.end(result)) is not None:
            return given_up(end, measurement)
        verdict = score(
            measurement,
            self.settings.objectives,
            self.settings.constraints,
            measurement.metrics if baseline is None else baseline,
        )
        if isinstance(verdict, Infeasible):
            return verdict
        if isinstance(verdict, Unmeasurable):
            return replace(verdict, measurement=measurement)
        return Measured(measurement=measurement, score=verdict)

    _telemetry: Mapping[str, float | None] = field(default_factory=dict)

    def _options(self) -> ReplayOptions:
        return ReplayOptions(
            route=CHAT if self.trace.has_text else COMPLETIONS,
            workers=self.settings.workers or self.client.workers,
            cores=self.client.cores,
            cache_salt=self.salt,
            drain_timeout_s=self.settings.drain_s,
            api_key_env=self.settings.api_key_env,
        )

    def _plan(self, requests: Sequence[Request], *, salt: str) -> list[PlannedRequest]:
        """The requests as they will be sent. A later turn waits for the answer before it: then for
        the recorded gap, or where that is unknown until its recorded time.
        """
        builder = self._builder(salt)
        texts = self.trace.has_text and all(request.messages for request in requests)
        planned: list[PlannedRequest] = []
        last_of_session: dict[str, int] = {}
        for index, request in enumerate(requests):
            after = last_of_session.get(request.session) if request.session else None
            due_s = request.at_s + LEAD_S
            if after is not None and request.gap_s is not None:
                due_s = planned[after].due_s + request.gap_s
            planned.append(
                PlannedRequest(
                    index=index,
                    due_s=due_s,
                    prompt=() if texts else builder.tokens(request),
                    output_tokens=request.output_tokens,
                    after=after,
                    gap_s=request.gap_s or 0.0,
                    session=request.session,
                    turn=request.turn,
                    priority=request.priority,
                    messages=request.messages if texts else (),
                )
            )
            if request.session:
                last_of_session[request.session] = index
        return planned

    def _builder(self, salt: str) -> PromptBuilder:
        """What makes the prompts; another salt gives prompts that are in no cache."""
        return PromptBuilder(
            vocab_size=self.settings.vocab_size,
            salt=salt,
            block_size=self.trace.block_size,
            special_ids=self.settings.special_ids,
        )


def background_of(trace: Trace) -> list[Request]:
    """The load behind a window: its beginning once more, one mean gap after its end."""
    count = len(trace.requests)
    window_s = trace.duration_s * count / (count - 1) if count > 1 else 0.0
    if window_s <= 0:
        return []
    return [
        replace(r, at_s=r.at_s + window_s, session=f"{r.session}/after" if r.session else None)
        for r in trace.requests
        if r.at_s - trace.requests[0].at_s < BACKGROUND_S
    ]


def spread(requests: Sequence[Request], count: int) -> list[Request]:
    """`count` requests from the shortest prompt to the longest, evenly over the ranks."""
    if count <= 0 or not requests:
        return []
    ranked = sorted(requests, key=lambda r: r.input_tokens)
    if count == 1:
        return [ranked[len(ranked) // 2]]
    last = len(ranked) - 1
    return [ranked[round(last * i / (count - 1))] for i in range(count)]
