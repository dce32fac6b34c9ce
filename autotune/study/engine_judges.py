"""What finished trials say of trials to come, for each engine of a study by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from autotune.engines.engine import Diagnosis
from autotune.engines.facts import engine_facts
from autotune.engines.memory import MemoryEstimate
from autotune.space.candidate import Candidate
from autotune.study.implications import Implications
from autotune.study.memory_fit import Fits
from autotune.study.prepared import PreparedStudy
from autotune.study.record import TrialRecord
from autotune.study.target import all_settings

OUT_AFTER = 3
"""An engine that never served is left after so many launches that failed for no setting's fault."""
ENGINE_OUT = "engine_out"
"""Reason code of a candidate that was refused because its engine never served here."""


class EngineImplications:
    """The implications of each engine's trials; `refusal` is a judge for `refusals.Refusals`."""

    def __init__(self, study: PreparedStudy) -> None:
        self._own = study.engine.kind
        self._across = bool(study.sides)
        self._implied = {kind: _implications(study.on(kind)) for kind in study.kinds}
        self._served: set[str] = set()
        self._fruitless: dict[str, list[TrialRecord]] = defaultdict(list)

    def learn(self, record: TrialRecord) -> None:
        """Take over a finished trial."""
        kind = self._kind(record.candidate)
        self._implied[kind].learn(record)
        if record.state == "measured":
            self._served.add(kind)
        elif record.fault == "study":
            self._fruitless[kind].append(record)

    def refusal(self, candidate: Candidate) -> Diagnosis | None:
        """Why a candidate would fail as earlier trials of its engine did; else None."""
        kind = self._kind(candidate)
        failed = self._fruitless[kind]
        if self._across and kind not in self._served and len(failed) >= OUT_AFTER:
            last = failed[-1]
            return Diagnosis(
                fault="candidate",
                phase="startup",
                reason=ENGINE_OUT,
                remedy=None,
                message=f"{kind} never served here, and {len(failed)} launches failed for no "
                f"setting's fault; the last, trial {last.number}: {last.message}",
                evidence=last.evidence[:1],
                facts={"trial": last.number},
            )
        return self._implied[kind].refusal(candidate)

    def _kind(self, candidate: Candidate) -> str:
        kind = candidate.engine
        return kind if kind in self._implied else self._own


class EngineFits:
    """`Fits` that asks each engine's own."""

    def __init__(self, fits: Mapping[str | None, Fits | None]) -> None:
        """`fits`: by the engine that candidates name."""
        self._fits = fits

    def estimate(self, candidate: Candidate) -> MemoryEstimate | None:
        """See `Fits`."""
        own = self._fits.get(candidate.engine)
        return None if own is None else own.estimate(candidate)

    def learn(self, candidate: Candidate, log: Mapping[str, float]) -> None:
        """See `Fits`."""
        own = self._fits.get(candidate.engine)
        if own is not None:
            own.learn(candidate, log)

    def refusal(self, candidate: Candidate) -> Diagnosis | None:
        """See `Fits`."""
        own = self._fits.get(candidate.engine)
        return None if own is None else own.refusal(candidate)


def _implications(study: PreparedStudy) -> Implications:
    kind, target = study.engine.kind, study.target
    return Implications(engine_facts(kind), lambda candidate: all_settings(candidate, kind, target))
