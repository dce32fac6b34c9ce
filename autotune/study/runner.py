"""The loop: baseline, search, confirmation, verdict. Everything it knows comes from files, so a
run that was killed goes on where its directory stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from autotune.clock import Clock, StopSignal
from autotune.errors import AutotuneError, Interrupted
from autotune.measure.comparison import Verdict
from autotune.search.proposer import Proposer
from autotune.space.candidate import Candidate
from autotune.study.breaker import Breaker
from autotune.study.confirm_act import ConfirmAct
from autotune.study.directory import StudyDirectory, write_json
from autotune.study.engine_judges import EngineImplications
from autotune.study.executor import Executor, Finished
from autotune.study.launches import Launches
from autotune.study.ledger import Ledger
from autotune.study.memory_fit import Fits
from autotune.study.noise_floor import FILE, noise_json
from autotune.study.prepared import PreparedStudy, engine_words
from autotune.study.record import TrialRecord
from autotune.study.refusals import Refusals
from autotune.study.search_act import SECOND_BASELINE_FROM, SearchAct
from autotune.study.spending import Spending
from autotune.study.stream import EventStream
from autotune.study.voice import Voice

NOISE_FROM = 10
"""A study of fewer trials spends none of its time on repeats of the baseline."""


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
        executor: Executor,
        proposer: Proposer,
        events: EventStream,
        *,
        clock: Clock,
        stop: StopSignal,
        fit: Fits | None = None,
        reasons: Mapping[Candidate, str] = MappingProxyType({}),
    ) -> None:
        """`clock`: the executor's. `fit`: which candidates cannot fit into memory, where that can
        be told. `reasons`: why some candidates are tried, for their records.
        """
        self._study = study
        self._directory = directory
        self._stop = stop
        self._fit = fit
        self._ledger = Ledger(study, directory)
        self._spending = Spending(study, self._ledger, directory, clock=clock, slots=executor.slots)
        self._voice = Voice(study, events)
        self._breaker = Breaker(
            directory.path,
            study.baseline,
            relative_limits=study.relative_limits,
            flags={
                n: f for kind in study.kinds for n, f in study.on(kind).target.knob_flags.items()
            },
            engine=lambda kind: engine_words(study.on(kind)),
        )
        self._implied = EngineImplications(study)
        for record in self._ledger.records:
            self._learn(record)
        judges = [self._implied.refusal, *([] if fit is None else [fit.refusal])]
        self._refusals = Refusals(directory.path, judges)
        self._launches = Launches(
            study, executor, self._ledger, self._spending, self._voice,
            clock=clock, learn=self._heard,
        )  # fmt: skip
        self._searching = SearchAct(
            proposer, self._launches, self._spending, self._refusals, self._voice,
            stop=stop, judge=self._judge, believe=self._ledger.believe, reasons=reasons,
        )  # fmt: skip
        self._confirming = ConfirmAct(
            study, self._launches, self._ledger, self._spending, self._voice,
            stop=stop, judge=self._judge,
        )  # fmt: skip

    def run(self) -> StudyEnd:
        """Run to the end of the budget. Raises nothing that a study can meet: the end says what
        happened, and `verdict.json` holds the verdict on what was measured so far.
        """
        error: AutotuneError | None = None
        self._announce()
        try:
            self._baseline()
            because = self._searching.run(
                self._ledger.conclusion().known(), again=self._unsure_of()
            )
            because = self._confirming.run() or because
        except AutotuneError as raised:
            error, because = raised, raised.message
            self._launches.settle()
        except BaseException:
            # A fault of our own: nothing that was started may outlive it
            if self._launches.busy:
                self._stop.request()
                self._launches.settle()
            raise
        search = self._study.spec.search
        verdict = self._ledger.conclusion().verdict(search.finalists, search.repeats)
        write_json(
            self._directory.path / "verdict.json",
            {
                **verdict.to_json(),
                "stopped_because": because,
                "interrupted": isinstance(error, Interrupted),
                "refused_before_launch": len(self._refusals),
            },
        )
        self._voice.end(
            verdict,
            trials=len(self._ledger.records),
            because=because,
            refused=len(self._refusals),
        )
        return StudyEnd(verdict=verdict, stopped_because=because, error=error)

    def _announce(self) -> None:
        ledger = self._ledger
        self._voice.begin(
            ledger.records,
            directory=str(self._directory.path),
            slots=self._launches.slots,
            used_s=self._spending.budget.used_s,
            durations=ledger.durations,
            reference=ledger.reference("search", self._study.baseline) or {},
        )
        self._voice.best(ledger.best)

    def _baseline(self) -> None:
        """The first act."""
        record = self._ledger.baseline
        if record is None or record.state == "unmeasurable":
            self._stop.check()
            repeats = self._study.spec.search.baseline_repeats if self._repeats_tell else 0
            record = self._launches.alone("baseline", self._study.baseline, repeats=repeats).record
        if (note := self._breaker.baseline(record)) is not None:
            self._voice.note(note)

    @property
    def _repeats_tell(self) -> bool:
        """Whether the noise is worth its time, and shows in repeats: a capacity is found on a
        ladder.
        """
        limits = (self._study.spec.budget.trials, self._size)
        worth = all(limit is None or limit >= NOISE_FROM for limit in limits)
        return worth and not any(o.metric.searched for o in self._study.spec.objective)

    @cached_property
    def _size(self) -> int | None:
        """How many settings the space has; None: a great many."""
        return self._study.space.size(self._study.facts)

    def _unsure_of(self) -> Candidate | None:
        """The baseline, if a second launch of it is still to tell how much launches differ."""
        baseline = self._ledger.baseline
        if baseline is None or baseline.state != "measured" or not self._repeats_tell:
            return None
        done = any(record.role == "check" for record in self._ledger.finished)
        enough = self._size is None or self._size >= SECOND_BASELINE_FROM
        wanted = self._study.spec.search.baseline_repeats > 0 and enough and not done
        return self._study.baseline if wanted else None

    def _judge(self, finished: Finished) -> None:
        """Raise where going on is pointless; the baseline tells a bad machine from bad luck."""
        doubt = self._breaker.after(finished.record, finished.outcome)
        if doubt is not None:
            self._voice.note(
                f"{doubt}; the baseline is launched again to see if the machine still works"
            )
            self._stop.check()
            check = self._launches.alone("check", self._study.baseline)
            self._voice.note(self._breaker.checked(check.record))

    def _heard(self, record: TrialRecord) -> None:
        """Take in a trial that ended; the baseline's tell how much measurements differ."""
        self._learn(record)
        if record.role not in ("baseline", "check"):
            return
        noise = noise_json(self._ledger.records, self._study.spec.objective)
        if noise:
            write_json(self._directory.path / FILE, noise)
        for text, found in noise.items():
            self._voice.note(
                f"{text}: measurements of the baseline differ by {found['spread']:.1%}; "
                f"results within {found['tie']:.1%} of each other are ties"
            )

    def _learn(self, record: TrialRecord) -> None:
        """Keep what a trial implies; correct the memory estimate by what its log said."""
        self._implied.learn(record)
        if self._fit is not None and record.memory.get("log"):
            self._fit.learn(record.candidate, record.memory["log"])
