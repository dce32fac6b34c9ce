"""Studies on hidden machines in virtual time: the real loop, with what engines do kept in memory.

A replay of one engine is simulated once and kept without its launch's noise, which is laid on the
records of each launch (`hidden_engine.Blur`); everything after the records is the real pipeline.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hidden_engine import HiddenEngine, HiddenMachine
from lab_problems import Problem

from autotune.clock import StopSignal, VirtualClock
from autotune.launch.launcher import Ticket
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import Outcome
from autotune.measure.quantiles import percentile, rank_of
from autotune.replay.options import ReplayOptions
from autotune.replay.records import PlannedRequest, ReplayResult, RequestRecord
from autotune.search.capacity import Step, find_capacity, multiplier_of, rung_of
from autotune.search.catalog import make_proposer
from autotune.search.choices import Choices
from autotune.search.proposer import Known, Proposal, Proposer
from autotune.space.candidate import Candidate
from autotune.study.directory import StudyDirectory
from autotune.study.forecasting import study_forecast
from autotune.study.ledger import Ledger
from autotune.study.prepare import PreparedStudy
from autotune.study.record import TrialRecord
from autotune.study.runner import StudyEnd, StudyRunner
from autotune.study.stream import EventStream
from autotune.study.virtual_executor import VirtualExecutor
from autotune.study.virtual_records import WholeReplay
from autotune.study.virtual_server import VirtualServer
from autotune.study.virtual_session import Shelf, VirtualMeasurer, VirtualSession
from autotune.workload.trace import Request

NEAR_TOP = 8
"""So many rungs below the best are asked one by one for what limits hold at."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A replay without its launch's noise: seconds per planned request, NaN for never."""

    sent: np.ndarray
    first: np.ndarray
    last: np.ndarray
    cached: tuple[int, ...]
    died_s: float | None
    server: dict[str, float | None]


class LabShelf(Shelf):
    """Prepared traffic, and every replay that was simulated."""

    def __init__(self) -> None:
        super().__init__()
        self.replays: dict[Hashable, Kept] = {}
        self.planned: dict[Hashable, list[PlannedRequest]] = {}
        self.warm_ups: dict[Hashable, tuple[dict[str, int], float, float]] = {}


class LabSession(VirtualSession):
    """A virtual session that simulates each engine and traffic once."""

    def warm_up(self) -> None:
        """As `VirtualSession`, from memory."""
        shelf, key = self._shelf(), (self._key(), self.settings.warmup)
        if key not in shelf.warm_ups:
            began_s = self.clock.monotonic()
            super().warm_up()
            seconds = self.clock.monotonic() - began_s
            shelf.warm_ups[key] = dict(self._sent_before), self._primed_s, seconds
            return
        sent, self._primed_s, seconds = shelf.warm_ups[key]
        self._sent_before.update(sent)
        self._warmed_s += seconds
        self.clock.sleep(seconds)

    def ask(
        self, requests: Sequence[Request], after: Sequence[int | None], *, patience_s: float
    ) -> Sequence[RequestRecord]:
        """As `VirtualSession`, with the launch's noise."""
        wait, between = self._engine().blur.next_replay()
        records = super().ask(requests, after, patience_s=patience_s)
        return [_blurred(record, wait, between) for record in records]

    def _write(self, result: ReplayResult) -> None:
        # Only of the baseline are single requests looked at
        if "0000.partial" in self.folder.parts:
            super()._write(result)

    def planned(self) -> list[PlannedRequest]:
        """The requests of a replay, the measured ones first."""
        return self._requests()

    def kept(self, planned: Sequence[PlannedRequest]) -> Kept:
        """The replay without its launch's noise."""
        shelf, key = self._shelf(), self._key()
        if key not in shelf.replays:
            shelf.replays[key] = _kept(super()._whole(planned, self._options()))
        return shelf.replays[key]

    def waits(self, planned: Sequence[PlannedRequest]) -> list[float]:
        """How long these requests wait for their first tokens if no others come; seconds."""
        records = super()._whole(planned, self._options()).records
        return [
            (math.inf if r.first_token_s is None else r.first_token_s) - (r.sent_s or 0.0)
            for r in records
        ]

    def _whole(self, planned: Sequence[PlannedRequest], options: ReplayOptions) -> WholeReplay:
        kept, engine = self.kept(planned), self._engine()
        if kept.died_s is not None:
            # Its words and its end are the server's to tell
            return super()._whole(planned, options)
        wait, between = engine.blur.next_replay()
        first = kept.sent + (kept.first - kept.sent) * wait
        last = first + (kept.last - kept.first) * between
        rows = zip(
            planned, kept.sent.tolist(), first.tolist(), last.tolist(), kept.cached, strict=True
        )
        return WholeReplay(
            records=tuple(_record(*row) for row in rows), died_s=None, server=kept.server
        )

    def _requests(self) -> list[PlannedRequest]:
        planned, key = self._shelf().planned, (self.held_out, self.trace.duration_s)
        if key not in planned:
            planned[key] = super()._requests()
        return planned[key]

    def _engine(self) -> HiddenEngine:
        assert isinstance(self.server.engine, HiddenEngine)
        return self.server.engine

    def _shelf(self) -> LabShelf:
        assert isinstance(self.shelf, LabShelf)
        return self.shelf

    def _key(self) -> Hashable:
        engine = self._engine()
        return engine.settings, engine.blur.speed, self.held_out, self.trace.duration_s


