"""Whether answers got worse: two servers asked the same, compared passage by passage. Pure.

Loss: the relative rise in perplexity, exp(mean d) - 1. For one passage, d is the rise of its summed
negative log-likelihood (nats) over the reference's, divided by the reference's number of scored
tokens; every passage weighs the same. It is the quantity that llama.cpp's `perplexity` tool prints
as "Mean ln(PPL(Q)/PPL(base))" for quantised models, there over chunks. The interval is Student's t
over passages, taken through the same exp: 95 % two-sided, so a candidate whose true loss is above
the limit passes in at most 2.5 % of checks.

Agreement: of one answer, the share of it until the first unit (token, or character where the server
names no tokens) in which the two greedy answers differ; its mean over answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean, stdev
from typing import Literal

from autotune.measure.comparison import t_quantile

VerdictName = Literal["passed", "failed", "not_enough"]

LEAST_PASSAGES = 8
"""Fewer pairs give no verdict: t over so few says little, and one odd passage decides."""
BROKEN_SHARE = 0.2
"""So large a share of answers that only the candidate breaks is no accident of one prompt."""
LEAST_REPEATED = 12
"""An answer of so many units or more, all of them the same, is what broken numbers give."""
REPLACEMENT_SHARE = 0.1
"""More replacement characters than this are no multi-byte character cut at the answer's end."""
DECODE_FLOOR = 0.1
"""Greedy answers that part so early say that decoding is broken where reading is not: the loss is
computed in prefill, which some attention backends do without the KV cache's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One passage as a server sees it: summed negative log-likelihood in nats, over `tokens`
    scored tokens (all but the first).
    """

    nll: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over `count` pairs with its 95 % interval; an end is None where there are too few."""

    value: float
    low: float | None
    high: float | None
    count: int

    @property
    def rest(self) -> Estimate:
        """One minus it."""
        low = None if self.high is None else 1 - self.high
        high = None if self.low is None else 1 - self.low
        return Estimate(value=1 - self.value, low=low, high=high, count=self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found. `because`: one sentence for a candidate that does not pass."""

    verdict: VerdictName
    because: str = ""


def scored(logprobs: Sequence[float | None]) -> Scored | None:
    """The score of a passage from the log-probabilities of its tokens (nats, the first one None or
    anything). None if a later one is missing, NaN or infinite: the server computes nonsense there.
    """
    tail = [value for value in logprobs[1:] if value is not None and math.isfinite(value)]
    if not tail or len(tail) < len(logprobs) - 1:
        return None
    return Scored(nll=-math.fsum(tail), tokens=len(tail))


def loss_of(reference: Mapping[str, Scored], candidate: Mapping[str, Scored]) -> Estimate | None:
    """The loss of a candidate on the passages that both have scored; None without any."""
    rises = [
        (candidate[key].nll - before.nll) / before.tokens
        for key, before in reference.items()
        if key in candidate
    ]
    if not rises:
        return None
    mean, half = interval(rises)
    return Estimate(
        value=_loss(mean),
        low=None if half is None else _loss(mean - half),
        high=None if half is None else _loss(mean + half),
        count=len(rises),
    )


def agreement_of(
    reference: Mapping[str, Sequence[str]], candidate: Mapping[str, Sequence[str]]
) -> Estimate | None:
    """Mean agreement of the answers that both gave; None without any. Two empty answers agree on
    nothing, and are left out.
    """
    shares = [
        shared_prefix(units, candidate[key])
        for key, units in reference.items()
        if key in candidate and (units or candidate[key])
    ]
    if not shares:
        return None
    mean, half = interval(shares)
    return Estimate(
        value=mean,
        low=None if half is None else max(0.0, mean - half),
        high=None if half is None else min(1.0, mean + half),
        count=len(shares),
    )


def fall_of(reference: Mapping[str, float], candidate: Mapping[str, float]) -> Estimate | None:
    """The relative fall of a task's mean score (per document, more is better) on the documents that
    both have answered, with a paired t interval; None without any, or if the reference scores 0.
    """
    both = [key for key in reference if key in candidate]
    before = fmean(reference[key] for key in both) if both else 0.0
    if before <= 0:
        return None
    mean, half = interval([(reference[key] - candidate[key]) / before for key in both])
    return Estimate(
        value=mean,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        count=len(both),
    )


def shared_prefix(one: Sequence[str], other: Sequence[str]) -> float:
    """The share of the longer answer before the first difference; 1 for two empty ones."""
    longest = max(len(one), len(other))
    if longest == 0:
        return 1.0
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same) / longest


def garbage(text: str, units: Sequence[str]) -> str | None:
    """What is wrong with an answer by itself, in a word; None for one that may be an answer."""
    if not text.strip() and len(set(units)) <= 1:
        return "empty"
    if len(units) >= LEAST_REPEATED and len(set(units)) == 1:
        return "repeated"
    if text.count("\N{REPLACEMENT CHARACTER}") > max(1.0, REPLACEMENT_SHARE * len(text)):
        return "unreadable"
    return None


def broken_share(reference: Mapping[str, str | None], candidate: Mapping[str, str | None]) -> float:
    """The share of common answers that are garbage in the candidate only (key -> what is wrong)."""
    both = [key for key in reference if key in candidate]
    new = [key for key in both if candidate[key] is not None and reference[key] is None]
    return len(new) / len(both) if both else 0.0


def judged(estimate: Estimate | None, max_loss: float, what: str) -> Finding:
    """Passes only where the interval's upper end is within the limit: what cannot be told apart
    from too much is too much. `what`: the loss's name in words.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        count = 0 if estimate is None else estimate.count
        return Finding(
            verdict="not_enough", because=f"{what} is not known: {count} passages could be compared"
        )
    if estimate.count < LEAST_PASSAGES:
        return Finding(
            verdict="not_enough",
            because=f"{what} rests on {estimate.count} passages, at least {LEAST_PASSAGES} are "
            "needed",
        )
    if estimate.high <= max_loss:
        return Finding(verdict="passed")
    words = f"{what} is {_percent(estimate.value)} ({_percent(estimate.low)} to "
    words += f"{_percent(estimate.high)}), the limit is {_percent(max_loss)}"
    if estimate.low > max_loss:
        return Finding(verdict="failed", because=words)
    return Finding(verdict="not_enough", because=f"{words}: too few texts to tell")


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and half the width of its 95 % t interval; None for fewer than two values."""
    if len(values) < 2:
        return fmean(values), None
    return fmean(values), t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def _loss(mean: float) -> float:
    """e^mean - 1, never infinite: a rise of 50 nats a token says the same as a larger one."""
    return math.expm1(min(mean, 50.0))


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if abs(share) < 10 else "over 1000 %"
