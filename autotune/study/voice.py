"""What the loop says: events of the study beside those of its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.engines.engine import Diagnosis
from autotune.measure.comparison import Verdict
from autotune.space.candidate import Candidate
from autotune.study.prepared import PreparedStudy
from autotune.study.record import TrialRecord
from autotune.study.stream import EventStream, begin_words

REFUSALS_TOLD = 3
"""So many candidates refused before launch are named; all are counted and kept in a file."""


class Voice:
    """Makes the study's own events."""

    def __init__(self, study: PreparedStudy, events: EventStream) -> None:
        self._study = study
        self._events = events

    def begin(
        self,
        records: Sequence[TrialRecord],
        *,
        directory: str,
        slots: int,
        used_s: float,
        durations: Sequence[float],
        reference: Mapping[str, float | None],
    ) -> None:
        """The run begins: what there is already, and what a user should know."""
        self._events.emit(
            "study_started",
            **begin_words(self._study, records),
            directory=directory,
            slots=slots,
            used_s=round(used_s, 3),
            durations=list(durations),
            reference=dict(reference),
        )
        for note in self._study.notes:
            self.note(note)

    def best(self, best: TrialRecord | None) -> None:
        """The best trial so far, if there is one."""
        if best is not None:
            self._events.emit(
                "best",
                trial=best.number,
                role=best.role,
                values=list(best.values.values()),
                metric=self._study.spec.objective[0].metric.name,
            )

    def refused(self, candidate: Candidate, why: Diagnosis, count: int) -> None:
        """A candidate that was not launched; `count`: how many were refused by now."""
        if count > REFUSALS_TOLD:
            return
        changed = candidate.changed_from(self._study.baseline)
        settings = ", ".join(f"{name} {value}" for name, (_, value) in changed.items())
        more = "; further ones are only counted" if count == REFUSALS_TOLD else ""
        self.note(f"refused before launch: {settings}: {why.message}{more}")

    def note(self, message: str) -> None:
        """Something a user should read."""
        self._events.emit("note", message=message)

    def end(self, verdict: Verdict, *, trials: int, because: str, refused: int) -> None:
        """The run ends."""
        self._events.emit(
            "study_finished",
            verdict=verdict.verdict,
            best=verdict.best,
            trials=trials,
            reason=verdict.reason,
            stopped_because=because,
            refused_before_launch=refused,
        )
