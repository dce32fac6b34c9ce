"""How much search fits into what the user is willing to spend. Pure: numbers in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measure.quantiles import percentile

EXPECTED_PERCENT = 75
"""A launch is expected to take as long as three of four finished ones did."""
RECENT = 12
"""Only so many latest launches are looked at: caches warm up, machines change."""
CONFIRM_SHARE = 0.5
"""Confirmation may take at most this share of the time; beyond it, fewer pairs are planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a study ends: seconds of wall time and finished trials (baseline and search), whichever
    comes first; None: no such limit. `used_s`: seconds that earlier runs of the study took.
    """

    time_s: float | None = None
    trials: int | None = None
    used_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a launch may start, and why (not): a phrase for the terminal and the report."""

    allowed: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What is left for the search after the reserve for the confirmation.

    `time_s` (seconds) and `trials` are None where there is no such limit; `launches` is how many
    search launches fit, None while that cannot be known. Nothing is negative.
    """

    time_s: float | None
    trials: int | None
    launches: int | None


def expected_launch_s(durations: Sequence[float]) -> float | None:
    """Seconds that the next launch will take, from finished ones in order; None without any."""
    return percentile(durations[-RECENT:], EXPECTED_PERCENT) if durations else None


def affordable_repeats(
    budget: Budget, *, repeats: int, finalists: int, launch_s: float | None
) -> int:
    """Confirm pairs that the budget bears: `repeats`, or fewer where they would eat the search.

    One repeat launches the baseline and each finalist once.
    """
    if budget.time_s is None or not launch_s:
        return repeats
    one = (1 + finalists) * launch_s
    return max(0, min(repeats, int(CONFIRM_SHARE * budget.time_s / one)))


def confirm_reserve_s(
    budget: Budget, *, repeats: int, finalists: int, launch_s: float | None
) -> float:
    """Seconds to keep back for the confirm launches; 0 while the duration of one is unknown."""
    if launch_s is None:
        return 0.0
    pairs = affordable_repeats(budget, repeats=repeats, finalists=finalists, launch_s=launch_s)
    return pairs * (1 + finalists) * launch_s


def remaining(
    budget: Budget,
    *,
    elapsed_s: float,
    finished: int,
    durations: Sequence[float],
    repeats: int = 0,
    finalists: int = 1,
) -> Remaining:
    """What is left for the search.

    `elapsed_s`: seconds of this run. `finished`: baseline and search trials that ended (interrupted
    ones do not count). `durations`: seconds of finished launches in order. `repeats`, `finalists`:
    the planned confirmation, which is kept back.
    """
    launch_s = expected_launch_s(durations)
    trials = None if budget.trials is None else max(0, budget.trials - finished)
    if budget.time_s is None:
        return Remaining(time_s=None, trials=trials, launches=trials)
    reserve_s = confirm_reserve_s(budget, repeats=repeats, finalists=finalists, launch_s=launch_s)
    time_s = max(0.0, budget.time_s - budget.used_s - elapsed_s - reserve_s)
    by_time = int(time_s / launch_s) if launch_s else None
    fitting = [count for count in (by_time, trials) if count is not None]
    return Remaining(time_s=time_s, trials=trials, launches=min(fitting, default=None))


def may_start(
    budget: Budget,
    *,
    elapsed_s: float,
    finished: int,
    durations: Sequence[float],
    repeats: int = 0,
    finalists: int = 1,
    launch_s: float | None = None,
) -> Decision:
    """Whether one more search launch may start: nothing is begun that cannot finish.

    Arguments as in `remaining`. `launch_s`: seconds that this launch will take, where more is known
    than `durations` tell. Without any finished launch the first may start as long as there is time
    at all.
    """
    left = remaining(
        budget,
        elapsed_s=elapsed_s,
        finished=finished,
        durations=durations,
        repeats=repeats,
        finalists=finalists,
    )
    if left.trials == 0:
        return Decision(allowed=False, reason=f"all {budget.trials} trials are done")
    if left.time_s is None:
        return Decision(allowed=True, reason="no time limit")
    if left.time_s <= 0:
        return Decision(allowed=False, reason="the time is used up")
    launch_s = expected_launch_s(durations) if launch_s is None else launch_s
    if launch_s is not None and launch_s > left.time_s:
        return Decision(
            allowed=False,
            reason=f"{left.time_s:.0f} s are left for the search, a launch takes {launch_s:.0f} s",
        )
    return Decision(allowed=True, reason=f"{left.time_s:.0f} s are left for the search")


def may_confirm(budget: Budget, *, elapsed_s: float, durations: Sequence[float]) -> Decision:
    """Whether one more confirm launch still fits into the time."""
    launch_s = expected_launch_s(durations)
    if budget.time_s is None or launch_s is None:
        return Decision(allowed=True, reason="no time limit")
    left_s = budget.time_s - budget.used_s - elapsed_s
    if launch_s > left_s:
        reason = f"{max(0.0, left_s):.0f} s are left, a launch takes {launch_s:.0f} s"
        return Decision(allowed=False, reason=reason)
    return Decision(allowed=True, reason=f"{left_s:.0f} s are left")


def too_small(budget: Budget, *, startup_s: float, replay_s: float) -> str | None:
    """Why not even one launch fits (a phrase for the user), or None if one does.

    `startup_s`: the least that starting and warming up takes, `replay_s`: the replay itself; both
    in seconds, per launch.
    """
    one_s = startup_s + replay_s
    if budget.time_s is not None and budget.time_s < one_s:
        return (
            f"the budget of {budget.time_s:.0f} s is too small for one launch: the replay takes "
            f"{replay_s:.0f} s, starting the engine at least {startup_s:.0f} s"
        )
    return None
