"""A study in virtual time: real preparation, records and files; doubles for launches and search."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import StopSignal, VirtualClock
from autotune.engines.engine import Diagnosis
from autotune.errors import EnvironmentFault, Interrupted
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import (
    Infeasible,
    Measured,
    Outcome,
    Score,
    Stopped,
    Unmeasurable,
)
from autotune.measure.scoring import score
from autotune.search.proposer import Known, Proposal
from autotune.space.candidate import Candidate
from autotune.space.study_space import open_study
from autotune.study.directory import StudyDirectory, write_json
from autotune.study.events import Event
from autotune.study.executor import Finished
from autotune.study.prepare import PreparedStudy, prepare
from autotune.study.runner import StudyEnd, StudyRunner
from autotune.study.snapshot import write_snapshot
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.trial_record import record_of

LAUNCH_S = 10.0
BASELINE = Candidate({"max-num-seqs": 8})
KNOBS = {
    "max-num-seqs": {"type": "int", "values": [8, 16, 32, 64]},
    "enforce-eager": {"type": "switch"},
}


def candidate(seqs: int, **more: Any) -> Candidate:
    return Candidate({"max-num-seqs": seqs, **more})


def served(ttft: float, *, tpot: float = 0.02) -> Measurement:
    metrics = {"ttft_p95_s": ttft, "tpot_p95_s": tpot, "success_rate": 1.0}
    return Measurement(
        validity=Validity(verdict="valid"),
        planned=15,
        ok=15,
        failed=0,
        failed_by_reason={},
        metrics=metrics,
        intervals=dict.fromkeys(metrics, (None, None)),
        client={},
    )


def diagnosis(fault: Any, reason: str, *, flag: str | None = None, **facts: Any) -> Infeasible:
    return Infeasible(
        diagnosis=Diagnosis(
            fault=fault,
            phase="startup",
            reason=reason,
            remedy=None,
            message=f"{reason.replace('_', ' ')}{f': --{flag}' if flag else ''}",
            evidence=("the decisive line",),
            facts={**({"flag": f"--{flag}"} if flag else {}), **facts},
        )
    )


Script = Callable[[TrialTask], Measurement | Outcome | BaseException]


class ScriptedExecutor:
    """Ends each trial as the script says, after ten virtual seconds; files as a real trial. As many
    run at the same time as the study has slots.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._running: list[tuple[float, int, float, TrialTask]] = []

    @property
    def slots(self) -> int:
        return len(self._lab.study.slots)

    def submit(self, task: TrialTask) -> None:
        lab = self._lab
        assert task.slot not in {running[3].slot for running in self._running}
        start_s = 0.0 if lab.start_s is None else lab.start_s(task)
        end_s = lab.clock.monotonic() + start_s + lab.launch_s
        heapq.heappush(self._running, (end_s, task.number, start_s, task))
        lab.most_at_once = max(lab.most_at_once, len(self._running))
        if not lab.stop.requested:
            lab.tasks.append(task)
            lab.directory.open_trial(task.number)

    def wait(self) -> Finished:
        lab = self._lab
        end_s, _, start_s, task = heapq.heappop(self._running)
        folder = lab.directory.trials / f"{task.number:04d}.partial"
        if not folder.exists():
            raise Interrupted(message="stopped by the user")
        lab.clock.sleep(end_s - lab.clock.monotonic())
        what = Interrupted(message="stopped") if lab.stop.requested else lab.script(task)
        error: BaseException | None = None
        if isinstance(what, Measurement):
            verdict = score(
                what,
                lab.study.spec.objective,
                lab.study.spec.constraints,
                what.metrics if task.baseline is None else task.baseline,
            )
            outcome: Outcome = (
                verdict
                if isinstance(verdict, Infeasible | Unmeasurable)
                else Measured(measurement=what, score=verdict, repeats=lab.repeats(task))
            )
            write_json(folder / "measurement.json", what.to_json())
        elif isinstance(what, Interrupted):
            error, outcome = what, Stopped()
        elif isinstance(what, BaseException):
            raise what  # as a kill: the folder stays partial
        else:
            outcome = what
        seconds = {"total": start_s + lab.launch_s}
        if lab.start_s is not None:
            seconds["launching"] = start_s
        record = record_of(
            task, outcome, "", seconds, simulated=True, memory=lab.memory.get(task.number, {})
        )
        lab.directory.close_trial(folder, record)
        if error is not None:
            raise error
        return Finished(task=task, record=record, outcome=outcome)


