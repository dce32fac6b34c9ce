"""How many pairs a verdict needs: a few, and more only while it is open. Pure.

Looking twice at growing data finds more false improvements than looking once. What the first look
may miss (2 %) and the last one may (3 %) add up to no more than 5 % (Bonferroni), so the verdict
keeps the error of a single 95 % interval, and so does one that speaks for the best of several
finalists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

from autotune.measure.comparison import CONFIDENCE, ConfirmPair, change_of
from autotune.spec.expressions import Objective

FIRST_LOOK, LAST_LOOK = 0.98, 0.97
"""Confidence of the interval after the planned pairs, where more may follow, and after those."""
WORTH_MORE = 1.0
"""Pairs are added only for a gain above so many of its standard errors: less is seldom shown."""


def confidence_of(pairs: int, *, planned: int, finalists: int = 1) -> float:
    """Of the interval that decides in the end. `pairs`: that were launched, `planned`: before any
    were added, `finalists`: how many the one that speaks was chosen from.
    """
    look = LAST_LOOK if pairs > planned else CONFIDENCE
    return 1 - (1 - look) / max(1, finalists)


def worth_more_pairs(
    pairs: Sequence[ConfirmPair], objective: Objective, *, finalists: int = 1
) -> bool:
    """The first look: whether the verdict is open, and further pairs may well settle it."""
    logs = [ratio for pair in pairs if (ratio := pair.log_ratio) is not None]
    confidence = 1 - (1 - FIRST_LOOK) / max(1, finalists)
    change = change_of(pairs, objective.metric.resolution, confidence)
    if change is None or change.low is None or change.high is None:
        return False
    gain = math.log(change.ratio) * (-1 if objective.direction == "minimize" else 1)
    error = stdev(logs) / math.sqrt(len(logs))
    return change.low <= 1 <= change.high and gain > WORTH_MORE * error
