"""A study with several objectives in words: the settings that nothing beats in every one of them,
and what became of those that were launched again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.measure.comparison import Change, FinalistVerdict, FinalistWord
from autotune.report.numbers import quantity
from autotune.report.view import StudyView, TrialView, metric_of
from autotune.report.words import (
    change_cell,
    change_range,
    change_words,
    is_distinguishable,
    metric_label,
    outcome_phrase,
    plural,
    sentence_start,
)
from autotune.spec.vocabulary import MetricName
from autotune.study.ranking import pareto_front

FINALIST_WORDS: Mapping[FinalistWord, str] = {
    "better": "better",
    "trade_off": "a trade",
    "not_distinguishable": "no difference shown",
    "worse": "worse",
    "broke_limits": "broke a limit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontRow:
    """One setting of the front, or today's. `values`, `changes`: one text per objective."""

    trial: TrialView
    today: bool
    word: str
    values: tuple[str, ...]
    changes: tuple[str, ...]


def front(view: StudyView) -> list[TrialView]:
    """The trials that no other beats in every objective, best in the first one first."""
    if view.verdict is not None and view.verdict.pareto:
        numbers = view.verdict.pareto
    else:
        records = [trial.record for trial in view.trials]
        numbers = tuple(record.number for record in pareto_front(records, view.objectives))
    return [trial for number in numbers if (trial := view.trial(number)) is not None]


def front_rows(view: StudyView) -> list[FrontRow]:
    """Today's settings first, then the front. Nothing for a study with one objective."""
    if len(view.objectives) < 2:
        return []
    today = view.baseline
    shown = [trial for trial in front(view) if today is None or trial.number != today.number]
    rows = [] if today is None or today.measurement is None else [_row(view, today, today=True)]
    return rows + [_row(view, trial, today=False) for trial in shown]


def finalist_of(view: StudyView, trial: TrialView) -> FinalistVerdict | None:
    """What the confirmation said of a trial's settings, if they were launched again."""
    finalists = view.verdict.finalists if view.verdict is not None else ()
    return next((one for one in finalists if one.trial == trial.number), None)


def finalist_shown(view: StudyView) -> FinalistVerdict | None:
    """The finalist that the verdict speaks of."""
    rival = view.rival
    return None if rival is None else finalist_of(view, rival)


def several_story(view: StudyView) -> tuple[str, tuple[str, ...]] | None:
    """(headline, sentences) where the verdict rests on finalists of a front; else None."""
    finalist = finalist_shown(view)
    if view.verdict is None or finalist is None:
        return None
    sentences = (*_changes(view, finalist), _front_sentence(view))
    match view.verdict.verdict:
        case "better":
            gains = [
                outcome_phrase(metric, change.ratio)
                for text, metric, change in _known(view, finalist)
                if _is_gain(text, change)
            ]
            head = "Change the launch settings"
            if not view.verdict.confirmed:
                head = "Promising, not confirmed"
            return (f"{head}: {', '.join(gains[:2])}" if gains else head), sentences
        case "keep_baseline" if finalist.verdict == "trade_off":
            headline = "Keep today's settings: what gains in one goal loses in another"
            return headline, sentences
        case _:
            return None


def _known(view: StudyView, finalist: FinalistVerdict) -> list[tuple[str, MetricName, Change]]:
    found = []
    for text in view.objectives:
        metric, change = metric_of(text), finalist.changes.get(text)
        if metric is not None and change is not None:
            found.append((text, metric, change))
    return found


def _is_gain(objective: str, change: Change) -> bool:
    falls = objective.startswith("minimize")
    good = change.ratio < 1 if falls else change.ratio > 1
    return good and (change.low is None or is_distinguishable(change))


def _changes(view: StudyView, finalist: FinalistVerdict) -> tuple[str, ...]:
    sentences = []
    for text, metric, change in _known(view, finalist):
        scale = view.units.scale(metric)
        today, new = finalist.baseline_values.get(text), finalist.values.get(text)
        spread = change_range(change)
        words = (
            change_words(metric, change.ratio)
            if change.low is None or is_distinguishable(change)
            else "no difference shown"
        )
        tail = f" (95 % interval {spread}, over all goals and finalists)" if spread else ""
        name = sentence_start(metric_label(metric))
        sentences.append(
            f"{name}: {quantity(today, scale)} today, {quantity(new, scale)} with "
            f"#{finalist.trial}, {words}{tail}."
        )
    return tuple(sentences)


def _front_sentence(view: StudyView) -> str:
    count = len(front(view))
    again = len(view.verdict.finalists) if view.verdict is not None else 0
    return (
        f"{sentence_start(plural(count, 'setting is', 'settings are'))} beaten by no other in "
        f"every goal; {again} of them {'was' if again == 1 else 'were'} launched again."
    )


def _row(view: StudyView, trial: TrialView, *, today: bool) -> FrontRow:
    finalist = None if today else finalist_of(view, trial)
    values, changes = [], []
    for text in view.objectives:
        metric = metric_of(text)
        value = finalist.values.get(text) if finalist else trial.record.values.get(text)
        change = finalist.changes.get(text) if finalist else None
        values.append(quantity(value, view.units.scale(metric)))
        changes.append(change_cell(metric, change) if metric and change else "")
    word = "today" if today else "one launch only"
    if finalist is not None:
        word = FINALIST_WORDS[finalist.verdict]
        word += "" if finalist.confirmed or finalist.verdict == "broke_limits" else ", unconfirmed"
    return FrontRow(
        trial=trial, today=today, word=word, values=tuple(values), changes=tuple(changes)
    )