def _kept(whole: WholeReplay) -> Kept:
    def moments(name: str) -> np.ndarray:
        values = (getattr(record, name) for record in whole.records)
        return np.array([np.nan if v is None else v for v in values])

    return Kept(
        moments("sent_s"), moments("first_token_s"), moments("last_token_s"),
        tuple(record.cached_tokens or 0 for record in whole.records),
        whole.died_s, dict(whole.server),
    )  # fmt: skip


def _record(
    planned: PlannedRequest, sent_s: float, first_s: float, last_s: float, cached: int
) -> RequestRecord:
    return RequestRecord(
        index=planned.index, due_s=sent_s, measured=planned.measured,
        planned_input_tokens=len(planned.prompt), planned_output_tokens=planned.output_tokens,
        sent_s=sent_s, begun_s=sent_s, first_token_s=first_s, last_token_s=last_s, end_s=last_s,
        input_tokens=len(planned.prompt), output_tokens=planned.output_tokens,
        cached_tokens=cached, events=planned.output_tokens, status=200, finish_reason="length",
        session=planned.session, turn=planned.turn,
    )  # fmt: skip


def _blurred(record: RequestRecord, wait: float, between: float) -> RequestRecord:
    sent_s, first_s, last_s = record.sent_s, record.first_token_s, record.last_token_s
    if sent_s is None or first_s is None or last_s is None:
        return record
    first = sent_s + (first_s - sent_s) * wait
    last = first + (last_s - first_s) * between
    return replace(record, first_token_s=first, last_token_s=last, end_s=last)


class _Noting:
    """A proposer that notes what would be confirmed if the search ended, by how many trials have;
    see `Lab.run`.
    """

    def __init__(
        self,
        inner: Proposer,
        study: PreparedStudy,
        directory: StudyDirectory,
        enough: Callable[[int, TrialRecord | None], bool],
    ) -> None:
        self._inner = inner
        self._study = study
        self._directory = directory
        self._enough = enough
        self.choices: dict[int, TrialRecord | None] = {}

    def ask(self) -> Proposal | None:
        count = len(self._directory.records())
        if count not in self.choices:
            self._note()
        return None if self._enough(count, self.choices[count]) else self._inner.ask()

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        self._inner.tell(proposal, outcome)

    def seed(self, known: Sequence[Known]) -> None:
        self._inner.seed(known)

    def believed(self) -> Mapping[str, float]:
        found = self._inner.believed()
        self._note(found)
        return found

    def _note(self, believed: Mapping[str, float] | None = None) -> None:
        """The finalist, else the best so far."""
        ledger = Ledger(self._study, self._directory)
        if believed is not None:
            ledger.believe(believed)
        found = ledger.conclusion().ahead(1)
        self.choices[len(ledger.records)] = found[0] if found else ledger.best


