"""When going on is pointless: failures that say nothing about the settings, or about all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from autotune.errors import AutotuneError, EnvironmentFault, InputError, Untrustworthy
from autotune.measure.outcome import Infeasible, Outcome
from autotune.space.candidate import Candidate
from autotune.study.record import TrialRecord

IN_A_ROW = 3
"""After so many failures in a row that say nothing about the parameters, the machine is doubted."""

_SILENT = frozenset({"not_ready_in_time", "killed_time_limit", "hang"})
"""Reasons of infeasible trials that a bad machine gives as well as bad settings."""


class Breaker:
    """Looks at every finished trial and raises the error that ends the study."""

    def __init__(
        self,
        directory: Path,
        baseline: Candidate,
        *,
        relative_limits: bool,
        flags: Mapping[str, str] = MappingProxyType({}),
        engine: Callable[[str | None], str] = lambda kind: "",
    ) -> None:
        """`flags`: knob -> its flag, where the two differ. `engine`: what runs in words, by the
        engine that a candidate names.
        """
        self._directory = directory
        self._baseline = baseline
        self._relative_limits = relative_limits
        self._flags = flags
        self._engine = engine
        self._silent = 0
        self._baseline_works = False
        self._refused: list[str] = []

    def baseline(self, record: TrialRecord) -> str | None:
        """Judge trial 0. Returns a note when the study can go on without it."""
        if record.state == "measured":
            self._baseline_works = True
            return None
        hint = self._show(record)
        if record.state == "infeasible":
            own = not self._is_fixed(record)
            if record.fault == "candidate" and own and not self._relative_limits:
                return f"the baseline does not work: {record.message}; the search goes on without"
            raise InputError(
                message=f"the baseline does not work: {record.message}",
                seen=self._seen(record),
                so="nothing else was tried",
                hint=hint,
            )
        if record.reason == "budget_ended":
            raise InputError(
                message=f"the baseline could not be measured: {record.message}",
                so="nothing else was tried",
                hint="a larger `budget: time:`, or a smaller `workload: window:`",
            )
        kind: type[AutotuneError] = Untrustworthy if record.fault == "tool" else EnvironmentFault
        raise kind(
            message=f"the baseline could not be measured: {record.message}",
            seen=_evidence(record),
            so="nothing else was tried",
            hint=hint,
        )

    def after(self, record: TrialRecord, outcome: Outcome) -> str | None:
        """Judge any later trial. Returns what is doubted when the baseline should be launched
        again, to tell a bad machine from bad candidates; give that launch to `checked`.
        """
        if not (isinstance(outcome, Infeasible) and outcome.diagnosis.fault == "study"):
            self._refused.clear()
        elif not self._may_differ(record, outcome):
            raise InputError(
                message=f"every trial would fail: {outcome.diagnosis.message}",
                seen=self._seen(record),
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
        silent = record.state == "unmeasurable" or record.reason in _SILENT
        self._silent = self._silent + 1 if silent else 0
        if self._silent < IN_A_ROW:
            return None
        if not self._baseline_works:
            raise self._machine(record, f"the last one: {record.message}")
        return f"{IN_A_ROW} trials in a row failed without a cause in their settings"

    def checked(self, record: TrialRecord) -> str:
        """Judge the baseline's launch that was to tell; returns a note if the study can go on."""
        if record.state != "measured":
            raise self._machine(
                record, f"the baseline, which worked before, fails now: {record.message}"
            )
        self._silent = 0
        return "the baseline still works: the fault is with those candidates; the study goes on"

    def _machine(self, record: TrialRecord, seen: str) -> EnvironmentFault:
        return EnvironmentFault(
            message=f"{IN_A_ROW} trials in a row failed without a cause in their settings",
            seen=seen,
            so="the study is stopped; finished trials are kept",
            hint=self._show(record),
        )

    def _is_fixed(self, record: TrialRecord) -> bool:
        """Whether the engine refused a value that no trial can change."""
        blames = record.facts.get("blames")
        own = {_bare(self._flags.get(name, name)) for name in record.params}
        return isinstance(blames, list) and not own & {_bare(str(name)) for name in blames}

    def _may_differ(self, record: TrialRecord, outcome: Infeasible) -> bool:
        """Whether others may go on: the refused flag is this candidate's own, and not refused by
        so many candidates in a row that it looks like everybody's. Another engine than the
        baseline's fails for itself alone.
        """
        if record.candidate.engine != self._baseline.engine:
            return True
        flag = _bare(str(outcome.diagnosis.facts.get("flag") or ""))
        changed = record.candidate.changed_from(self._baseline)
        if flag not in {_bare(self._flags.get(name, name)) for name in changed}:
            return False
        self._refused = [*self._refused, flag] if flag in self._refused[-1:] else [flag]
        return len(self._refused) < IN_A_ROW

    def _seen(self, record: TrialRecord) -> str | None:
        """The decisive lines, and which server said them."""
        engine = self._engine(record.candidate.engine)
        lines = [*record.evidence[:3], *([f"from {engine}"] if engine else [])]
        return "\n        ".join(lines) or None

    def _show(self, record: TrialRecord) -> str:
        return f"`autotune show {self._directory} --trial {record.number}` shows its log"


def _bare(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-").removeprefix("no-")


def _evidence(record: TrialRecord) -> str | None:
    return "\n        ".join(record.evidence[:3]) or None
