"""The loop: baseline, search, confirmation, verdict. Everything it knows comes from files, so a
run that was killed goes on where its directory stands.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.clock import Clock, StopSignal
from autotune.engines.engine import Diagnosis
from autotune.engines.facts import engine_facts
from autotune.errors import AutotuneError, Interrupted
from autotune.measure.comparison import Verdict
from autotune.measure.outcome import Infeasible, Outcome, Stopped
from autotune.search.budget import Budget, Decision, affordable_repeats, may_confirm, may_start
from autotune.search.finalists import launch_order
from autotune.search.proposer import Proposal, Proposer
from autotune.search.start_cost import Expected, PastLaunch, compile_key, expected
from autotune.space.candidate import Candidate
from autotune.study.breaker import Breaker
from autotune.study.conclusion import Conclusion, mean_metrics
from autotune.study.directory import StudyDirectory, read_json, write_json
from autotune.study.implications import Implications
from autotune.study.memory_fit import MemoryFit
from autotune.study.prepare import PreparedStudy
from autotune.study.ranking import baseline_record, best_trial
from autotune.study.record import Role, TrialRecord
from autotune.study.refusals import Refusals
from autotune.study.stream import EventStream, begin_words
from autotune.study.target import all_settings, server_words
from autotune.study.task import TrialTask
from autotune.study.trial import TrialExecutor

_VOID = frozenset({"measurement_invalid", "client_failed"})
"""Reasons of our own client's: they say nothing, and another launch may go well."""

GRACE_S = 10.0
"""A trial that was begun inside the budget may run over its end by one ordinary launch and this."""