class Lab:
    """One problem, ready for any number of studies. Use as a context: its files are temporary."""

    def __init__(self, problem: Problem, folder: Path, shelf: LabShelf | None = None) -> None:
        self.problem = problem
        self.shelf = shelf or LabShelf()
        self._folder = folder
        self.choices: list[TrialRecord | None] = []
        self.study = problem.study(folder)
        self._number = 0

    def run(
        self,
        method: Any,
        seed: int,
        *,
        trials: int,
        watch: Any = None,
        slots: int = 1,
        machine: HiddenMachine | None = None,
        enough: Callable[[int, TrialRecord | None], bool] = lambda count, choice: False,
        **search: Any,
    ) -> tuple[StudyEnd, list[TrialRecord]]:
        """A whole study with the proposer of this name. `watch`: an observer of its events.
        `choices` are then the trials that would be confirmed, had it ended after each launch;
        `enough` ends it, given the number of launches and the last of these.
        """
        self._number += 1
        place = self._folder / f"run-{self._number}"
        study = self._again(seed, trials, {"sampler": method, **search})
        directory = StudyDirectory(place)
        directory.trials.mkdir(parents=True)
        clock, stop = VirtualClock(), StopSignal()
        machine = machine or HiddenMachine(
            self.problem.scene.machine, seed=seed, capacity=self.problem.aim == "capacity"
        )
        executor = VirtualExecutor(
            study, directory, machine, clock=clock, stop=stop, slots=slots, shelf=self.shelf,
            session=LabSession,
        )  # fmt: skip
        proposer = make_proposer(
            method, study.space, study.facts, study.spec.objective, study.spec.constraints,
            seed=seed, forecast=partial(study_forecast, study, directory),
        )  # fmt: skip
        events = EventStream(clock, directory, [] if watch is None else [watch])
        noting = _Noting(proposer, study, directory, enough)
        try:
            end = StudyRunner(
                study, directory, executor, noting, events, clock=clock, stop=stop
            ).run()
            records = directory.records()
            # With several slots a few may end before anybody is asked: the next choice is theirs
            noted = sorted(noting.choices.items())
            self.choices = [
                next((choice for count, choice in noted if count > place), noted[-1][1])
                for place in range(len(records))
            ]
            return end, records
        finally:
            shutil.rmtree(place)

    def _again(self, seed: int, trials: int, search: dict[str, Any]) -> PreparedStudy:
        spec = self.study.spec
        budget = spec.budget.model_copy(update={"trials": trials})
        found = spec.search.model_copy(update={"seed": seed, **search})
        return replace(self.study, spec=spec.model_copy(update={"budget": budget, "search": found}))


