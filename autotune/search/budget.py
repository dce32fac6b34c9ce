"""How much search fits into what the user is willing to spend. Pure: numbers in, decisions out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measure.quantiles import percentile

EXPECTED_PERCENT = 75
"""A launch is expected to take as long as three of four finished ones did."""
RECENT = 12
"""Only so many latest launches are looked at: caches warm up, machines change."""
CONFIRM_SHARE = 0.5
"""Confirmation may take at most this share of the time; beyond it, fewer pairs are planned."""
TELLING_PAIRS, TELLING_SHARE = 3, 0.6
"""Fewer pairs than these give no interval, so up to them it may take a little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """When a study ends, whichever comes first; None: no such limit.

    `time_s`: seconds of wall time. `trials`: finished trials (baseline and search). `gpu_s`:
    seconds of launches times the GPUs that each holds. `used_s`: seconds of wall time that earlier
    runs of the study took. `slots`: launches that run at the same time, `gpus`: GPUs of each.
    """

    time_s: float | None = None
    trials: int | None = None
    gpu_s: float | None = None
    used_s: float = 0.0
    slots: int = 1
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a launch may start, and why (not): a phrase for the terminal and the report."""

    allowed: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What is left for the search after the reserve for the confirmation.

    `time_s` (seconds of wall time), `trials` and `gpu_s` (GPU seconds) are None where there is no
    such limit; `launches` is how many search launches fit, None while that cannot be known. Nothing
    is negative.
    """

    time_s: float | None
    trials: int | None
    launches: int | None
    gpu_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What is kept back for the confirmation: seconds of wall time and GPU seconds."""

    time_s: float = 0.0
    gpu_s: float = 0.0


def expected_launch_s(durations: Sequence[float]) -> float | None:
    """Seconds that the next launch will take, from finished ones in order; None without any."""
    return percentile(durations[-RECENT:], EXPECTED_PERCENT) if durations else None


def affordable_repeats(
    budget: Budget, *, repeats: int, finalists: int, launch_s: float | None
) -> int:
    """Confirm pairs that the budget bears: `repeats`, or fewer where they would eat the search.

    One repeat launches the baseline and each finalist once, one after another in one slot.
    """
    if not launch_s:
        return repeats
    one_s = (1 + finalists) * launch_s

    def bearable(share: float) -> int:
        counts = [repeats]
        if budget.time_s is not None:
            counts.append(int(share * budget.time_s / one_s) * budget.slots)
        if budget.gpu_s is not None:
            counts.append(int(share * budget.gpu_s / (one_s * budget.gpus)))
        return min(counts)

    telling = min(TELLING_PAIRS, bearable(TELLING_SHARE))
    return max(bearable(CONFIRM_SHARE), telling if telling == TELLING_PAIRS else 0)


def confirm_reserve(
    budget: Budget, *, repeats: int, finalists: int, launch_s: float | None
) -> Reserve:
    """What to keep back for the confirm launches; nothing while the duration of one is unknown."""
    if launch_s is None:
        return Reserve()
    pairs = affordable_repeats(budget, repeats=repeats, finalists=finalists, launch_s=launch_s)
    one_s = (1 + finalists) * launch_s
    rounds = math.ceil(pairs / budget.slots)
    return Reserve(time_s=rounds * one_s, gpu_s=pairs * one_s * budget.gpus)


def remaining(
    budget: Budget,
    *,
    elapsed_s: float,
    finished: int,
    durations: Sequence[float],
    repeats: int = 0,
    finalists: int = 1,
    gpu_used_s: float = 0.0,
    confirm_s: float | None = None,
) -> Remaining:
    """What is left for the search.

    `elapsed_s`: seconds of this run. `finished`: baseline and search trials that ended or run
    (interrupted ones do not count). `durations`: seconds of finished launches in order. `repeats`,
    `finalists`: the planned confirmation, which is kept back. `gpu_used_s`: GPU seconds of all
    launches so far, and of the running ones to their expected end. `confirm_s`: seconds of a
    confirm launch, where more is known than `durations` tell.
    """
    launch_s = expected_launch_s(durations)
    reserve = confirm_reserve(
        budget, repeats=repeats, finalists=finalists, launch_s=confirm_s or launch_s
    )
    trials = None if budget.trials is None else max(0, budget.trials - finished)
    time_s, gpu_s = None, None
    fitting = [trials]
    if budget.time_s is not None:
        time_s = max(0.0, budget.time_s - budget.used_s - elapsed_s - reserve.time_s)
        fitting.append(int(time_s / launch_s) * budget.slots if launch_s else None)
    if budget.gpu_s is not None:
        gpu_s = max(0.0, budget.gpu_s - gpu_used_s - reserve.gpu_s)
        fitting.append(int(gpu_s / (launch_s * budget.gpus)) if launch_s else None)
    known = [count for count in fitting if count is not None]
    return Remaining(time_s=time_s, trials=trials, gpu_s=gpu_s, launches=min(known, default=None))


def may_start(
    budget: Budget,
    *,
    elapsed_s: float,
    finished: int,
    durations: Sequence[float],
    repeats: int = 0,
    finalists: int = 1,
    launch_s: float | None = None,
    gpu_used_s: float = 0.0,
    confirm_s: float | None = None,
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
        gpu_used_s=gpu_used_s,
        confirm_s=confirm_s,
    )
    if left.trials == 0:
        return Decision(allowed=False, reason=f"all {budget.trials} trials are done")
    if left.time_s is not None and left.time_s <= 0:
        return Decision(allowed=False, reason="the time is used up")
    if left.gpu_s is not None and left.gpu_s <= 0:
        return Decision(allowed=False, reason="the GPU-hours are used up")
    launch_s = expected_launch_s(durations) if launch_s is None else launch_s
    if launch_s is not None:
        for refused in (
            _too_long(left.time_s, launch_s, "the search"),
            _too_costly(left.gpu_s, launch_s, budget.gpus, "the search"),
        ):
            if refused is not None:
                return refused
    if left.time_s is None:
        return Decision(allowed=True, reason="no time limit")
    return Decision(allowed=True, reason=f"{left.time_s:.0f} s are left for the search")


def may_confirm(
    budget: Budget,
    *,
    elapsed_s: float,
    durations: Sequence[float],
    launches: int = 1,
    gpu_used_s: float = 0.0,
) -> Decision:
    """Whether `launches` more confirm launches, one after another in one slot, still fit."""
    one_s = expected_launch_s(durations)
    if one_s is None:
        return Decision(allowed=True, reason="nothing is known of a launch")
    time_s = None if budget.time_s is None else budget.time_s - budget.used_s - elapsed_s
    gpu_s = None if budget.gpu_s is None else budget.gpu_s - gpu_used_s
    what = "a launch" if launches == 1 else f"{launches} launches"
    for refused in (
        _too_long(time_s, launches * one_s, what=what),
        _too_costly(gpu_s, launches * one_s, budget.gpus, what=what),
    ):
        if refused is not None:
            return refused
    if time_s is None:
        return Decision(allowed=True, reason="no time limit")
    return Decision(allowed=True, reason=f"{time_s:.0f} s are left")


def _too_long(
    left_s: float | None, need_s: float, purpose: str = "", what: str = "a launch"
) -> Decision | None:
    if left_s is None or need_s <= left_s:
        return None
    left = f"{max(0.0, left_s):.0f} s are left{f' for {purpose}' if purpose else ''}"
    verb = "takes" if what == "a launch" else "take"
    return Decision(allowed=False, reason=f"{left}, {what} {verb} {need_s:.0f} s")


def _too_costly(
    left_s: float | None, need_s: float, gpus: int, purpose: str = "", what: str = "a launch"
) -> Decision | None:
    if left_s is None or need_s * gpus <= left_s:
        return None
    hours, need = max(0.0, left_s) / 3600, need_s * gpus / 3600
    left = f"{hours:.3g} GPU-hours are left{f' for {purpose}' if purpose else ''}"
    verb = "takes" if what == "a launch" else "take"
    return Decision(allowed=False, reason=f"{left}, {what} {verb} {need:.3g}")


def too_small(budget: Budget, *, startup_s: float, replay_s: float) -> str | None:
    """Why not even one launch fits (a phrase for the user), or None if one does.

    `startup_s`: the least that starting and warming up takes, `replay_s`: the replay itself; both
    in seconds, per launch.
    """
    one_s = startup_s + replay_s
    takes = f"the replay takes {replay_s:.0f} s, starting the engine at least {startup_s:.0f} s"
    if budget.time_s is not None and budget.time_s < one_s:
        return f"the budget of {budget.time_s:.0f} s is too small for one launch: {takes}"
    if budget.gpu_s is not None and budget.gpu_s < one_s * budget.gpus:
        return (
            f"the budget of {budget.gpu_s / 3600:.3g} GPU-hours is too small for one launch on "
            f"{budget.gpus} GPU{'s' * (budget.gpus > 1)}: {takes}"
        )
    return None
