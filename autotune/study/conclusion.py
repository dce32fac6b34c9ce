"""What finished trials add up to: the finalist, its pairs with the baseline, the verdict. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.measure.comparison import ConfirmPair, NearMiss, Standing, Verdict, decide
from autotune.measure.looks import confidence_of, worth_more_pairs
from autotune.measure.noise import is_tie
from autotune.measure.outcome import EarlyEnd
from autotune.measure.several import Finalist, decide_several
from autotune.search.finalists import Contender, choose
from autotune.search.pareto import most_telling
from autotune.search.proposer import Known
from autotune.space.candidate import Candidate
from autotune.spec.expressions import Objective
from autotune.study.noise_floor import noise_floor
from autotune.study.ranking import (
    baseline_record,
    best_trial,
    costs,
    failed_again,
    nearest_to_limits,
    pareto_front,
)
from autotune.study.record import TrialRecord

WITHIN_NOISE = "no candidate was better than the baseline by more than its own measurements differ"
ALIKE = 0.005
"""Beliefs (logs) that differ by no more are equal: they hold little of single launches' noise."""
NEAR = 0.1
"""How far (a log) the best candidate may be behind the baseline to be launched in pairs with it."""
NEAREST = 3
"""So many of the trials that miss the limits least are named where nothing meets them."""


