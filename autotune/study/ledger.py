"""What a study knows of its trials: those that ended, in memory, and those that run.

The directory is read once, when a run begins; what ends after that is added.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.measure.measurement import Measurement
from autotune.measure.outcome import Measured
from autotune.space.candidate import Candidate
from autotune.study.beliefs import read_beliefs, write_beliefs
from autotune.study.conclusion import Conclusion, mean_metrics
from autotune.study.directory import StudyDirectory, read_json
from autotune.study.executor import Finished
from autotune.study.prepared import PreparedStudy
from autotune.study.ranking import (
    baseline_record,
    best_trial,
    objective_value,
    value_to_beat,
)
from autotune.study.record import Role, TrialRecord
from autotune.study.task import TrialTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A trial that was begun. `began_s`: on the clock. `expected_s`: None: nothing is known."""

    task: TrialTask
    began_s: float
    expected_s: float | None


class Ledger:
    """All trials of one study."""

    def __init__(self, study: PreparedStudy, directory: StudyDirectory) -> None:
        self._study = study
        self._directory = directory
        self.records: list[TrialRecord] = directory.records()
        self.running: dict[int, Running] = {}
        self._metrics: dict[int, Mapping[str, float | None]] = {}
        self._believed = read_beliefs(directory)
        self._next = directory.next_number()

    @property
    def finished(self) -> list[TrialRecord]:
        """Trials that ended by themselves."""
        return [record for record in self.records if record.state != "interrupted"]

    @property
    def baseline(self) -> TrialRecord | None:
        """The baseline's launch that everything is compared with."""
        return baseline_record(self.finished)

    @property
    def best(self) -> TrialRecord | None:
        """The best trial so far."""
        return best_trial(self.finished, self._study.spec.objective)

    @property
    def to_beat(self) -> float | None:
        """What a trial has to reach to matter: see `value_to_beat`; of capacities the best so far.
        None with several objectives, or without a value.
        """
        objectives, search = self._study.spec.objective, self._study.spec.search
        if not objectives[0].metric.searched:
            return value_to_beat(self.finished, objectives, search.finalists)
        best = best_trial(self.finished, objectives, tie=0.0) if len(objectives) == 1 else None
        return None if best is None else objective_value(best, objectives)

    def seen(self, candidate: Candidate) -> float | None:
        """The first objective's value of these settings in the search, if they were measured."""
        same = (r for r in self.finished if not r.is_repeat and r.candidate == candidate)
        values = (objective_value(record, self._study.spec.objective) for record in same)
        return next((value for value in values if value is not None), None)

    @property
    def durations(self) -> list[float]:
        """Seconds that whole launches took: one that failed early says nothing about the next, and
        further measurements in a launch are not its rule.
        """
        ended = [r for r in self.finished if "total" in r.seconds]
        whole = [r for r in ended if r.state == "measured"]
        return [launch_seconds(record) for record in whole or ended]

    @property
    def launch_s(self) -> float | None:
        """The median of `durations`; None before the first."""
        durations = self.durations
        return statistics.median(durations) if durations else None

    def take_number(self) -> int:
        """The number of the next trial."""
        self._next += 1
        return self._next - 1

    def add(self, finished: Finished) -> None:
        """Take in a trial that ended."""
        self.running.pop(finished.task.number, None)
        self.records.append(finished.record)
        if isinstance(finished.outcome, Measured):
            self._metrics[finished.record.number] = finished.outcome.measurement.reference

    def catch_up(self) -> None:
        """Take in what was closed without being handed over, as a trial is that raised."""
        known = {record.number for record in self.records}
        self.records += [r for r in self._directory.records() if r.number not in known]

    def believe(self, values: Mapping[str, float]) -> None:
        """Take over what the search believes (`Proposer.believed`), and keep it: the choice of the
        finalists must be the same after a resume.
        """
        found = {
            record.number: values[record.candidate.key]
            for record in self.finished
            if record.role == "search" and record.candidate.key in values
        }
        if found != self._believed:
            self._believed = found
            write_beliefs(self._directory, self._study.spec.objective[0].text, found)

    def conclusion(self) -> Conclusion:
        """What the trials add up to so far."""
        return Conclusion(
            self.records,
            self._study.spec.objective,
            self._study.baseline,
            believed=self._believed,
        )

    def reference(self, role: Role, candidate: Candidate) -> Mapping[str, float | None] | None:
        """The metrics that relative limits refer to: trial 0's, in the confirmation those of the
        baseline's confirm launches so far, which see the same traffic. None: the trial's own.
        """
        if role == "baseline":
            return None
        if role == "confirm":
            repeats = self._confirmed_baselines()
            if repeats:
                return mean_metrics([self.metrics(record) for record in repeats])
            if candidate == self._study.baseline:
                return None
        baseline = self.baseline
        if baseline is None or baseline.state != "measured":
            return {}
        return self.metrics(baseline)

    @property
    def has_confirmed_baseline(self) -> bool:
        """Whether the baseline was measured on the traffic of the confirmation."""
        return bool(self._confirmed_baselines())

    def _confirmed_baselines(self) -> list[TrialRecord]:
        return [
            record
            for record in self.records
            if record.role == "confirm"
            and record.state == "measured"
            and record.candidate == self._study.baseline
        ]

    def metrics(self, record: TrialRecord) -> Mapping[str, float | None]:
        """What limits relative to a measured trial refer to; from its file if an earlier run
        measured it.
        """
        if record.number not in self._metrics:
            data = read_json(self._directory.trial(record.number) / "measurement.json")
            self._metrics[record.number] = Measurement.from_json(data).reference
        return self._metrics[record.number]


def launch_seconds(record: TrialRecord) -> float:
    """What the launch would have taken with one measurement and no probes."""
    beside = sum(record.seconds.get(phase, 0.0) for phase in ("repeating", "probing"))
    return record.seconds["total"] - beside
