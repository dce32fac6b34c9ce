"""The guard on answers: a candidate that changes a lossy knob is compared with the baseline before
it may count. Runs in the trial, after the replay, while the server is up.

The reference is what the baseline's trial left in its folder, so a resumed study goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.engine import Diagnosis
from autotune.errors import InputError
from autotune.launch.launcher import RunningServer
from autotune.measure.likelihood import (
    BROKEN_SHARE,
    DECODE_FLOOR,
    LEAST_PASSAGES,
    Estimate,
    Finding,
    agreement_of,
    broken_share,
    fall_of,
    judged,
    loss_of,
)
from autotune.measure.outcome import Infeasible, Measured, Unmeasurable
from autotune.space.candidate import Candidate
from autotune.spec.model import QualitySpec
from autotune.study.across import tagged
from autotune.study.answers import AnswerReader, Questions, Reading
from autotune.study.directory import StudyDirectory
from autotune.study.phases import PhaseClock
from autotune.study.prepared import PreparedStudy
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask

PHASE = "checking answers"
REASON = "quality"
REFERENCE = "reference"
"""The verdict in the record of a trial that others are compared with."""
LOSS_WORDS = {
    "likelihood": "the rise in perplexity",
    "agreement": "the share of greedy answers after the first difference",
    "lm-eval": "the fall of the task's score",
}
"""Check -> its loss in words."""
NOTHING = Reading(engine="", texts="")


class AnswerGuard:
    """Checks the trials of one study."""

    def __init__(
        self,
        study: PreparedStudy,
        directory: StudyDirectory,
        events: EventStream,
        *,
        clock: Clock,
        stop: StopSignal,
    ) -> None:
        self._study = study
        self._directory = directory
        self._events = events
        self._clock = clock
        self._stop = stop
        self._quality = study.spec.quality or QualitySpec(check="none")
        self._idle = not study.lossy or self._quality.check == "none"
        self._readers: dict[str, AnswerReader] = {}

    def check(
        self,
        task: TrialTask,
        server: RunningServer,
        outcome: Measured,
        folder: Path,
        phases: PhaseClock,
    ) -> Measured | Infeasible | Unmeasurable:
        """The outcome after the check, where one is due. A confirmation repeats what was checked,
        and what misses a limit cannot win: neither is asked. Raises Interrupted, and InputError
        where a task of `lm-eval` gives nothing for the baseline.
        """
        if self._idle or task.role not in ("baseline", "search"):
            return outcome
        if task.candidate == self._today(task):
            with phases.phase(PHASE):
                return self._remember(task, server, outcome, folder, phases)
        if not outcome.score.feasible or not self._changed(task):
            return outcome
        with phases.phase(PHASE):
            return self._compared(task, server, outcome, folder, phases)

    def _today(self, task: TrialTask) -> Candidate:
        """What a trial's answers are held against: the baseline, in its engine's own form."""
        for side in self._study.sides:
            if side.engine.kind == task.candidate.engine:
                return tagged(side, side.baseline)
        return self._study.baseline

    def _changed(self, task: TrialTask) -> list[str]:
        """The lossy parameters in which this trial differs from the baseline of its engine."""
        changed = task.candidate.changed_from(self._today(task))
        return [name for name in changed if name in self._study.lossy]

    def _read(self, task: TrialTask, server: RunningServer, seconds: float) -> Reading:
        own = self._study.on(task.candidate.engine)
        kind = own.engine.kind
        if kind not in self._readers:
            self._readers[kind] = AnswerReader(
                Questions.of(own), self._quality, clock=self._clock, stop=self._stop
            )
        return self._readers[kind].read(server, seconds)

    def _seconds(self, phases: PhaseClock) -> float:
        limit_s = self._quality.seconds
        return limit_s if phases.left_s is None else min(limit_s, phases.left_s)

    def _remember(
        self,
        task: TrialTask,
        server: RunningServer,
        outcome: Measured,
        folder: Path,
        phases: PhaseClock,
    ) -> Measured:
        """Keep the baseline's own answers as the reference."""
        began = self._clock.monotonic()
        seen = self._read(task, server, self._seconds(phases))
        seen.write(folder)
        lacks = self._lack(seen)
        if lacks is not None and self._quality.check == "lm-eval":
            raise InputError(
                message=f"the task {self._quality.task} gives nothing to compare with: {lacks}",
                so="the study is stopped after its baseline",
                hint="try it by hand with `python -m lm_eval`, or `quality: {check: likelihood}`",
            )
        if lacks is not None:
            self._events.emit("note", message=f"no lossy setting can pass the check: {lacks}")
        quality: dict[str, Json] = {
            "check": self._quality.check,
            "verdict": REFERENCE,
            "texts": seen.texts,
            "passages": len(self._decisive(seen)),
            "answers": len(seen.answers),
            "seconds": round(self._clock.monotonic() - began, 3),
        }
        return replace(outcome, quality=quality)

    def _lack(self, reference: Reading | None) -> str | None:
        """Why nothing can be compared with this reference, in words; None if it can."""
        if reference is None:
            return "the baseline's answers are not there"
        count = len(self._decisive(reference))
        if count >= LEAST_PASSAGES:
            return None
        why = reference.refused or (
            f"{self._quality.seconds:.0f} s were too short for more: `quality: time:` sets them"
        )
        return f"of the baseline only {count} answers are known ({why})"

    def _decisive(self, seen: Reading) -> Mapping[str, object]:
        """What the check's verdict rests on."""
        kinds: dict[str, Mapping[str, object]]
        kinds = {"likelihood": seen.scores, "lm-eval": seen.documents}
        return kinds.get(self._quality.check, seen.answers)

    def _compared(
        self,
        task: TrialTask,
        server: RunningServer,
        outcome: Measured,
        folder: Path,
        phases: PhaseClock,
    ) -> Measured | Infeasible | Unmeasurable:
        began, seconds = self._clock.monotonic(), self._seconds(phases)
        reference = self._reference(self._study.on(task.candidate.engine).engine.kind)
        lacks = self._lack(reference)
        if reference is None or lacks is not None:
            finding = Finding(verdict="not_enough", because=lacks or "")
            _, numbers = compare(self._quality, NOTHING, NOTHING)
            numbers |= {"verdict": finding.verdict, "because": lacks, "seconds": 0.0}
            return self._refused(task, outcome, numbers, finding)
        seen = self._read(task, server, seconds)
        seen.write(folder)
        finding, numbers = compare(self._quality, reference, seen)
        ended = server.poll() is not None
        if ended:
            because = "the server ended while its answers were checked"
            finding = Finding(verdict="not_enough", because=because)
        numbers |= {
            "verdict": finding.verdict,
            "because": finding.because or None,
            "seconds": round(self._clock.monotonic() - began, 3),
        }
        if finding.verdict == "passed":
            return replace(outcome, quality=numbers)
        if finding.verdict == "not_enough" and seconds < self._quality.seconds and not ended:
            return Unmeasurable(
                reason="budget_ended",
                message=f"the study's time ended while answers were checked: {finding.because}",
                measurement=outcome.measurement,
            )
        return self._refused(task, outcome, numbers, finding)

    def _reference(self, kind: str) -> Reading | None:
        """What the baseline's trial left; of several the latest, of this engine if there is one."""
        kept = [r for r in self._directory.records() if r.quality.get("verdict") == REFERENCE]
        readings = [Reading.of(self._directory.trial(r.number)) for r in kept]
        found = [reading for reading in readings if reading is not None]
        own = [one for one in found if one.engine == kind]
        return next(reversed(own or found), None)

    def _refused(
        self, task: TrialTask, outcome: Measured, numbers: Mapping[str, Json], finding: Finding
    ) -> Infeasible:
        """What a candidate ends as whose answers are worse, or cannot be shown not to be."""
        changed, params = self._changed(task), task.candidate.params
        flags = self._study.on(task.candidate.engine).target.knob_flags
        worse = finding.verdict == "failed"
        facts: dict[str, Json] = {"lossy": changed}
        if worse:
            # The same lossy values give the same answers, whatever else is set
            facts["blames"] = [flags.get(name, name) for name in changed]
        words = ", ".join(f"{name} {params.get(name, 'left out')}" for name in changed)
        lead = "answers are worse" if worse else "answers are not shown to be as good"
        return Infeasible(
            diagnosis=Diagnosis(
                fault="candidate",
                phase="load",
                reason=REASON,
                remedy=None,
                message=f"{lead} with {words}: {finding.because}",
                facts=facts,
            ),
            measurement=outcome.measurement,
            quality=numbers,
        )


