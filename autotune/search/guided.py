"""The guided search: every launch is chosen by a calibrated model and what launches taught since.

Expected improvement over the best known settings, times the chance that every limit holds and that
the launch serves (Jones, Schonlau and Welch 1998; Gardner et al. 2014), on the logs of the metrics.
Where no model can be calibrated, or its predictions prove wrong, TPE goes on with what is known.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.canonical import Json
from autotune.engines.engine import Diagnosis
from autotune.measure.outcome import Infeasible, Measured, Outcome, Stopped, Unmeasurable
from autotune.search.acquisition import Appraisal, Belief, appraise
from autotune.search.candidate_pool import CandidatePool
from autotune.search.choices import Choices
from autotune.search.forecast import Forecast, Part
from autotune.search.guided_model import GuidedModel
from autotune.search.optuna_proposer import OptunaProposer
from autotune.search.proposer import Known, Proposal
from autotune.search.risk import Risk, named_knobs
from autotune.search.step_back import knobs_of, memory_direction, memory_order_of
from autotune.search.targets import (
    Limits,
    Seen,
    known_of,
    seen_before,
    seen_in,
    served,
    targets_of,
)
from autotune.search.trust import Trust
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace
from autotune.spec.expressions import Constraint, Objective

CLOSELY, ROUNDS = 10, 5
"""So many of the most promising candidates are predicted exactly, so many times at most, before one
is chosen."""
FEWER, SETTLED = 400, 30
"""After so many launches only so many are looked at more than once: all that behaves differently
was simulated by then, and what is far behind stays there."""
UNTRIED_AT_ONCE = 2
"""A launch tries so many values at most of knobs that the model does not understand."""
NO_MODEL = "no model could be calibrated"


@dataclass(frozen=True, slots=True)
class _Open:
    """A proposal that is out: its candidate and place, the other proposer's where it came from
    there, and what was expected of the first objective (mean, spread).
    """

    candidate: Candidate
    place: int | None = None
    theirs: Proposal | None = None
    expected: tuple[float, float] | None = None


class GuidedProposer:
    """A `Proposer` led by a `Forecast`, which is asked for when the search begins."""

    def __init__(
        self,
        space: SearchSpace,
        facts: Mapping[str, Json],
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
        *,
        seed: int = 0,
        storage_path: Path | None = None,
        forecast: Callable[[], Forecast | None] | None = None,
        first: Sequence[Candidate] = (),
    ) -> None:
        self._choices = Choices(space, facts)
        self._targets = targets_of(objectives, constraints)
        self._limits = Limits(constraints)
        self._seed = seed
        self._make_forecast = forecast
        self._first = list(first)
        # Learns along from the start: what it keeps for other tools is the whole study's
        self._fallback = OptunaProposer(
            space, facts, objectives, constraints,
            seed=seed, storage_path=storage_path, first=first,
        )  # fmt: skip
        self._forecast: Forecast | None = None
        self._model: GuidedModel | None = None
        self._pool: CandidatePool | None = None
        order = memory_order_of(space, facts, "vllm")
        names = tuple(knob.name for knob in space.knobs)
        share, need = knobs_of(order.share, self._choices), knobs_of(order.need, self._choices)
        self._knobs = {knob.flag or knob.name: knob.name for knob in space.knobs}
        ordered = frozenset(name for name in names if self._choices.is_ordered(name))
        self._risk = Risk(names, share=share, need=need, ordered=ordered)
        self._rare = {t.name: Risk(names, ordered=ordered) for t in self._targets if t.rare}
        self._trust = Trust()
        self._known: list[Known] = []
        self._open: dict[int, _Open] = {}
        self._seen: set[str] = set()
        self._best: dict[str, float] = {}
        self._promise: dict[int, float] = {}
        self._tokens = 0
        self._led_by: str | None = None
        self._said = False

    @property
    def storage_problem(self) -> str | None:
        """See `OptunaProposer`."""
        return self._fallback.storage_problem

    def seed(self, known: Sequence[Known]) -> None:
        self._known = list(known)
        self._fallback.seed(known)
        self._forecast = self._make_forecast() if self._make_forecast is not None else None
        if self._forecast is None:
            self._hand_over(NO_MODEL)
            return
        self._build(self._forecast)
        for item in known:
            if item.values is not None or item.diagnosis is not None:
                self._seen.add(item.candidate.key)
                worked = item.values is not None or bool(item.violations)
                seen = seen_before(item, self._targets)
                self._take(item.candidate, seen, worked=worked, why=item.diagnosis)

    def ask(self) -> Proposal | None:
        if self._model is None and self._led_by is None:
            self.seed(())
        if self._led_by is not None:
            return self._asked_of_fallback()
        assert self._model is not None
        assert self._pool is not None
        return self._firstly() or self._chosen(self._model, self._pool)

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        """Report how a proposal ended. Raises KeyError for one that is not open."""
        opened = self._open.pop(proposal.token)
        if opened.theirs is not None:
            self._fallback.tell(opened.theirs, outcome)
            return
        if isinstance(outcome, Stopped):
            self._seen.discard(opened.candidate.key)
            return
        known = known_of(opened.candidate, outcome, self._targets)
        self._known.append(known)
        self._fallback.seed([known])
        worked = served(outcome)
        if isinstance(outcome, Measured):
            self._limits.learn(outcome.score.limits)
        whole = self._learned(opened.candidate, outcome)
        seen = seen_in(outcome, self._targets, best=self._best, whole=whole)
        self._judge(opened, seen)
        if worked is not None:
            diagnosis = outcome.diagnosis if isinstance(outcome, Infeasible) else None
            self._take(opened.candidate, seen, worked=worked, why=diagnosis)
        if (why := self._trust.lost()) is not None and self._led_by is None:
            self._hand_over(f"the predictions proved wrong: {why}")

    def believed(self) -> Mapping[str, float]:
        """See `Proposer`."""
        if self._model is None or self._pool is None or self._led_by is not None:
            return {}
        believed = self._model.believed()
        return {self._pool.candidates[place].key: value for place, value in believed.items()}

    # ---- learning

    def _build(self, forecast: Forecast) -> None:
        self._pool = CandidatePool(self._choices, seed=self._seed)
        for item in self._known:
            self._pool.include(item.candidate)
        self._model = GuidedModel(self._targets, self._limits, self._pool, self._choices, forecast)
        if self._known:
            self._limits.guess(forecast.predict(self._known[0].candidate))

    def _take(
        self,
        candidate: Candidate,
        seen: Mapping[str, Seen],
        *,
        worked: bool,
        why: Diagnosis | None = None,
    ) -> None:
        """Let model and risks learn what a launch said, or `why` it failed."""
        place = self._pool.include(candidate) if self._pool is not None else None
        if place is None or self._model is None or self._pool is None:
            return
        indices = self._pool.indices[place]
        if not worked:
            facts = {} if why is None else why.facts
            words = "" if why is None else " ".join((why.message, *why.evidence))
            self._risk.learn(
                indices,
                failed=True,
                blamed=[self._knobs.get(str(flag), "") for flag in facts.get("blames") or ()],
                named=named_knobs(words, candidate.params),
                memory=None if why is None else memory_direction(why),
            )
            return
        self._risk.learn(indices, failed=False)
        for name, risk in self._rare.items():
            if name in seen:
                risk.learn(indices, failed=seen[name].value > 0)
        self._model.learn(place, {n: s for n, s in seen.items() if n not in self._rare})
        limits = [t.name for t in self._targets if not t.objective]
        if all(seen[name].value <= 0 for name in limits if name in seen):
            for target in self._targets:
                if target.objective and target.name in seen and not seen[target.name].extra:
                    value = seen[target.name].value
                    self._best[target.name] = min(value, self._best.get(target.name, math.inf))

    def _learned(self, candidate: Candidate, outcome: Outcome) -> Mapping[str, float]:
        """Let the forecast learn from a launch. Returns the quantities, by target, that a replay
        which was ended early would have had.
        """
        if self._forecast is None or not isinstance(outcome, Measured | Infeasible):
            return {}
        measurement, part = outcome.measurement, None
        if isinstance(outcome, Infeasible):
            if outcome.stopped is None or any(target.searched for target in self._targets):
                return {}
            ended = 0 if measurement is None else measurement.ok
            part = Part(until_s=outcome.stopped.at_s, ended=ended)
        if measurement is None:
            return {}
        whole = self._forecast.learn(candidate, measurement.metrics, part)
        if self._model is not None:
            self._model.outdated()
        return {
            target.name: target.log(whole[target.key], self._limits[target.name])
            for target in self._targets
            if target.key in whole and (target.objective or self._limits[target.name] is not None)
        }

    def _judge(self, opened: _Open, seen: Mapping[str, Seen]) -> None:
        """Hold a launch against what was expected of it."""
        first = seen.get(self._targets[0].name)
        if opened.expected is not None and first is not None and not first.extra:
            self._trust.learn(*opened.expected, first.value)

    def _hand_over(self, why: str) -> None:
        self._led_by = why
        if self._forecast is not None:
            self._forecast.give_way(why)

    # ---- proposing

    def _firstly(self) -> Proposal | None:
        """What was asked to be tried before anything else."""
        assert self._pool is not None
        while self._first:
            candidate = self._first.pop(0)
            if candidate.key not in self._seen and self._choices.allows(candidate):
                return self._proposal(candidate, place=self._pool.include(candidate))
        return None

    def _chosen(self, model: GuidedModel, pool: CandidatePool) -> Proposal | None:
        places = [i for i, c in enumerate(pool.candidates) if c.key not in self._seen]
        if not places:
            return self._drawn(pool)
        pending = [o.place for o in self._open.values() if o.place is not None]
        known = [p for item in self._known if (p := pool.place(item.candidate)) is not None]
        close = self._allowed(places, known)
        close.sort(key=lambda place: self._promise.get(place, math.inf))
        sharp: set[int] = set()
        for _ in range(ROUNDS):
            model.sketch(close)
            found = self._appraise(close, known, model.beliefs(close, pending=pending))
            order = [close[i] for i in np.argsort(-found.score, kind="stable")]
            self._promise |= {place: rank for rank, place in enumerate(order)}
            if sharp.issuperset(order[:CLOSELY]):
                break
            sharp.update(order[:CLOSELY])
            model.sharpen(order[:CLOSELY])
            # Else in the order of before: each round simulates what no other one did
            if len(known) > SETTLED:
                close = order[:FEWER]
        close = sorted(sharp)
        found = self._appraise(close, known, model.beliefs(close, pending=pending))
        place = close[found.best(self._fewest_changes(close))]
        one = self._appraise([place], known, model.beliefs([place], pending=pending))
        pool.extend_around([place, *known[:3]])
        first = self._targets[0].name
        belief = one.beliefs[first]
        spread = math.sqrt(float(belief.variance[0] + belief.noise[0]))
        return self._proposal(
            pool.candidates[place],
            place=place,
            why=one.words(self._targets, self._limits),
            predicted=model.expected(place, one.beliefs),
            expected=(float(belief.mean[0]), spread),
        )

    def _appraise(
        self, places: list[int], known: list[int], beliefs: Mapping[str, Belief]
    ) -> Appraisal:
        assert self._pool is not None
        assert self._model is not None
        indices = [self._pool.indices[place] for place in places]
        chance = 1 - self._risk.of(indices)
        for risk in self._rare.values():
            chance = chance * (1 - risk.of(indices))
        measured = self._model.measured
        served = [place for place in known if place in measured]
        return appraise(
            self._targets,
            beliefs,
            self._model.beliefs(served) if served else {},
            chance,
            incumbent=self._model.incumbent(),
            seed=self._derived(),
        )

    def _allowed(self, places: list[int], known: list[int]) -> list[int]:
        """Leave out what tries more untried values of knobs that are not understood than one launch
        can tell apart, as long as something is left.
        """
        assert self._pool is not None
        assert self._model is not None
        unknown = self._model.unknown
        if not unknown or not known:
            return places
        tried = {
            (name, position) for p in known for name, position in self._pool.indices[p].items()
        }
        kept = [
            place
            for place in places
            if sum(
                name in unknown and (name, position) not in tried
                for name, position in self._pool.indices[place].items()
            )
            <= UNTRIED_AT_ONCE
        ]
        return kept or places

    def _fewest_changes(self, places: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How many knobs differ from today, which decides ties; equal ones are drawn."""
        assert self._pool is not None
        changes = np.random.default_rng(self._derived()).random(len(places))
        if self._known:
            origin = self._known[0].candidate
            changes += [len(self._pool.candidates[p].changed_from(origin)) for p in places]
        return changes

    def _drawn(self, pool: CandidatePool) -> Proposal | None:
        """Something that is in no pool, in a large space; None when the space is used up."""
        if pool.whole:
            return None
        from random import Random

        rng = Random(self._derived())
        indices = self._choices.draw(rng, lambda candidate: candidate.key in self._seen)
        candidate = None if indices is None else self._choices.candidate(indices)
        if candidate is None:
            return None
        return self._proposal(candidate, place=pool.include(candidate))

    def _asked_of_fallback(self) -> Proposal | None:
        out = {opened.candidate.key for opened in self._open.values()}
        held: list[Proposal] = []
        while (theirs := self._fallback.ask()) is not None and theirs.candidate.key in self._seen:
            if theirs.candidate.key in out:
                held.append(theirs)
            else:
                # It ended without a verdict before: another launch would say no more
                known = Unmeasurable(reason="tried_before", message="launched before")
                self._fallback.tell(theirs, known)
        for proposal in held:
            self._fallback.tell(proposal, Stopped())
        if theirs is None:
            return None
        why = None
        if not self._said:
            why, self._said = f"{self._led_by}: TPE proposes from here on", True
        return self._proposal(theirs.candidate, theirs=theirs, why=why or theirs.why)

    def _proposal(
        self, candidate: Candidate, *, place: int | None = None, theirs: Proposal | None = None,
        why: str | None = None, predicted: Mapping[str, float] | None = None,
        expected: tuple[float, float] | None = None,
    ) -> Proposal:  # fmt: skip
        self._tokens += 1
        self._seen.add(candidate.key)
        self._open[self._tokens] = _Open(candidate, place, theirs, expected)
        return Proposal(
            candidate=candidate, token=self._tokens, why=why, predicted=dict(predicted or {})
        )

    def _derived(self) -> int:
        text = f"{self._seed}/{len(self._seen)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
