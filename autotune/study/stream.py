"""The study's own voice: makes events and hands them to every observer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict

from autotune.canonical import Json
from autotune.clock import Clock
from autotune.replay.records import ReplayProgress
from autotune.study.directory import StudyDirectory
from autotune.study.events import Event, Kind, Observer
from autotune.study.prepared import PreparedStudy
from autotune.study.record import TrialRecord


class EventStream:
    """Stamps events, appends them to `events.jsonl` (all but progress) and tells the observers."""

    def __init__(
        self, clock: Clock, directory: StudyDirectory, observers: Sequence[Observer] = ()
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._observers = tuple(observers)
        self._started = clock.monotonic()
        self._lock = threading.Lock()

    def emit(self, kind: Kind, **data: Json) -> None:
        """Make one event."""
        # Trials of several slots speak at the same time, each from its own thread
        with self._lock:
            event = Event(
                kind=kind,
                at=self._clock.utcnow().isoformat(timespec="milliseconds"),
                elapsed_s=round(self._clock.monotonic() - self._started, 3),
                data=data,
            )
            if kind != "progress":
                self._directory.append_event(
                    {"kind": kind, "at": event.at, "elapsed_s": event.elapsed_s, **data}
                )
            for observer in self._observers:
                observer(event)

    def progress(self, trial: int, progress: ReplayProgress) -> None:
        """A glance at the running replay."""
        self.emit("progress", trial=trial, **asdict(progress))


def begin_words(study: PreparedStudy, records: Sequence[TrialRecord]) -> dict[str, Json]:
    """What `study_started` says of the study and of the trials that it has already."""
    spec = study.spec
    finished = [record for record in records if record.state != "interrupted"]
    confirmed = sum(record.role == "confirm" for record in finished)
    names = [o.metric.name for o in spec.objective] + [c.metric.name for c in spec.constraints]
    return {
        "name": spec.name,
        "budget_s": spec.budget.time,
        "budget_trials": spec.budget.trials,
        "budget_gpu_s": spec.budget.gpu_seconds,
        "gpus": study.gpus_per_launch,
        "searched": sum(not record.is_repeat for record in finished),
        "confirmations": max(0, (1 + spec.search.finalists) * spec.search.repeats - confirmed),
        "metrics": list(dict.fromkeys(names)),
        "objective": [o.text for o in spec.objective],
        "constraints": [c.text for c in spec.constraints],
        "simulated": study.engine.simulated,
        "resumed": bool(records),
    }