class Conclusion:
    """Reads one set of finished records (interrupted trials are ignored)."""

    def __init__(
        self,
        records: Sequence[TrialRecord],
        objectives: Sequence[Objective],
        baseline: Candidate,
        *,
        believed: Mapping[int, float] | None = None,
    ) -> None:
        """`believed`: trial of the search -> what its settings are believed to do, from a search
        method with a model; see `Proposer.believed`.
        """
        self._records = [r for r in records if r.state != "interrupted"]
        self._believed = believed or {}
        self._objectives = objectives
        self._baseline = baseline

    def finalists(self, count: int) -> list[TrialRecord]:
        """The search trials that are worth a confirmation, best first: feasible, better than the
        baseline, and not failed in a later launch; at most `count`. Where none is better, the one
        that came nearest to a baseline which keeps the limits, if it came near: that today's
        settings are not beaten is to have its interval, too. With several objectives the most
        telling points of the front.

        Their order is that of what is believed of them, where the search has a model; their values
        are always those that were measured.
        """
        if len(self._objectives) > 1:
            front = [r for r in self.front() if r.candidate != self._baseline]
            points = [point for r in front if (point := costs(r, self._objectives)) is not None]
            return [front[index] for index in most_telling(points, count)]
        return self.ahead(count) or self._nearest()

    def ahead(self, count: int) -> list[TrialRecord]:
        """The finalists that were better than the baseline in the search."""
        origin = baseline_record(self._records)
        baseline = None if origin is None else replace(self._contender(origin), value=self._centre)
        return self._chosen(baseline, count)

    def _nearest(self) -> list[TrialRecord]:
        """The trial that came nearest to a baseline which keeps the limits; none if none came near,
        or if there is nothing to come near to.
        """
        origin, today = baseline_record(self._records), self._centre
        if origin is None or not origin.feasible or today is None or today <= 0:
            return []
        return [
            record
            for record in self._chosen(None, 1)
            if (value := self._contender(record).value) is not None and is_tie(value, today, NEAR)
        ]

    @property
    def _centre(self) -> float | None:
        """The baseline's value, by all its measurements on the traffic of the search."""
        origin = baseline_record(self._records)
        noise = noise_floor(self._records, self._objectives[0].text)
        if noise is not None:
            return noise.centre
        return None if origin is None else self._value(origin)

    def _chosen(self, baseline: Contender | None, count: int) -> list[TrialRecord]:
        noise = noise_floor(self._records, self._objectives[0].text)
        out = failed_again(self._records)
        searched = [r for r in self._records if r.role == "search" and r.candidate not in out]
        chosen = choose(
            [self._contender(r) for r in searched],
            baseline,
            direction=self._objectives[0].direction,
            count=count,
            tie=ALIKE if self._believed else 0.0 if noise is None else noise.tie,
            baseline_tie=0.0 if noise is None else noise.tie_with_centre,
        )
        by_number = {record.number: record for record in self._records}
        return [by_number[number] for number in chosen]

    def front(self) -> list[TrialRecord]:
        """The trials that no other beats in every objective, best in the first one first."""
        return pareto_front(self._records, self._objectives)

    def confirmations(self) -> list[TrialRecord]:
        """Every finished confirm launch."""
        return [r for r in self._records if r.role == "confirm"]

    def verdict(self, finalists: int = 1, repeats: int | None = None) -> Verdict:
        """The verdict on what was measured so far; `finalists`: how many were to be confirmed,
        `repeats`: in how many pairs, before any were added (None: all that there are).

        Of several, the one speaks that did best in the confirmation among those that kept the
        limits there, so one that was only lucky in the search hands over to the next.
        """
        if len(self._objectives) > 1:
            verdict = self._several(self.finalists(finalists))
            verdict = replace(verdict, pareto=tuple(r.number for r in self.front()))
        else:
            verdict = self._single(finalists, repeats)
        if verdict.verdict != "no_feasible":
            return verdict
        near = nearest_to_limits(self._records)[:NEAREST]
        misses = (NearMiss(trial=r.number, violations=r.constraints) for r in near)
        return replace(verdict, nearest=tuple(misses))

    def _several(self, finalists: Sequence[TrialRecord]) -> Verdict:
        origin = baseline_record(self._records)
        best = best_trial(self._records, self._objectives)
        return decide_several(
            self._objectives,
            baseline=None if origin is None else self._standing(origin),
            baseline_values={} if origin is None else origin.values,
            best=None if best is None else self._standing(best),
            finalists=[
                Finalist(
                    trial=finalist.number,
                    values=finalist.values,
                    pairs={o.text: self._pairs(finalist, o.text) for o in self._objectives},
                )
                for finalist in finalists
            ],
        )

    def _single(self, finalists: int, repeats: int | None) -> Verdict:
        origin = baseline_record(self._records)
        field = self.finalists(finalists)
        chosen = self._winner(field)
        pairs = [] if chosen is None else self._pairs(chosen)
        if not pairs and not self.ahead(1):
            chosen = None
        planned = len(pairs) if repeats is None else repeats
        first = best_trial(self._records, self._objectives, tie=0.0)
        # Where nobody is worth a confirmation, a baseline that keeps the limits stays
        holds = origin is not None and origin.feasible and self._value(origin) is not None
        best = chosen or (origin if holds else first)
        baseline = None if origin is None else self._today(origin)
        candidate = None if best is None else self._standing(best)
        verdict = decide(
            objective=self._objectives[0],
            baseline=baseline,
            best=baseline if best is origin else candidate,
            pairs=pairs,
            confidence=confidence_of(len(pairs), planned=planned, finalists=len(field)),
        )
        if origin is not None and not pairs:
            # What is shown of trial 0 is what stands in its record
            verdict = replace(verdict, baseline_value=self._value(origin))
        if best is origin and first is not None and first is not origin:
            return replace(verdict, reason=WITHIN_NOISE)
        return verdict

    def _today(self, origin: TrialRecord) -> Standing:
        """The baseline by all its measurements on the traffic of the search."""
        return replace(self._standing(origin), value=self._centre)

    def is_open(self, finalists: int) -> bool:
        """Whether more pairs may well settle the verdict (one objective only)."""
        field = self.finalists(finalists)
        chosen = self._winner(field)
        if chosen is None or len(self._objectives) > 1:
            return False
        return worth_more_pairs(self._pairs(chosen), self._objectives[0], finalists=len(field))

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
                violations=record.search_violations,
                diagnosis=record.diagnosis,
                stopped=EarlyEnd.from_json(record.stopped_early) if record.stopped_early else None,
            )
            for record in self._records
            if not record.is_repeat
        ]

    def _pairs(self, finalist: TrialRecord, objective: str | None = None) -> list[ConfirmPair]:
        """By the objective of this text, else by the first."""
        launches = self.confirmations()
        pairs = []
        for number in sorted({r.pair for r in launches if r.pair is not None}):
            # A void launch was repeated: the one with a value speaks
            ours = sorted(
                (r for r in launches if r.pair == number),
                key=lambda r: self._value(r, objective) is None,
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
                    baseline_value=self._value(base, objective),
                    best_value=self._value(best, objective),
                    best_feasible=best.feasible,
                )
            )
        return pairs

    def _value(self, record: TrialRecord, objective: str | None = None) -> float | None:
        return record.values.get(objective or self._objectives[0].text)

    def _standing(self, record: TrialRecord) -> Standing:
        return Standing(trial=record.number, value=self._value(record), feasible=record.feasible)

    def _contender(self, record: TrialRecord) -> Contender:
        return Contender(
            trial=record.number,
            value=self._believed.get(record.number, self._value(record)),
            feasible=record.feasible,
            changes=len(record.candidate.changed_from(self._baseline)),
            certain=record.certain,
        )


def mean_metrics(metrics: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Mean of each metric over launches; None where any launch has none."""
    keys = set.intersection(*(set(m) for m in metrics)) if metrics else set()
    result: dict[str, float | None] = {}
    for key in keys:
        present = [value for value in (m[key] for m in metrics) if value is not None]
        result[key] = statistics.fmean(present) if len(present) == len(metrics) else None
    return result
