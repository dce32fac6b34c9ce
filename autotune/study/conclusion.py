"""What finished trials add up to: the finalist, its pairs with the baseline, the verdict. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from autotune.measure.comparison import ConfirmPair, Standing, Verdict, decide
from autotune.search.finalists import Contender, choose
from autotune.search.proposer import Known
from autotune.space.candidate import Candidate
from autotune.spec.expressions import Objective
from autotune.study.ranking import baseline_record, best_trial, failed_again
from autotune.study.record import TrialRecord


class Conclusion:
    """Reads one set of finished records (interrupted trials are ignored)."""

    def __init__(
        self,
        records: Sequence[TrialRecord],
        objectives: Sequence[Objective],
        baseline: Candidate,
    ) -> None:
        self._records = [r for r in records if r.state != "interrupted"]
        self._objectives = objectives
        self._baseline = baseline

    def finalists(self, count: int) -> list[TrialRecord]:
        """The search trials that are worth a confirmation, best first: feasible, better than the
        baseline, and not failed in a later launch; at most `count`.
        """
        origin = baseline_record(self._records)
        out = failed_again(self._records)
        searched = [r for r in self._records if r.role == "search" and r.candidate not in out]
        chosen = choose(
            [self._contender(r) for r in searched],
            None if origin is None else self._contender(origin),
            direction=self._objectives[0].direction,
            count=count,
        )
        by_number = {record.number: record for record in self._records}
        return [by_number[number] for number in chosen]

    def confirmations(self) -> list[TrialRecord]:
        """Every finished confirm launch."""
        return [r for r in self._records if r.role == "confirm"]

    def verdict(self, finalists: int = 1) -> Verdict:
        """The verdict on what was measured so far; `finalists`: how many were to be confirmed.

        Of several, the one speaks that did best in the confirmation among those that kept the
        limits there, so one that was only lucky in the search hands over to the next.
        """
        origin = baseline_record(self._records)
        chosen = self._winner(self.finalists(finalists))
        best = chosen or best_trial(self._records, self._objectives)
        return decide(
            objective=self._objectives[0],
            baseline=None if origin is None else self._standing(origin),
            best=None if best is None else self._standing(best),
            pairs=[] if chosen is None else self._pairs(chosen),
        )

    def _winner(self, finalists: list[TrialRecord]) -> TrialRecord | None:
        sign = 1 if self._objectives[0].direction == "minimize" else -1

        def order(finalist: TrialRecord) -> tuple[bool, float]:
            pairs = self._pairs(finalist)
            broken = 2 * sum(not pair.best_feasible for pair in pairs) > len(pairs)
            logs = [ratio for pair in pairs if (ratio := pair.log_ratio) is not None]
            return broken, sign * statistics.fmean(logs) if logs else math.inf

        # min keeps the search's order among equals, such as finalists without any launch yet
        return min(finalists, key=order, default=None)

    def known(self) -> list[Known]:
        """The trials that a proposer learns from."""
        return [
            Known(
                candidate=record.candidate,
                values=[record.values[o.text] for o in self._objectives]
                if record.state == "measured"
                else None,
                violations=record.constraints,
                infeasible_reason=record.reason if record.state == "infeasible" else None,
            )
            for record in self._records
            if not record.is_repeat
        ]

    def _pairs(self, finalist: TrialRecord) -> list[ConfirmPair]:
        launches = self.confirmations()
        pairs = []
        for number in sorted({r.pair for r in launches if r.pair is not None}):
            # A void launch was repeated: the one with a value speaks
            ours = sorted(
                (r for r in launches if r.pair == number), key=lambda r: self._value(r) is None
            )
            base = next((r for r in ours if r.candidate == self._baseline), None)
            best = next((r for r in ours if r.candidate == finalist.candidate), None)
            if base is None or best is None:
                continue
            pairs.append(
                ConfirmPair(
                    pair=number,
                    baseline_trial=base.number,
                    best_trial=best.number,
                    baseline_value=self._value(base),
                    best_value=self._value(best),
                    best_feasible=best.feasible,
                )
            )
        return pairs

    def _value(self, record: TrialRecord) -> float | None:
        return record.values.get(self._objectives[0].text)

    def _standing(self, record: TrialRecord) -> Standing:
        return Standing(trial=record.number, value=self._value(record), feasible=record.feasible)

    def _contender(self, record: TrialRecord) -> Contender:
        return Contender(
            trial=record.number,
            value=self._value(record),
            feasible=record.feasible,
            changes=len(record.candidate.changed_from(self._baseline)),
        )


def mean_metrics(metrics: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Mean of each metric over launches; None where any launch has none."""
    keys = set.intersection(*(set(m) for m in metrics)) if metrics else set()
    result: dict[str, float | None] = {}
    for key in keys:
        present = [value for value in (m[key] for m in metrics) if value is not None]
        result[key] = statistics.fmean(present) if len(present) == len(metrics) else None
    return result
