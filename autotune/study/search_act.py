"""The second act: proposals are launched in every free slot until budget or space is used up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autotune.clock import StopSignal
from autotune.measure.outcome import Infeasible, Stopped
from autotune.search.proposer import Known, Proposal, Proposer
from autotune.space.candidate import Candidate
from autotune.study.executor import Finished
from autotune.study.launches import Launches
from autotune.study.refusals import Refusals
from autotune.study.spending import Spending
from autotune.study.voice import Voice

LATE_ASKS = 10
"""So many proposals that could not finish in time are passed over for one that can."""
SECOND_BASELINE_FROM = 20
"""In so long a search one launch goes to a second one of the baseline, for the noise."""
SECOND_BASELINE_AFTER = 12
"""So many trials come first: they show what is worth having, the noise what is worth believing."""
REFUSED_IN_A_ROW = 500
"""After so many proposals in a row that were refused without a launch, no other is expected."""


class SearchAct:
    """Asks the proposer, launches, tells it the ends."""

    def __init__(
        self,
        proposer: Proposer,
        launches: Launches,
        spending: Spending,
        refusals: Refusals,
        voice: Voice,
        *,
        stop: StopSignal,
        judge: Callable[[Finished], None],
        believe: Callable[[Mapping[str, float]], None],
        reasons: Mapping[Candidate, str],
    ) -> None:
        """`judge` raises where going on is pointless. `believe` takes what the proposer believes of
        the trials so far. `reasons`: why some candidates are tried.
        """
        self._proposer = proposer
        self._launches = launches
        self._spending = spending
        self._refusals = refusals
        self._voice = voice
        self._stop = stop
        self._judge = judge
        self._believe = believe
        self._reasons = reasons
        self._open: dict[int, Proposal] = {}
        self._again: Candidate | None = None

    def run(self, known: Sequence[Known], *, again: Candidate | None = None) -> str:
        """Search to the end; returns why it ended. `known`: what was tried before. `again`: the
        baseline, where a second launch of it should tell how much launches differ.
        """
        self._proposer.seed([*known, *self._refusals.known()])
        if self._spending.counted + (self._spending.left().launches or 0) > SECOND_BASELINE_FROM:
            self._again = again
        because = None
        while True:
            while because is None and self._launches.free:
                because = self._begin()
            if not self._launches.busy:
                assert because is not None
                return because
            finished = self._launches.ended()
            proposal = self._open.pop(finished.task.slot, None)
            if proposal is not None:
                self._proposer.tell(proposal, finished.outcome)
                self._believe(self._proposer.believed())
            elif finished.record.state == "infeasible":
                self._voice.note(
                    f"the baseline failed in a later launch: {finished.record.message}"
                )
            self._judge(finished)
            # What ended may have changed what fits, and what there is to propose
            because = None

    def _begin(self) -> str | None:
        """Launch one more trial; why none is launched, or None."""
        self._stop.check()
        decision = self._spending.may_start()
        if not decision.allowed:
            return decision.reason
        if self._again is not None and self._spending.counted >= SECOND_BASELINE_AFTER:
            self._launches.begin("check", self._again)
            self._again = None
            return None
        proposal, because = self._next()
        if proposal is None:
            return because
        task = self._launches.begin(
            "search",
            proposal.candidate,
            why=self._reasons.get(proposal.candidate, proposal.why),
            predicted=proposal.predicted,
        )
        self._open[task.slot] = proposal
        return None

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
                    self._voice.refused(proposal.candidate, refused, len(self._refusals))
                    turned_down += 1
                    if turned_down == REFUSED_IN_A_ROW:
                        return None, f"{turned_down} settings in a row were refused before launch"
                    continue
                decision = self._spending.may_start(proposal.candidate)
                if decision.allowed:
                    return proposal, ""
                late.append(proposal)
                because = decision.reason
            return None, because
        finally:
            # Open until now, so that others were proposed; a longer budget may still try them
            for proposal in late:
                self._proposer.tell(proposal, Stopped(message="no time was left for it"))
