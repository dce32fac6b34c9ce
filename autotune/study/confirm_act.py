"""The third act: baseline and finalists are launched again, in interleaved pairs.

A pair stays in one slot, so that both of its sides run on the same GPUs; several slots run several
pairs at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from autotune.clock import StopSignal
from autotune.search.finalists import launch_order
from autotune.space.candidate import Candidate
from autotune.study.executor import Finished
from autotune.study.launches import Launches
from autotune.study.ledger import Ledger
from autotune.study.prepared import PreparedStudy
from autotune.study.spending import Spending
from autotune.study.voice import Voice

Pair = tuple[int, deque[Candidate]]
"""The number of a pair, and what of it is still to be launched, in order."""


class ConfirmAct:
    """Launches pairs until the verdict stands or the budget ends."""

    def __init__(
        self,
        study: PreparedStudy,
        launches: Launches,
        ledger: Ledger,
        spending: Spending,
        voice: Voice,
        *,
        stop: StopSignal,
        judge: Callable[[Finished], None],
    ) -> None:
        """`judge` raises where going on is pointless."""
        self._study = study
        self._launches = launches
        self._ledger = ledger
        self._spending = spending
        self._voice = voice
        self._stop = stop
        self._judge = judge
        self._cut: str | None = None
        self._open: bool | None = None
        self._failed = False

    def run(self) -> str | None:
        """Confirm; returns why it was cut short, or None."""
        while True:
            pairs = self._pairs()
            if not pairs:
                return None
            self._failed = False
            self._round(deque(pairs))
            if self._cut is not None:
                return f"the confirmation was cut short: {self._cut}"

    def _pairs(self) -> list[Pair]:
        """What is still to be launched; nothing where no verdict can follow from it."""
        finalists = self._ledger.conclusion().finalists(self._study.spec.search.finalists)
        baseline = self._ledger.baseline
        if not finalists or baseline is None or baseline.state != "measured":
            return []
        sides = {record.number: record.candidate for record in (baseline, *finalists)}
        affordable = self._spending.pairs(len(finalists))
        repeats = self._study.spec.search.repeats
        planned = min(affordable, repeats)
        left = self._left(baseline.number, sides, planned)
        # What the search left over may bear more than the share that was kept back
        while not left and planned < repeats and self._spending.may_confirm(len(sides)).allowed:
            planned += 1
            left = self._left(baseline.number, sides, planned)
        if not left and affordable > planned and self._is_open(planned):
            left = self._left(baseline.number, sides, affordable)
        return left

    def _left(self, baseline: int, sides: Mapping[int, Candidate], count: int) -> list[Pair]:
        """What of `count` pairs was not launched yet. `sides`: by trial of the search."""
        done = {(r.pair, r.candidate) for r in self._ledger.conclusion().confirmations()}
        finalists = [number for number in sides if number != baseline]
        left: dict[int, deque[Candidate]] = {}
        for launch in launch_order(baseline, finalists, count):
            if (launch.pair, sides[launch.trial]) not in done:
                left.setdefault(launch.pair, deque()).append(sides[launch.trial])
        return list(left.items())

    def _is_open(self, planned: int) -> bool:
        """The look after the planned pairs; made once, for every further look would find more."""
        if self._open is None:
            conclusion = self._ledger.conclusion()
            begun = any((r.pair or 0) >= planned for r in conclusion.confirmations())
            self._open = begun or conclusion.is_open(self._study.spec.search.finalists)
            if self._open:
                self._voice.note(
                    f"{planned} pairs leave open whether the finalist is better; more are launched"
                )
        return self._open

    def _round(self, waiting: deque[Pair]) -> None:
        """Launch these pairs, each in one slot, until they are through or one ends the round."""
        mine: dict[int, Pair] = {}
        while True:
            for slot in self._launches.free:
                if not self._goes_on:
                    break
                if slot not in mine and waiting:
                    mine[slot] = self._balanced(waiting.popleft())
                if slot in mine:
                    self._begin(slot, *mine[slot])
            if not self._launches.busy:
                return
            finished = self._launches.ended()
            slot = finished.task.slot
            if slot in mine and not mine[slot][1]:
                del mine[slot]
            self._judge(finished)
            self._look(finished)

    @property
    def _goes_on(self) -> bool:
        return self._cut is None and not self._failed

    def _begin(self, slot: int, pair: int, candidates: deque[Candidate]) -> None:
        self._stop.check()
        # Half a pair tells nothing: the rest of it has to fit
        decision = self._spending.may_confirm(len(candidates))
        if not decision.allowed:
            self._cut = decision.reason
            return
        self._launches.begin("confirm", candidates.popleft(), pair=pair, slot=slot)

    def _balanced(self, pair: Pair) -> Pair:
        """The pair with the baseline first where relative limits need its numbers."""
        number, candidates = pair
        baseline = self._study.baseline
        needed = self._study.relative_limits and not self._ledger.has_confirmed_baseline
        if needed and self._launches.slots > 1 and baseline in candidates:
            rest = [candidate for candidate in candidates if candidate != baseline]
            return number, deque([baseline, *rest])
        return pair

    def _look(self, finished: Finished) -> None:
        """A finalist that fails in any of these launches is out; the next best takes its place."""
        record = finished.record
        if record.role != "confirm" or record.candidate == self._study.baseline:
            return
        if record.state == "infeasible":
            self._failed = True
            self._voice.note(
                f"trial {record.number}: a finalist failed when launched again "
                f"({record.message}); it is out, the next best is confirmed instead"
            )