LATE_ASKS = 10
"""So many proposals that could not finish in time are passed over for one that can."""
REFUSED_IN_A_ROW = 500
"""After so many proposals in a row that were refused without a launch, no other is expected."""
REFUSALS_TOLD = 3
"""So many candidates refused before launch are named; all are counted and kept in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEnd:
    """How a run ended. `error` is set when something other than the plan ended it."""

    verdict: Verdict
    stopped_because: str
    error: AutotuneError | None = None

    @property
    def exit_code(self) -> int:
        """The command's exit code: a verdict stands (0), nothing feasible (3), or the error's."""
        if self.error is not None:
            return self.error.exit_code
        return 3 if self.verdict.verdict == "no_feasible" else 0


class StudyRunner:
    """Owns the order of trials and the budget; knows nothing of how trials are run."""

    def __init__(
        self,
        study: PreparedStudy,
        directory: StudyDirectory,
        executor: TrialExecutor,
        proposer: Proposer,
        events: EventStream,
        *,
        clock: Clock,
        stop: StopSignal,
        fit: MemoryFit | None = None,
    ) -> None:
        """`fit`: which candidates cannot fit into memory, where that can be told."""
        self._study = study
        self._directory = directory
        self._executor = executor
        self._proposer = proposer
        self._events = events
        self._clock = clock
        self._stop = stop
        self._records: list[TrialRecord] = directory.records()
        self._budget = Budget(
            time_s=study.spec.budget.time,
            trials=study.spec.budget.trials,
            used_s=sum(r.seconds.get("total", 0.0) for r in self._records),
        )
        self._breaker = Breaker(
            directory.path,
            study.baseline,
            relative_limits=study.relative_limits,
            flags=study.target.knob_flags,
            engine=server_words(study.engine.kind, study.engine_version, study.target.image),
        )
        self._began = clock.monotonic()
        self._compiled = engine_facts(study.engine.kind).compile_flags(study.engine_version)
        self._fit = fit
        self._implied = Implications(
            engine_facts(study.engine.kind),
            lambda candidate: all_settings(candidate, study.engine.kind, study.target),
        )
        for record in self._records:
            self._learn(record)
        judges = [self._implied.refusal, *([] if fit is None else [fit.refusal])]
        self._refusals = Refusals(directory.path, judges)

    def run(self) -> StudyEnd:
        """Run to the end of the budget. Raises nothing that a study can meet: the end says what
        happened, and `verdict.json` holds the verdict on what was measured so far.
        """
        error: AutotuneError | None = None
        self._announce()
        try:
            self._baseline()
            because = self._search()
            because = self._confirm() or because
        except AutotuneError as raised:
            error, because = raised, raised.message
        verdict = self._conclusion().verdict(self._study.spec.search.finalists)
        write_json(
            self._directory.path / "verdict.json",
            {
                **verdict.to_json(),
                "stopped_because": because,
                "interrupted": isinstance(error, Interrupted),
                "refused_before_launch": len(self._refusals),
            },
        )
        self._events.emit(
            "study_finished",
            verdict=verdict.verdict,
            best=verdict.best,
            trials=len(self._records),
            reason=verdict.reason,
            stopped_because=because,
            refused_before_launch=len(self._refusals),
        )
        return StudyEnd(verdict=verdict, stopped_because=because, error=error)

    # ---- the three acts

    def _baseline(self) -> None:
        record = baseline_record(self._finished())
        if record is None or record.state == "unmeasurable":
            record, _ = self._launch("baseline", self._study.baseline)
        if (note := self._breaker.baseline(record)) is not None:
            self._note(note)

    def _search(self) -> str:
        self._proposer.seed([*self._conclusion().known(), *self._refusals.known()])
        while (decision := self._may_start()).allowed:
            proposal, because = self._next()
            if proposal is None:
                return because
            record, outcome = self._launch("search", proposal.candidate)
            self._proposer.tell(proposal, outcome)
            self._judge(record, outcome)
        return decision.reason

    def _next(self) -> tuple[Proposal | None, str]:
        """A proposal that is worth a launch and can finish; else None and why there is none."""
        late: list[Proposal] = []
        because = "every setting of the space was tried"
        turned_down = 0
        try:
            while len(late) < LATE_ASKS and (proposal := self._proposer.ask()) is not None:
                self._stop.check()
                refused = self._refusals.judge(proposal.candidate)
                if refused is not None:
                    self._proposer.tell(proposal, Infeasible(diagnosis=refused))
                    self._tell_refused(proposal.candidate, refused)
                    turned_down += 1
                    if turned_down == REFUSED_IN_A_ROW:
                        return None, f"{turned_down} settings in a row were refused before launch"
                    continue
                decision = self._may_start(proposal.candidate)
                if decision.allowed:
                    return proposal, ""
                late.append(proposal)
                because = decision.reason
            return None, because
        finally:
            # Open until now, so that others were proposed; a longer budget may still try them
            for proposal in late:
                self._proposer.tell(proposal, Stopped(message="no time was left for it"))

    def _confirm(self) -> str | None:
        finalists = self._conclusion().finalists(self._study.spec.search.finalists)
        baseline = baseline_record(self._finished())
        if not finalists or baseline is None or baseline.state != "measured":
            return None
        repeats = affordable_repeats(
            self._budget,
            repeats=self._study.spec.search.repeats,
            finalists=len(finalists),
            launch_s=self._launch_s(),
        )
        sides = {record.number: record.candidate for record in (baseline, *finalists)}
        done = {(r.pair, r.candidate) for r in self._conclusion().confirmations()}
        for launch in launch_order(baseline.number, [f.number for f in finalists], repeats):
            candidate = sides[launch.trial]
            if (launch.pair, candidate) in done:
                continue
            decision = may_confirm(
                self._budget, elapsed_s=self._elapsed(), durations=self._durations()
            )
            if not decision.allowed:
                return f"the confirmation was cut short: {decision.reason}"
            record, outcome = self._launch("confirm", candidate, pair=launch.pair)
            self._judge(record, outcome)
            if record.state == "infeasible" and candidate != baseline.candidate:
                self._note(
                    f"trial {record.number}: a finalist failed when launched again "
                    f"({record.message}); it is out, the next best is confirmed instead"
                )
                return self._confirm()
        return None

    # ---- one trial

    def _judge(self, record: TrialRecord, outcome: Outcome) -> None:
        """Raise where going on is pointless; the baseline tells a bad machine from bad luck."""
        doubt = self._breaker.after(record, outcome)
        if doubt is not None:
            self._note(f"{doubt}; the baseline is launched again to see if the machine still works")
            check, _ = self._launch("check", self._study.baseline)
            self._note(self._breaker.checked(check))

    def _launch(
        self, role: Role, candidate: Candidate, pair: int | None = None
    ) -> tuple[TrialRecord, Outcome]:
        """Run one trial; once more if the machine was at fault, or the measurement is void and the
        budget allows another.
        """
        record, outcome = self._attempt(role, candidate, pair)
        void = record.reason in _VOID and (role != "search" or self._may_start(candidate).allowed)
        if record.fault == "environment" or void:
            self._note(f"trial {record.number}: {record.message}; once more, the same settings")
            record, outcome = self._attempt(role, candidate, pair)
        self._tell_best()
        return record, outcome

    def _attempt(
        self, role: Role, candidate: Candidate, pair: int | None
    ) -> tuple[TrialRecord, Outcome]:
        start = self._expected(candidate)
        task = TrialTask(
            number=self._directory.next_number(),
            role=role,
            candidate=candidate,
            pair=pair,
            held_out=role == "confirm",
            baseline=self._reference(role, candidate),
            deadline_s=self._deadline(),
            start_s=None if start is None else start.start_s,
        )
        try:
            record, outcome = self._executor.run(task)
            self._learn(record)
            return record, outcome
        finally:
            self._records = self._directory.records()

    def _learn(self, record: TrialRecord) -> None:
        """Keep what a trial implies; correct the memory estimate by what its log said."""
        self._implied.learn(record)
        if self._fit is not None and record.memory.get("log"):
            self._fit.learn(record.candidate, record.memory["log"])

    def _reference(self, role: Role, candidate: Candidate) -> Mapping[str, float | None] | None:
        """The metrics that relative limits refer to: trial 0's, in the confirmation those of the
        baseline's confirm launches so far, which see the same traffic. None: the trial's own.
        """
        if role == "baseline":
            return None
        if role == "confirm":
            repeats = [
                record
                for record in self._records
                if record.role == "confirm"
                and record.state == "measured"
                and record.candidate == self._study.baseline
            ]
            if repeats:
                return mean_metrics([self._metrics(r) for r in repeats])
            if candidate == self._study.baseline:
                return None
        baseline = baseline_record(self._finished())
        if baseline is None or baseline.state != "measured":
            return {}
        return self._metrics(baseline)

    def _metrics(self, record: TrialRecord) -> dict[str, float | None]:
        data = read_json(self._directory.trial(record.number) / "measurement.json")
        metrics: dict[str, float | None] = data["metrics"]
        return metrics

    def _conclusion(self) -> Conclusion:
        return Conclusion(self._records, self._study.spec.objective, self._study.baseline)

    # ---- budget

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._began

    def _finished(self) -> list[TrialRecord]:
        return [r for r in self._records if r.state != "interrupted"]

    def _durations(self) -> list[float]:
        """What whole launches took: one that failed early says nothing about the next."""
        ended = [r for r in self._finished() if "total" in r.seconds]
        whole = [r for r in ended if r.state == "measured"]
        return [r.seconds["total"] for r in whole or ended]

    def _launch_s(self) -> float | None:
        durations = self._durations()
        return statistics.median(durations) if durations else None

    def _may_start(self, candidate: Candidate | None = None) -> Decision:
        """Whether this launch, or any at all (None: a warm start), can finish in time."""
        self._stop.check()
        warm = self._expected(self._study.baseline)
        this = None if candidate is None else self._expected(candidate)
        return may_start(
            self._budget,
            elapsed_s=self._elapsed(),
            finished=sum(not r.is_repeat for r in self._finished()),
            durations=self._durations() if warm is None else [warm.total_s],
            repeats=self._study.spec.search.repeats,
            finalists=self._study.spec.search.finalists,
            launch_s=None if this is None else this.total_s,
        )

    def _expected(self, candidate: Candidate) -> Expected | None:
        """What a launch will take, by whether its settings were compiled in this study before."""
        past = [
            PastLaunch(
                key=self._compile_key(record.candidate),
                start_s=record.seconds["launching"],
                total_s=record.seconds["total"],
            )
            for record in self._finished()
            if record.state == "measured" and {"launching", "total"} <= record.seconds.keys()
        ]
        return expected(past, self._compile_key(candidate))

    def _compile_key(self, candidate: Candidate) -> str:
        return compile_key({**self._study.target.args, **candidate.params}, self._compiled)

    def _deadline(self) -> float | None:
        if self._budget.time_s is None:
            return None
        left = self._budget.time_s - self._budget.used_s - self._elapsed()
        return max(left, 0.0) + (self._launch_s() or 0.0) + GRACE_S

    # ---- voice

    def _announce(self) -> None:
        self._events.emit(
            "study_started",
            **begin_words(self._study, self._records),
            directory=str(self._directory.path),
            used_s=round(self._budget.used_s, 3),
            durations=self._durations(),
            reference=self._reference("search", self._study.baseline) or {},
        )
        for note in self._study.notes:
            self._note(note)
        self._tell_best()

    def _tell_best(self) -> None:
        best = best_trial(self._finished(), self._study.spec.objective)
        if best is not None:
            metric = self._study.spec.objective[0].metric.name
            self._events.emit(
                "best",
                trial=best.number,
                role=best.role,
                values=list(best.values.values()),
                metric=metric,
            )

    def _tell_refused(self, candidate: Candidate, why: Diagnosis) -> None:
        count = len(self._refusals)
        if count > REFUSALS_TOLD:
            return
        changed = candidate.changed_from(self._study.baseline)
        settings = ", ".join(f"{name} {value}" for name, (_, value) in changed.items())
        more = "; further ones are only counted" if count == REFUSALS_TOLD else ""
        self._note(f"refused before launch: {settings}: {why.message}{more}")

    def _note(self, message: str) -> None:
        self._events.emit("note", message=message)
