"""Which trials are launched again at the end, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A finished trial of the search as the choice of finalists sees it.

    `value`: the first objective's, None unless measured. `changes`: knobs that differ from the
    baseline.
    """

    trial: int
    value: float | None
    feasible: bool
    changes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmLaunch:
    """One launch of the confirmation: which search trial's candidate is repeated, in which pair."""

    trial: int
    pair: int


def choose(
    contenders: Sequence[Contender],
    baseline: Contender | None,
    *,
    direction: Literal["minimize", "maximize"],
    count: int,
) -> tuple[int, ...]:
    """The trials worth a confirmation, best first: at most `count`.

    Only measured, feasible ones, and only those better than the baseline where it is feasible
    itself. Equal values: fewer changes first, then the earlier trial.
    """
    sign = 1 if direction == "minimize" else -1

    def cost(contender: Contender) -> float:
        assert contender.value is not None
        return sign * contender.value

    fit = [c for c in contenders if c.feasible and c.value is not None]
    if baseline is not None and baseline.feasible and baseline.value is not None:
        fit = [c for c in fit if c.trial != baseline.trial and cost(c) < cost(baseline)]
    fit.sort(key=lambda contender: (cost(contender), contender.changes, contender.trial))
    return tuple(contender.trial for contender in fit[:count])


def launch_order(
    baseline: int, finalists: Sequence[int], repeats: int
) -> tuple[ConfirmLaunch, ...]:
    """The interleaved launches: A B, B A, A B, ... so that drift of the machine falls on both
    sides.

    `baseline`, `finalists`: trial numbers whose candidates are launched again. No finalist, no
    launches.
    """
    if not finalists:
        return ()
    side = (baseline, *finalists)
    return tuple(
        ConfirmLaunch(trial=trial, pair=pair)
        for pair in range(repeats)
        for trial in (side if pair % 2 == 0 else side[::-1])
    )
