"""Which trials are launched again at the end, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.measure.noise import is_tie


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A finished trial of the search as the choice of finalists sees it.

    `value`: the first objective's, None unless measured. `changes`: knobs that differ from the
    baseline. `certain`: it keeps the limits not only by the observed values.
    """

    trial: int
    value: float | None
    feasible: bool
    changes: int = 0
    certain: bool = True


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
    tie: float = 0.0,
    baseline_tie: float = 0.0,
) -> tuple[int, ...]:
    """The trials worth a confirmation, best first: at most `count`.

    Only measured, feasible ones, and only those better than the baseline where it is feasible
    itself. Those that keep the limits for certain come before the others, whatever their values.
    Equal values: fewer changes first, then the better, then the earlier trial. `tie`: up to
    which difference of the logs two values are equal, `baseline_tie`: one value and the baseline's;
    a candidate that ties with the baseline has more changes, and so is not better.
    """
    sign = 1 if direction == "minimize" else -1

    def cost(contender: Contender) -> float:
        assert contender.value is not None
        return sign * contender.value

    fit = [c for c in contenders if c.feasible and c.value is not None]
    if baseline is not None and baseline.feasible and baseline.value is not None:
        fit = [
            c
            for c in fit
            if c.trial != baseline.trial
            and cost(c) < cost(baseline)
            and not _tied(c, baseline, baseline_tie)
        ]
    chosen: list[int] = []
    while fit and len(chosen) < count:
        first = [c for c in fit if c.certain] or fit
        best = min(first, key=cost)
        tied = [c for c in first if _tied(c, best, tie)]
        chosen.append(min(tied, key=lambda c: (c.changes, cost(c), c.trial)).trial)
        fit = [c for c in fit if c.trial not in chosen]
    return tuple(chosen)


def _tied(one: Contender, other: Contender, tie: float) -> bool:
    a, b = one.value, other.value
    assert a is not None
    assert b is not None
    return is_tie(a, b, tie)


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