class Truth:
    """What settings really do: without noise, measured to the end."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._machine = HiddenMachine(lab.problem.scene.machine, seed=None)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        measure = replace(lab.study.measure, gpus=())
        self._measurer = VirtualMeasurer(
            measure, lab.shelf, clock=VirtualClock(), stop=StopSignal(), kind=LabSession
        )

    def candidates(self) -> Iterator[Candidate]:
        """Every setting of the space that no rule forbids."""
        choices = Choices(self._lab.study.space, self._lab.study.facts)
        for indices in choices.every():
            candidate = choices.candidate(indices)
            if candidate is not None:
                yield candidate

    def starts(self, candidate: Candidate) -> bool:
        """Whether the engine comes up."""
        plan = self._lab.study.engine.plan(candidate, self._lab.study.target)
        return self._machine.launch(plan, 0).engine is not None

    def forget(self) -> None:
        """Drop the replays that are kept in memory."""
        self._lab.shelf.replays.clear()
        self._lab.shelf.warm_ups.clear()

    def measure(self, candidate: Candidate, multiplier: float = 1.0) -> Measurement | None:
        """The measurement at a rate; None where the engine does not start or dies."""
        session = self._session(candidate, multiplier)
        if session is None:
            return None
        session.warm_up()
        result = session.replay(deadline_s=None, on_progress=None)
        return None if result.aborted == "server_died" else session.measurement(result)

    def value(
        self, candidate: Candidate, *, best: float | None = None
    ) -> tuple[float | None, float]:
        """(the objective's value, None without one; the largest violation of a limit). `best`: the
        highest capacity of all settings, where it is known: what limits hold at need not be
        monotone in the rate, and a capacity is the highest one at which they do.
        """
        if self._lab.problem.aim == "capacity":
            start = 1.0
            if best is not None:
                top = rung_of(best)
                near = (multiplier_of(rung) for rung in range(top, top - NEAR_TOP, -1))
                held = next((rate for rate in near if self.holds(candidate, rate)), None)
                if held is not None:
                    return held, 0.0
                start = multiplier_of(top - NEAR_TOP)
            found = find_capacity(
                lambda m: Step(multiplier=m, met=self.holds(candidate, m)), start=start
            )
            return found.capacity, 0.0 if found.capacity is not None else 1.0
        seen = self.seen(candidate)
        return (None, 1.0) if seen is None else (seen["ttft_p95"], self._violation(seen))

    def holds(self, candidate: Candidate, multiplier: float) -> bool:
        """Whether the limits hold at a rate."""
        limit_s = self._lab.problem.limits.get("ttft_p95")
        if limit_s is not None and self.too_slow(candidate, limit_s, multiplier):
            return False
        seen = self.seen(candidate, multiplier)
        return seen is not None and self._violation(seen) <= 0

    def seen(self, candidate: Candidate, multiplier: float = 1.0) -> dict[str, float] | None:
        """TTFT p95 and TPOT p95 as `measure` has them, without the rest of the pipeline; None where
        the engine does not start, dies, or leaves a request without an end.
        """
        session = self._session(candidate, multiplier)
        if session is None:
            return None
        session.warm_up()
        planned = session.planned()
        kept = session.kept(planned)
        count = sum(request.measured for request in planned)
        if kept.died_s is not None or np.isnan(kept.last[:count]).any():
            return None
        tokens = np.array([request.output_tokens for request in planned[:count]])
        span = (kept.last - kept.first)[:count][tokens > 1] / (tokens[tokens > 1] - 1)
        return {
            "ttft_p95": percentile((kept.first - kept.sent)[:count].tolist(), 95),
            "tpot_p95": percentile(span.tolist(), 95),
        }

    def too_slow(self, candidate: Candidate, ttft_p95: float, multiplier: float = 1.0) -> bool:
        """Whether the first half of the requests alone is enough to put TTFT p95 above a value:
        requests do not wait for those that come later. False also where that does not tell.
        """
        session = self._session(candidate, multiplier)
        if session is None:
            return False
        measured = [request for request in session.planned() if request.measured]
        if any(request.after is not None for request in measured):
            return False
        session.warm_up()
        waits = session.waits(measured[: len(measured) // 2])
        return sum(wait > ttft_p95 for wait in waits) > len(measured) - rank_of(95, len(measured))

    def _violation(self, seen: Mapping[str, float]) -> float:
        """The largest of the problem's limits, normalised."""
        limits = self._lab.problem.limits.items()
        return max((seen[key] / seconds - 1 for key, seconds in limits), default=0.0)

    def _session(self, candidate: Candidate, multiplier: float) -> LabSession | None:
        """A session against these settings; None where the engine does not come up."""
        study = self._lab.study
        plan = study.engine.plan(candidate, study.target)
        launch = self._machine.launch(plan, 0)
        if launch.engine is None:
            return None
        ticket = Ticket(study_id="truth", trial=0, directory=self._folder)
        session = self._measurer.session(
            VirtualServer(plan, ticket, launch), study.search_trace, self._folder, None,
            salt="truth", multiplier=multiplier,
        )  # fmt: skip
        assert isinstance(session, LabSession)
        return session


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, in memory where the system has a place for that."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
