"""The verdict: is the best candidate really better than the baseline, the next morning too?

Pure functions on plain numbers. Confirm launches come in pairs (baseline, candidate), interleaved,
so that drift of the machine falls on both; the ratio within a pair is compared with 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Literal

from autotune.canonical import Json
from autotune.spec.expressions import Objective

VerdictName = Literal["better", "not_distinguishable", "keep_baseline", "no_feasible"]

MIN_PAIRS = 3
"""Fewer pairs give no interval, so nothing is called confirmed."""
PROMISING = 0.05
"""Without an interval an improvement must exceed this share (and the noise) to be shown at all."""

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A trial of the search (or the baseline) as the verdict sees it: its objective value in the
    metric's unit (None unless measured) and whether it met all limits.
    """

    trial: int
    value: float | None
    feasible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmPair:
    """Two confirm launches that belong together. A value is None where that launch gave none;
    `best_feasible` False: the candidate's launch failed or broke a limit.
    """

    pair: int
    baseline_trial: int | None
    best_trial: int | None
    baseline_value: float | None
    best_value: float | None
    best_feasible: bool = True

    def to_json(self) -> dict[str, Json]:
        return {
            "pair": self.pair,
            "baseline_trial": self.baseline_trial,
            "best_trial": self.best_trial,
            "baseline_value": self.baseline_value,
            "best_value": self.best_value,
        }

    @property
    def log_ratio(self) -> float | None:
        """log(candidate / baseline); None unless both values are there and positive."""
        if self.baseline_value is None or self.best_value is None:
            return None
        if self.baseline_value <= 0 or self.best_value <= 0:
            return None
        return math.log(self.best_value / self.baseline_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Candidate over baseline: the geometric mean ratio and its 95 % interval (None: too few
    pairs).
    """

    ratio: float
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, Json]:
        return {"ratio": self.ratio, "low": self.low, "high": self.high}


FinalistWord = Literal["better", "trade_off", "not_distinguishable", "worse", "broke_limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalistVerdict:
    """What the confirmation says of one finalist of a study with several objectives.

    `trial`: of the search. `changes`, `baseline_values`, `values`: by objective text; values in
    base units, from the confirm launches where there are any, else from the search.
    """

    trial: int
    verdict: FinalistWord
    confirmed: bool
    reason: str
    changes: Mapping[str, Change | None]
    baseline_values: Mapping[str, float | None]
    values: Mapping[str, float | None]

    def to_json(self) -> dict[str, Json]:
        return {
            "trial": self.trial,
            "verdict": self.verdict,
            "confirmed": self.confirmed,
            "reason": self.reason,
            "changes": {
                text: None if change is None else change.to_json()
                for text, change in self.changes.items()
            },
            "baseline_values": dict(self.baseline_values),
            "values": dict(self.values),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """A trial that broke a limit: limit text -> normalised violation (above 0: broken)."""

    trial: int
    violations: Mapping[str, float]

    def to_json(self) -> dict[str, Json]:
        return {"trial": self.trial, "violations": dict(self.violations)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a study ends.

    `best`: number of the search trial that the verdict is about; for `keep_baseline` the
    baseline's, for `no_feasible` None. `baseline_value`, `best_value`: from the confirm launches
    where there are any (geometric means), else from the search. `noise`: relative spread of
    repeated launches of the baseline, None with fewer than two. `pareto`: the search's trials that
    no other beats in every objective. `finalists`: one verdict each where there are several
    objectives. `nearest`: where nothing meets the limits, the trials that miss them least.
    """

    verdict: VerdictName
    confirmed: bool
    best: int | None
    objective: Objective
    baseline_value: float | None
    best_value: float | None
    search_value: float | None
    change: Change | None
    pairs: tuple[ConfirmPair, ...]
    noise: float | None
    reason: str
    pareto: tuple[int, ...] = ()
    finalists: tuple[FinalistVerdict, ...] = ()
    nearest: tuple[NearMiss, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "verdict": self.verdict,
            "confirmed": self.confirmed,
            "best": self.best,
            "objective": self.objective.text,
            "metric": self.objective.metric.name,
            "key": self.objective.metric.key,
            "baseline_value": self.baseline_value,
            "best_value": self.best_value,
            "search_value": self.search_value,
            "change": None if self.change is None else self.change.to_json(),
            "pairs": [pair.to_json() for pair in self.pairs],
            "noise": self.noise,
            "reason": self.reason,
            "pareto": list(self.pareto),
            "finalists": [finalist.to_json() for finalist in self.finalists],
            "nearest": [miss.to_json() for miss in self.nearest],
        }


def decide(
    *,
    objective: Objective,
    baseline: Standing | None,
    best: Standing | None,
    pairs: Sequence[ConfirmPair] = (),
    confidence: float = CONFIDENCE,
) -> Verdict:
    """The verdict of a study with one objective (of several: the first).

    `baseline`: trial 0. `best`: the feasible search trial with the best value, None if there is
    none; it may be the baseline itself. `pairs`: confirm launches of `best` against the baseline.
    `confidence`: of the interval (`looks.confidence_of`).
    """
    case = _Case(
        objective=objective, baseline=baseline, best=best, pairs=tuple(pairs), confidence=confidence
    )
    baseline_holds = baseline is not None and baseline.feasible and baseline.value is not None
    if best is None or not best.feasible or best.value is None:
        if baseline_holds:
            return case.keep("no candidate meets the limits, the baseline does")
        return case.none("neither the baseline nor any candidate meets the limits")
    if baseline_holds and not pairs and not case.wins_in_search():
        return case.keep("no candidate was better than the baseline in the search")
    broken = sum(not pair.best_feasible for pair in pairs)
    if 2 * broken > len(pairs):
        text = f"the candidate broke a limit in {broken} of {len(pairs)} confirm launches"
        return (
            case.keep(text) if baseline_holds else case.none(text + ", the baseline broke them too")
        )
    if not baseline_holds:
        return case.better(
            "the candidate meets the limits, the baseline does not",
            confirmed=len(pairs) - broken >= MIN_PAIRS,
        )
    return _compare(case)


def change_of(
    pairs: Sequence[ConfirmPair], resolution: float = 0.0, confidence: float = CONFIDENCE
) -> Change | None:
    """Geometric mean of candidate/baseline over the pairs with a t interval on the log scale.

    None without a usable pair; no interval with fewer than three. `resolution`: of the metric; the
    interval reaches at least so far to both sides, for values on a ladder may agree by chance.
    """
    logs = [ratio for pair in pairs if (ratio := pair.log_ratio) is not None]
    if not logs:
        return None
    mean = math.fsum(logs) / len(logs)
    if len(logs) < MIN_PAIRS:
        return Change(ratio=math.exp(mean))
    half = t_quantile(len(logs) - 1, confidence) * stdev(logs) / math.sqrt(len(logs))
    half = max(half, math.log1p(resolution))
    return Change(ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def noise_of(values: Sequence[float | None]) -> float | None:
    """Relative spread (standard deviation of the logs) of repeated launches of one candidate."""
    logs = [math.log(value) for value in values if value is not None and value > 0]
    return stdev(logs) if len(logs) >= 2 else None


def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Two-sided point of Student's t: 12.71 for one degree of freedom and 0.95."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, (1 + confidence) / 2))


def _compare(case: _Case) -> Verdict:
    """Both meet the limits and the candidate was better in the search: does it hold?"""
    change = case.change
    if change is not None and change.low is not None and change.high is not None:
        good_end, bad_end = (
            (change.low, change.high) if case.lower_is_better else (change.high, change.low)
        )
        if case.gain(math.log(bad_end)) > 0:
            return case.better(f"{case.agreement()}, and the interval excludes no change", True)
        if case.gain(math.log(good_end)) < 0:
            return case.keep("the confirm launches show the candidate to be worse")
        return case.unclear("the interval of the confirm launches covers no change")
    gain = case.gain(math.log(change.ratio)) if change is not None else case.search_gain()
    threshold = max(math.log1p(PROMISING), case.noise or 0.0)
    agreed = all(case.gain(ratio) > 0 for ratio in case.logs)
    if gain is not None and gain > threshold and agreed:
        return case.better("promising, not confirmed: fewer than three paired launches", False)
    return case.unclear(
        "fewer than three paired launches, and the difference is within what launches vary by"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What a verdict is made of; builds the four kinds."""

    objective: Objective
    baseline: Standing | None
    best: Standing | None
    pairs: tuple[ConfirmPair, ...]
    confidence: float = CONFIDENCE

    @property
    def lower_is_better(self) -> bool:
        return self.objective.direction == "minimize"

    @property
    def change(self) -> Change | None:
        return change_of(self.pairs, self.objective.metric.resolution, self.confidence)

    @property
    def noise(self) -> float | None:
        repeats = [pair.baseline_value for pair in self.pairs]
        if len(repeats) >= 2:
            # The first launch saw the search's traffic: its value is no repeat of these
            return noise_of(repeats)
        return noise_of([self.baseline.value if self.baseline is not None else None, *repeats])

    def gain(self, log_ratio: float) -> float:
        """The log ratio with the sign that makes positive an improvement."""
        return -log_ratio if self.lower_is_better else log_ratio

    @property
    def logs(self) -> list[float]:
        """The log ratios of the pairs that have both values."""
        return [ratio for pair in self.pairs if (ratio := pair.log_ratio) is not None]

    def search_values(self) -> tuple[float, float] | None:
        """(baseline's, candidate's) value in the search; None if either is missing."""
        if self.baseline is None or self.best is None:
            return None
        if self.baseline.value is None or self.best.value is None:
            return None
        return self.baseline.value, self.best.value

    def wins_in_search(self) -> bool:
        values = self.search_values()
        if values is None or self.best == self.baseline:
            return False
        return values[1] < values[0] if self.lower_is_better else values[1] > values[0]

    def search_gain(self) -> float | None:
        """The gain on the log scale that the search saw; None where a ratio makes no sense."""
        values = self.search_values()
        if values is None or min(values) <= 0:
            return None
        return self.gain(math.log(values[1] / values[0]))

    def agreement(self) -> str:
        better = sum(self.gain(ratio) > 0 for ratio in self.logs)
        return f"better in {better} of {len(self.logs)} paired launches"

    def better(self, reason: str, confirmed: bool) -> Verdict:
        return self._verdict("better", reason, confirmed)

    def unclear(self, reason: str) -> Verdict:
        return self._verdict("not_distinguishable", reason, len(self.logs) >= MIN_PAIRS)

    def keep(self, reason: str) -> Verdict:
        return self._verdict("keep_baseline", reason, len(self.logs) >= MIN_PAIRS)

    def none(self, reason: str) -> Verdict:
        return self._verdict("no_feasible", reason, False)

    def _verdict(self, name: VerdictName, reason: str, confirmed: bool) -> Verdict:
        about = {"keep_baseline": self.baseline, "no_feasible": None}.get(name, self.best)
        # Both means over the same pairs, so that their ratio is the change that is shown
        shown = [pair for pair in self.pairs if pair.log_ratio is not None] or self.pairs
        search_value = self.best.value if self.best is not None else None
        baseline_value = self.baseline.value if self.baseline is not None else None
        return Verdict(
            verdict=name,
            confirmed=confirmed,
            best=None if about is None else about.trial,
            objective=self.objective,
            baseline_value=centre([p.baseline_value for p in shown], baseline_value),
            best_value=centre([p.best_value for p in shown], search_value),
            search_value=search_value,
            change=self.change,
            pairs=self.pairs,
            noise=self.noise,
            reason=reason,
        )


def centre(values: Sequence[float | None], otherwise: float | None) -> float | None:
    """The geometric mean of the values that are there (arithmetic with one at or below 0), or
    `otherwise` without any.
    """
    known = [value for value in values if value is not None]
    if not known:
        return otherwise
    if min(known) <= 0:
        return math.fsum(known) / len(known)
    return math.exp(math.fsum(map(math.log, known)) / len(known))
