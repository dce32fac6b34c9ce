"""What fits into a budget, estimated before anything was launched."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.canonical import Json
from autotune.search.budget import Budget, affordable_repeats, remaining
from autotune.spec.units import format_duration
from autotune.study.capacity import usual_replay_s
from autotune.study.prepared import PreparedStudy

START_GUESS_S = {"simulated": 3.0, "simulated-sglang": 3.0}
START_GUESS_OTHER_S = 90.0
"""Seconds from launch to ready, used for estimates until the baseline has been launched."""
AROUND_S = 5.0
"""Warm-up, scoring and stopping around a replay, used for the same estimates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Launches of a study. `search`: of the baseline and the search, None without a limit;
    `confirm`: of the planned pairs; `extra`: of those that are added while the verdict is open, at
    most. `launch_s`, `total_s`: seconds; `gpu_hours`: of all but the extra ones; None without a
    limit.
    """

    search: int | None
    confirm: int
    extra: int
    launch_s: float
    slots: int
    gpus: int
    total_s: float | None
    gpu_hours: float | None


def launch_estimate_s(study: PreparedStudy) -> float:
    """Seconds that one launch is expected to take, before any was made; a search for the capacity
    takes that long at most, as a rule.
    """
    start = START_GUESS_S.get(study.engine.kind, START_GUESS_OTHER_S)
    return start + AROUND_S + usual_replay_s(study.search_trace, study.spec.objective)


def fit_of(study: PreparedStudy) -> Fit:
    """What the budget of a study holds."""
    limits, search = study.spec.budget, study.spec.search
    budget = Budget(
        time_s=limits.time, trials=limits.trials, gpu_s=limits.gpu_seconds,
        slots=len(study.slots), gpus=study.gpus_per_launch,
    )  # fmt: skip
    each = launch_estimate_s(study)
    most = search.most_repeats
    pairs = affordable_repeats(budget, repeats=most, finalists=search.finalists, launch_s=each)
    left = remaining(
        budget, elapsed_s=0.0, finished=0, durations=[each], repeats=most,
        finalists=search.finalists,
    )  # fmt: skip
    searched = None if left.launches is None else max(1, left.launches)
    planned = min(pairs, search.repeats)
    confirm = (1 + search.finalists) * planned
    total_s = gpu_hours = None
    if searched is not None:
        # The baseline comes first, alone; pairs stay in their slots
        rounds = 1 + math.ceil((searched - 1) / budget.slots)
        rounds += (1 + search.finalists) * math.ceil(planned / budget.slots)
        total_s = min(rounds * each, math.inf if limits.time is None else limits.time)
        gpu_hours = (searched + confirm) * each * budget.gpus / 3600
        gpu_hours = min(gpu_hours, limits.gpu_hours or math.inf)
    return Fit(
        search=searched,
        confirm=confirm,
        extra=(1 + search.finalists) * (pairs - planned),
        launch_s=each,
        slots=budget.slots,
        gpus=budget.gpus,
        total_s=total_s,
        gpu_hours=gpu_hours,
    )


def fit_json(fit: Fit) -> dict[str, Json]:
    """The estimate for programs."""
    return {
        "launches": {"search": fit.search, "confirm": fit.confirm, "extra": fit.extra},
        "seconds_per_launch": fit.launch_s,
        "parallel": fit.slots,
        "gpus_per_launch": fit.gpus,
        "seconds": fit.total_s,
        "gpu_hours": fit.gpu_hours,
    }


def fit_words(fit: Fit, *, has_gpus: bool) -> str:
    """The estimate in a sentence."""
    each = format_duration(round(fit.launch_s))
    beside = f", {fit.slots} at a time" if fit.slots > 1 else ""
    if fit.search is None or fit.total_s is None:
        return f"Plan: until every setting is tried, about {each} a launch{beside}."
    extra = f" ({fit.extra} more if the verdict stays open)" if fit.extra else ""
    cost = f", {fit.gpu_hours:.3g} GPU-hours" if has_gpus and fit.gpu_hours is not None else ""
    return (
        f"Plan: about {format_duration(round(fit.total_s))}{cost}, {fit.search} launches to search "
        f"and {fit.confirm} to confirm{extra}, about {each} each{beside}."
    )
