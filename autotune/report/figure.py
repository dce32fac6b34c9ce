"""A figure of the report, and the words that every figure uses for a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup

from autotune.report.numbers import quantity
from autotune.report.svg import Mark
from autotune.report.view import StudyView, TrialView
from autotune.report.words import metric_label, setting

STATE_WORDS = {
    "measured": "ok",
    "infeasible": "failed",
    "unmeasurable": "not measured",
    "interrupted": "interrupted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: `title` states the finding, `missing` says why nothing is drawn.

    `columns` and `rows` hold its numbers as text, for the table behind it. `legend` are the marks
    that occur in it, with their meaning.
    """

    anchor: str
    title: str
    subtitle: str = ""
    pictures: tuple[Markup, ...] = ()
    missing: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    legend: tuple[tuple[Mark, str], ...] = ()


def state_word(trial: TrialView) -> str:
    """The state in the words of the terminal: `baseline`, `ok`, `breaks a limit`, `failed`."""
    record = trial.record
    if record.stopped_early:
        return "ended early"
    if record.state == "measured":
        if not record.feasible and record.constraints:
            return "breaks a limit"
        return "suspect" if record.validity == "suspect" else "ok"
    return STATE_WORDS[record.state]


def mark_of(view: StudyView, trial: TrialView) -> Mark:
    """The shape of a trial in every figure."""
    if trial.record.role == "baseline":
        return "baseline"
    if view.rival is not None and trial.number == view.rival.number:
        return "best"
    if trial.record.stopped_early:
        return "ended"
    if trial.record.state != "measured":
        return "failed"
    return "other" if trial.record.feasible else "breaks"


DRAWN: Mapping[Mark, int] = MappingProxyType(
    {"failed": 0, "ended": 0, "breaks": 1, "other": 2, "baseline": 3, "best": 4}
)
"""The order of marks in a figure: what matters is drawn last, so that nothing covers it."""


def legend(view: StudyView, trials: tuple[TrialView, ...]) -> tuple[tuple[Mark, str], ...]:
    """The marks that occur among the trials, with what they stand for."""
    best = "recommended" if view.recommended is not None else "best candidate"
    if view.rival is not None and not view.rival.record.feasible:
        best = "nearest to the limits"
    meaning: dict[Mark, str] = {
        "baseline": "today (baseline)",
        "best": best,
        "other": "limits hold",
        "breaks": "breaks a limit",
        "ended": "ended early",
        "failed": "failed",
    }
    present = {mark_of(view, trial) for trial in trials}
    return tuple((mark, words) for mark, words in meaning.items() if mark in present)


def changes_text(trial: TrialView) -> str:
    """The settings that differ from the baseline: `max-num-seqs 256, kv-cache-dtype fp8`."""
    if trial.record.role == "baseline":
        return "today's settings"
    if not trial.changed:
        return "same as today"
    return ", ".join(f"{name} {setting(new)}" for name, (_, new) in trial.changed.items())


def goal_words(view: StudyView, trial: TrialView) -> str:
    """A trial's goal value in the report's unit, or why there is none."""
    value = view.goal(trial)
    if value is None:
        measured = trial.record.state == "measured"
        return "no value" if measured else f"{state_word(trial)} ({reason_text(trial)})"
    metric = view.metric
    interval = trial.interval(metric) if metric else None
    return quantity(value, view.units.scale(metric), interval)


def reason_text(trial: TrialView) -> str:
    """Why a trial has no values, short: `out of memory`."""
    reason = trial.record.reason or trial.record.fault or trial.record.state
    return reason.replace("_", " ")


def tip(view: StudyView, trial: TrialView) -> str:
    """What a mark stands for, in one line."""
    label = metric_label(view.metric) if view.metric else "goal"
    return (
        f"#{trial.number} {state_word(trial)}: {label} {goal_words(view, trial)}; "
        f"{changes_text(trial)}"
    )
