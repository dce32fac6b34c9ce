"""The verdicts of many whole studies in virtual time: how often a difference is claimed that is not
there, and how often one is found that is. Launches differ by 2 % without a cause.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Measured, Score
from autotune.search.proposer import Proposal
from autotune.space.candidate import Candidate
from autotune.study.directory import StudyDirectory
from autotune.study.executor import Finished
from autotune.study.runner import StudyEnd, StudyRunner
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.trial_record import record_of

NOISE = 0.02
STUDIES = 400
LAUNCH_S = 100.0


class Machine:
    """Launches without a server, one after another: a true value and noise; writes no folders."""

    slots = 1

    def __init__(self, truth: dict[Candidate, float], rng: Random, clock: VirtualClock) -> None:
        self._truth = truth
        self._rng = rng
        self._clock = clock
        self._tasks: list[TrialTask] = []

    def submit(self, task: TrialTask) -> None:
        self._tasks.append(task)

    def wait(self) -> Finished:
        task = self._tasks.pop()
        self._clock.sleep(LAUNCH_S)
        scores = [self._score(task) for _ in range(1 + task.repeats)]
        metrics = {"ttft_p95_s": next(iter(scores[0].values.values())), "success_rate": 1.0}
        measurement = Measurement(
            validity=Validity(verdict="valid"), planned=1, ok=1, failed=0, failed_by_reason={},
            metrics=metrics, intervals={}, client={},
        )  # fmt: skip
        outcome = Measured(measurement=measurement, score=scores[0], repeats=tuple(scores[1:]))
        record = record_of(task, outcome, "", {"total": LAUNCH_S}, simulated=True)
        return Finished(task=task, record=record, outcome=outcome)

    def _score(self, task: TrialTask) -> Score:
        value = self._truth.get(task.candidate, 1.0) * math.exp(self._rng.gauss(0, NOISE))
        return Score(values={"minimize ttft_p95": value}, violations={}, limits={})


class InOrder:
    """Proposes what it was given, in order; learns nothing."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self._left = candidates

    def ask(self) -> Proposal | None:
        return Proposal(candidate=self._left.pop(0), token=0) if self._left else None

    def tell(self, proposal: Proposal, outcome: Any) -> None:
        return

    def seed(self, known: Any) -> None:
        return

    def believed(self) -> dict[str, float]:
        return {}


def study_of(lab: Any, make: Any, seed: int, gains: dict[int, float], folder: Path) -> StudyEnd:
    """A study of 20 candidates; `gains`: by `max-num-seqs`."""
    clock = VirtualClock()
    directory = StudyDirectory(folder / str(seed))
    directory.trials.mkdir(parents=True)
    truth = {make.candidate(seqs): 1.0 - gain for seqs, gain in gains.items()}
    candidates = [make.candidate(seqs) for seqs in range(16, 36)]
    return StudyRunner(
        lab.study,
        directory,
        Machine(truth, Random(seed), clock),
        InOrder(candidates),
        EventStream(clock, directory),
        clock=clock,
        stop=lab.stop,
    ).run()


@pytest.mark.parametrize(
    ("gains", "least", "most"),
    [
        pytest.param({}, 0.0, 0.05, id="no difference anywhere"),
        pytest.param({30: 0.08}, 0.9, 1.0, id="one candidate of 20 is 8 % better"),
    ],
)
def test_share_of_studies_that_claim_an_improvement(
    lab: Any,
    make: Any,
    gains: dict[int, float],
    least: float,
    most: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Thousands of small files need not outlive a power failure
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    knobs = {"max-num-seqs": {"type": "int", "values": list(range(8, 36))}}
    lab.prepare(
        budget={"trials": 21},
        space={"engine": "simulated", "knobs": knobs},
        search={"seed": 1, "baseline_repeats": 1},
    )
    ends = [study_of(lab, make, seed, gains, tmp_path) for seed in range(STUDIES)]
    better = [end.verdict for end in ends if end.verdict.verdict == "better"]
    assert all(verdict.confirmed for verdict in better)
    assert least <= len(better) / STUDIES <= most