class ListProposer:
    """Proposes from a list, never what it was told of at the start."""

    def __init__(
        self, candidates: Sequence[Candidate], believed: Mapping[str, float] | None = None
    ) -> None:
        self._left = list(candidates)
        self._believed = believed or {}
        self.told: list[tuple[Candidate, Outcome]] = []
        self.known: list[Known] = []

    def ask(self) -> Proposal | None:
        return Proposal(candidate=self._left.pop(0), token=0) if self._left else None

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        self.told.append((proposal.candidate, outcome))

    def seed(self, known: Sequence[Known]) -> None:
        self.known = list(known)
        seen = {k.candidate for k in known}
        self._left = [c for c in self._left if c not in seen]

    def believed(self) -> Mapping[str, float]:
        return self._believed


@dataclass
class Lab:
    """One study on disk and the doubles that run it."""

    folder: Path
    clock: VirtualClock = field(default_factory=VirtualClock)
    stop: StopSignal = field(default_factory=StopSignal)
    script: Script = field(default=lambda task: served(0.1))
    launch_s: float = LAUNCH_S
    start_s: Callable[[TrialTask], float] | None = None
    memory: dict[int, Any] = field(default_factory=dict)
    fit: Any = None
    tasks: list[TrialTask] = field(default_factory=list)
    heard: list[Event] = field(default_factory=list)
    repeated: Sequence[float] = ()
    most_at_once: int = 0
    reasons: Mapping[Candidate, str] = field(default_factory=dict)
    proposer: ListProposer | None = None
    believed: Mapping[str, float] = field(default_factory=dict)
    study: PreparedStudy = field(init=False)
    directory: StudyDirectory = field(init=False)

    def prepare(self, **changes: Any) -> Lab:
        """Prepare a study from a file; `changes` replace top-level keys of it."""
        trace = self.folder / "tiny.jsonl"
        rows = [{"t": i * 0.1, "in": 64 + i, "out": 4} for i in range(15)]
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        content = {
            "name": "lab",
            "model": "sim",
            "engine": {"kind": "simulated"},
            "baseline": {"max-num-seqs": 8},
            "space": {"engine": "simulated", "knobs": KNOBS},
            "workload": {"path": str(trace)},
            "objective": "minimize ttft_p95",
            "constraints": ["success_rate >= 0.9"],
            "budget": {"trials": 4},
            **changes,
            # A study's own repeats would stand between the trials that a test is about
            "search": {"baseline_repeats": 0, **changes.get("search", {"seed": 1, "repeats": 0})},
        }
        path = self.folder / "study.yaml"
        path.write_text(json.dumps(content))
        self.study = prepare(open_study(path), clock=self.clock, stop=self.stop)
        self.directory = StudyDirectory(self.folder / "run")
        self.directory.trials.mkdir(parents=True)
        return self

    def snapshot(self) -> Lab:
        """Write the study's own files, as a run does first."""
        write_snapshot(self.study, self.directory, started_at="2026-01-01T00:00:00+00:00")
        return self

    def runs(self, *candidates: Candidate) -> StudyEnd:
        """One run of the study: the proposer proposes these."""
        self.proposer = ListProposer(candidates, self.believed)
        events = EventStream(self.clock, self.directory, [self.heard.append])
        return StudyRunner(
            self.study,
            self.directory,
            ScriptedExecutor(self),
            self.proposer,
            events,
            clock=self.clock,
            stop=self.stop,
            fit=self.fit,
            reasons=self.reasons,
        ).run()

    def repeats(self, task: TrialTask) -> tuple[Score, ...]:
        """What further measurements of the launch give: `repeated`, by the first objective."""
        text = self.study.spec.objective[0].text
        values = self.repeated[: task.repeats]
        return tuple(Score(values={text: value}, violations={}, limits={}) for value in values)

    def states(self) -> list[str]:
        return [f"{r.role} {r.state}" for r in self.directory.records()]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def make() -> Any:
    """Builders of the values that a script returns."""

    class Make:
        baseline = BASELINE
        candidate = staticmethod(candidate)
        served = staticmethod(served)
        diagnosis = staticmethod(diagnosis)
        environment = EnvironmentFault(message="the disk is full")

    return Make
