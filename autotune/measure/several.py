"""The verdict of a study with several objectives: one for each finalist, then one for the study.

A finalist is `better` if the confirm launches show it better in one objective at least and worse in
none: no interval lies on the bad side, and no mean is worse by more than `PROMISING`. All intervals
of a study hold together with 95 %: each has the level 1 - 0.05 / (objectives x finalists)
(Bonferroni), so that many looks find no more false improvements than one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, stdev

from autotune.measure.comparison import (
    CONFIDENCE,
    MIN_PAIRS,
    PROMISING,
    Change,
    ConfirmPair,
    FinalistVerdict,
    FinalistWord,
    Standing,
    Verdict,
    VerdictName,
    centre,
    decide,
    noise_of,
    t_quantile,
)
from autotune.spec.expressions import Objective

_SLACK = math.log1p(PROMISING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A point of the front that was launched again.

    `trial`, `values`: of the search; values by objective text in base units. `pairs`: objective
    text -> its confirm launches beside the baseline's, seen through that objective.
    """

    trial: int
    values: Mapping[str, float]
    pairs: Mapping[str, Sequence[ConfirmPair]]


def decide_several(
    objectives: Sequence[Objective],
    *,
    baseline: Standing | None,
    baseline_values: Mapping[str, float],
    best: Standing | None,
    finalists: Sequence[Finalist],
) -> Verdict:
    """The verdict of a study with two or more objectives.

    `baseline`, `best`: as for `decide`, by the first objective; `baseline_values`: the baseline's
    values in the search. `finalists`: in the order of the choice. The verdict speaks of the one
    that is better and gains most in the first objective; where none is, today's settings stay.
    """
    first = objectives[0]
    if not finalists:
        return decide(objective=first, baseline=baseline, best=best)
    holds = baseline is not None and baseline.feasible and baseline.value is not None
    judged = _judge_all(objectives, finalists, baseline_values if holds else None)
    chosen = min(judged, key=lambda verdict: _rank(verdict, first))
    finalist = next(f for f in finalists if f.trial == chosen.trial)
    shell = decide(
        objective=first,
        baseline=baseline,
        best=Standing(trial=chosen.trial, value=finalist.values[first.text], feasible=True),
        pairs=tuple(finalist.pairs[first.text]),
    )
    name = _name(chosen.verdict, baseline_holds=holds)
    about = {"keep_baseline": None if baseline is None else baseline.trial, "no_feasible": None}
    return replace(
        shell,
        verdict=name,
        confirmed=chosen.confirmed,
        best=about.get(name, chosen.trial),
        change=chosen.changes[first.text],
        reason=f"trial {chosen.trial}: {chosen.reason}",
        finalists=tuple(judged),
    )


