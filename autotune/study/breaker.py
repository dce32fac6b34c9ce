"""When going on is pointless: failures that say nothing about the settings, or about all."""

from __future__ import annotations

from pathlib import Path

from autotune.errors import AutotuneError, EnvironmentFault, InputError, Untrustworthy
from autotune.measure.outcome import Infeasible, Outcome
from autotune.space.candidate import Candidate
from autotune.study.record import TrialRecord

IN_A_ROW = 3
"""So many failures in a row that say nothing about the parameters end the study."""


class Breaker:
    """Looks at every finished trial and raises the error that ends the study."""

    def __init__(self, directory: Path, baseline: Candidate, *, relative_limits: bool) -> None:
        self._directory = directory
        self._baseline = baseline
        self._relative_limits = relative_limits
        self._silent = 0

    def baseline(self, record: TrialRecord) -> str | None:
        """Judge trial 0. Returns a note when the study can go on without it."""
        if record.state == "measured":
            return None
        hint = self._show(record)
        if record.state == "infeasible":
            if record.fault == "candidate" and not self._relative_limits:
                return f"the baseline does not work: {record.message}; the search goes on without"
            raise InputError(
                message=f"the baseline does not work: {record.message}",
                seen=_evidence(record),
                so="nothing else was tried",
                hint=hint,
            )
        kind: type[AutotuneError] = Untrustworthy if record.fault == "tool" else EnvironmentFault
        raise kind(
            message=f"the baseline could not be measured: {record.message}",
            seen=_evidence(record),
            so="nothing else was tried",
            hint=hint,
        )

    def after(self, record: TrialRecord, outcome: Outcome) -> None:
        """Judge any later trial."""
        if (
            isinstance(outcome, Infeasible)
            and outcome.diagnosis.fault == "study"
            and not self._own_flag(record, outcome)
        ):
            raise InputError(
                message=f"every trial would fail: {outcome.diagnosis.message}",
                seen=_evidence(record),
                so=f"the study is stopped after trial {record.number}",
                hint=self._show(record),
            )
        if record.fault == "environment":
            raise EnvironmentFault(
                message=f"trial {record.number} failed twice for reasons outside its settings: "
                f"{record.message}",
                seen=_evidence(record),
                so="the study is stopped; finished trials are kept",
                hint=f"`autotune resume {self._directory}` goes on",
            )
        silent = record.state == "unmeasurable" or record.reason == "not_ready_in_time"
        self._silent = self._silent + 1 if silent else 0
        if self._silent >= IN_A_ROW:
            raise EnvironmentFault(
                message=f"{IN_A_ROW} trials in a row failed without a cause in their settings",
                seen=f"the last one: {record.message}",
                so="the study is stopped; finished trials are kept",
                hint=self._show(record),
            )

    def _own_flag(self, record: TrialRecord, outcome: Infeasible) -> bool:
        """Whether a refused flag belongs to this candidate alone, so that others may go on."""
        flag = str(outcome.diagnosis.facts.get("flag") or "").lstrip("-").removeprefix("no-")
        return flag in record.candidate.changed_from(self._baseline)

    def _show(self, record: TrialRecord) -> str:
        return f"`autotune show {self._directory} --trial {record.number}` shows its log"


def _evidence(record: TrialRecord) -> str | None:
    return "\n        ".join(record.evidence[:3]) or None