def compare(
    quality: QualitySpec, reference: Reading, seen: Reading
) -> tuple[Finding, dict[str, Json]]:
    """What two readings say of a candidate, and the numbers that its record keeps
    (docs/quality.md). Pure.
    """
    agreement = agreement_of(reference.units, seen.units)
    loss: Estimate | None
    match quality.check:
        case "likelihood":
            loss = loss_of(reference.scores, seen.scores)
        case "lm-eval":
            loss = fall_of(reference.documents, seen.documents)
        case _:
            loss = None if agreement is None else agreement.rest
    finding = _garbage(reference, seen) or judged(loss, quality.limit, LOSS_WORDS[quality.check])
    if loss is None and finding.verdict == "not_enough" and seen.refused is not None:
        finding = Finding(verdict="not_enough", because=f"nothing to compare: {seen.refused}")
    if finding.verdict == "passed" and agreement is not None and _parts_at_once(agreement):
        because = "greedy answers part from the baseline's at once, though texts are read as before"
        finding = Finding(verdict="failed", because=because)
    return finding, {
        "check": quality.check,
        "max_loss": quality.limit,
        "loss": None if loss is None else loss.value,
        "loss_low": None if loss is None else loss.low,
        "loss_high": None if loss is None else loss.high,
        "passages": 0 if loss is None else loss.count,
        "agreement": None if agreement is None else agreement.value,
        "answers": 0 if agreement is None else agreement.count,
        "garbage": sum(wrong is not None for wrong in seen.wrong.values()),
        "texts": seen.texts,
    }


def _garbage(reference: Reading, seen: Reading) -> Finding | None:
    """Answers and numbers that are none: they need no statistics."""
    share = broken_share(reference.wrong, seen.wrong)
    if share > BROKEN_SHARE:
        words = ", ".join(sorted({wrong for wrong in seen.wrong.values() if wrong is not None}))
        because = f"{share:.0%} of the answers are garbage ({words})"
        return Finding(verdict="failed", because=because)
    if seen.broken > BROKEN_SHARE * (seen.broken + len(seen.scores)):
        because = f"the log-probabilities of {seen.broken} texts are no numbers"
        return Finding(verdict="failed", because=because)
    return None


def _parts_at_once(agreement: Estimate) -> bool:
    return agreement.high is not None and agreement.high < DECODE_FLOOR