def simultaneous_changes(
    finalists: Sequence[Sequence[ConfirmPair]], comparisons: int
) -> list[Change | None]:
    """Each finalist over the baseline in one objective, with intervals that hold together with
    those of all `comparisons`; no interval with fewer than `MIN_PAIRS` pairs.

    The launches of a pair number are a block, settings are the treatments, values logs: the
    residual variance of the two-way layout is shared by all finalists, so a few pairs of several
    finalists say as much as more pairs of one. With one finalist it is the paired t interval. A
    finalist whose own differences spread more keeps its own spread (Montgomery, Design and Analysis
    of Experiments, randomised complete blocks).
    """
    logs = [_logs(pairs) for pairs in finalists]
    shared = _residual(finalists)
    found: list[Change | None] = []
    for own in logs:
        if not own:
            found.append(None)
            continue
        mean = fmean(own)
        if len(own) < MIN_PAIRS:
            found.append(Change(ratio=math.exp(mean)))
            continue
        spread, degrees = stdev(own), len(own) - 1
        if shared is not None:
            spread, degrees = max(spread, math.sqrt(2) * shared[0]), shared[1]
        quantile = t_quantile(degrees, 1 - (1 - CONFIDENCE) / comparisons)
        half = quantile * spread / math.sqrt(len(own))
        found.append(
            Change(ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
        )
    return found


def _residual(finalists: Sequence[Sequence[ConfirmPair]]) -> tuple[float, int] | None:
    """(standard deviation of one launch's log, degrees of freedom) over the pair numbers that all
    settings have a value for; None with fewer than `MIN_PAIRS` of them.
    """
    by_pair = [{p.pair: p for p in pairs if p.log_ratio is not None} for pairs in finalists]
    common = sorted(set.intersection(*(set(pairs) for pairs in by_pair)))
    if len(common) < MIN_PAIRS:
        return None
    rows = [[math.log(by_pair[0][n].baseline_value or 0.0) for n in common]]
    rows += [[math.log(pairs[n].best_value or 0.0) for n in common] for pairs in by_pair]
    grand = fmean(chain.from_iterable(rows))
    columns = [fmean(row[index] for row in rows) for index in range(len(common))]
    squares = math.fsum(
        (value - fmean(row) - column + grand) ** 2
        for row in rows
        for value, column in zip(row, columns, strict=True)
    )
    degrees = len(finalists) * (len(common) - 1)
    return math.sqrt(squares / degrees), degrees


def _judge_all(
    objectives: Sequence[Objective],
    finalists: Sequence[Finalist],
    baseline_values: Mapping[str, float] | None,
) -> list[FinalistVerdict]:
    """`baseline_values` None: the baseline does not meet the limits."""
    comparisons = len(objectives) * len(finalists)
    changes = {
        o.text: simultaneous_changes([f.pairs[o.text] for f in finalists], comparisons)
        for o in objectives
    }
    verdicts = []
    for index, finalist in enumerate(finalists):
        own = {text: found[index] for text, found in changes.items()}
        word, confirmed, reason = _word(objectives, finalist, own, baseline_values)
        verdicts.append(
            FinalistVerdict(
                trial=finalist.trial,
                verdict=word,
                confirmed=confirmed,
                reason=reason,
                changes=own,
                baseline_values={
                    o.text: centre(
                        [p.baseline_value for p in finalist.pairs[o.text]],
                        (baseline_values or {}).get(o.text),
                    )
                    for o in objectives
                },
                values={
                    o.text: centre(
                        [p.best_value for p in finalist.pairs[o.text]], finalist.values[o.text]
                    )
                    for o in objectives
                },
            )
        )
    return verdicts


def _word(
    objectives: Sequence[Objective],
    finalist: Finalist,
    changes: Mapping[str, Change | None],
    baseline_values: Mapping[str, float] | None,
) -> tuple[FinalistWord, bool, str]:
    """(what the finalist is, whether that is confirmed, why)."""
    pairs = finalist.pairs[objectives[0].text]
    broken = sum(not pair.best_feasible for pair in pairs)
    if 2 * broken > len(pairs):
        text = f"broke a limit in {broken} of {len(pairs)} confirm launches"
        return "broke_limits", len(pairs) >= MIN_PAIRS, text
    enough = len(pairs) - broken >= MIN_PAIRS
    if baseline_values is None:
        return "better", enough, "it meets the limits, the baseline does not"
    views = [_view(o, finalist, changes[o.text], baseline_values[o.text]) for o in objectives]
    ahead = [o.metric.name for o, view in zip(objectives, views, strict=True) if view.better]
    behind = [o.metric.name for o, view in zip(objectives, views, strict=True) if view.behind]
    shown_worse = [o.metric.name for o, v in zip(objectives, views, strict=True) if v.worse]
    confirmed = all(view.has_interval for view in views)
    if ahead and not behind:
        head = "better in" if confirmed else "promising, not confirmed: better in"
        return "better", confirmed, f"{head} {' and '.join(ahead)}, worse in none"
    if ahead:
        word = "worse" if set(behind) <= set(shown_worse) else "perhaps worse"
        text = f"better in {' and '.join(ahead)}, {word} in {' and '.join(behind)}"
        return "trade_off", confirmed, text
    if shown_worse:
        return "worse", confirmed, f"worse in {' and '.join(shown_worse)}, better in none"
    return "not_distinguishable", confirmed, "no difference could be told from run-to-run variation"


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """One objective of one finalist. `behind`: worse, or by its mean too likely so."""

    better: bool
    worse: bool
    behind: bool
    has_interval: bool


def _view(
    objective: Objective, finalist: Finalist, change: Change | None, baseline_value: float
) -> _View:
    sign = -1 if objective.direction == "minimize" else 1
    pairs = finalist.pairs[objective.text]
    if change is not None and change.low is not None and change.high is not None:
        ends = sorted(sign * math.log(end) for end in (change.low, change.high))
        worse = ends[1] < 0
        behind = worse or sign * math.log(change.ratio) < -_SLACK
        return _View(better=ends[0] > 0, worse=worse, behind=behind, has_interval=True)
    gain = _point_gain(sign, finalist.values[objective.text], baseline_value, change)
    if gain is None:
        # Zeros have no ratio: only the direction of the means is told
        new = centre([p.best_value for p in pairs], finalist.values[objective.text])
        old = centre([p.baseline_value for p in pairs], baseline_value)
        loses = new is not None and old is not None and sign * (new - old) < 0
        return _View(better=False, worse=False, behind=loses, has_interval=len(pairs) >= MIN_PAIRS)
    noise = noise_of([baseline_value, *(pair.baseline_value for pair in pairs)]) or 0.0
    better = gain > max(_SLACK, noise)
    return _View(better=better, worse=False, behind=gain < -_SLACK, has_interval=False)


def _point_gain(
    sign: int, value: float, baseline_value: float, change: Change | None
) -> float | None:
    if change is not None:
        return sign * math.log(change.ratio)
    if value <= 0 or baseline_value <= 0:
        return None
    return sign * math.log(value / baseline_value)


def _logs(pairs: Sequence[ConfirmPair]) -> list[float]:
    return [ratio for pair in pairs if (ratio := pair.log_ratio) is not None]


_ORDER: Sequence[FinalistWord] = (
    "better", "trade_off", "not_distinguishable", "worse", "broke_limits",
)  # fmt: skip


def _rank(verdict: FinalistVerdict, first: Objective) -> tuple[int, bool, float]:
    """Smaller speaks: the kind, then confirmed ones, then the gain in the first objective; of equal
    ones the order of the choice stays.
    """
    change = verdict.changes[first.text]
    sign = 1 if first.direction == "minimize" else -1
    gain = 0.0 if change is None or verdict.verdict != "better" else sign * math.log(change.ratio)
    return _ORDER.index(verdict.verdict), not verdict.confirmed, gain


def _name(word: FinalistWord, *, baseline_holds: bool) -> VerdictName:
    if word in ("better", "not_distinguishable"):
        return "better" if word == "better" else "not_distinguishable"
    return "keep_baseline" if baseline_holds else "no_feasible"
