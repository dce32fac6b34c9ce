"""What is known of the answers of the shown candidate, in one sentence: checked, not checked, or
not touched by any changed setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.canonical import Json
from autotune.report.numbers import percent
from autotune.report.reading import numbers
from autotune.report.view import StudyView

_LOSS = {
    "likelihood": "perplexity {value}",
    "agreement": "{value} of greedy answers lies after the first difference",
    "lm-eval": "the task's score falls by {value}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWords:
    """`code` is stable, for scripts. `urgent`: look at it before a rollout."""

    code: str
    text: str
    urgent: bool


def lossy_changes(view: StudyView) -> list[str]:
    """Names of lossy knobs that differ from the baseline in the shown candidate."""
    lossy = {knob.name for knob in view.knobs if knob.lossy}
    rival = view.rival
    return [name for name in (rival.changed if rival else ()) if name in lossy]


def answer_words(view: StudyView) -> AnswerWords:
    """The standing of the shown candidate's answers."""
    names = lossy_changes(view)
    if not names or view.rival is None:
        text = "Answer quality was not checked; no changed setting is marked as lossy."
        return AnswerWords(code="answers-unchecked", text=text, urgent=False)
    found = view.rival.record.quality
    if found.get("verdict") == "passed":
        return AnswerWords(code="answers-checked", text=_checked(found, names), urgent=False)
    verb = "are" if len(names) > 1 else "is"
    text = f"Answer quality was not checked, and {', '.join(names)} {verb} lossy."
    return AnswerWords(code="lossy-unchecked", text=text, urgent=True)


def _checked(found: Mapping[str, Json], names: Sequence[str]) -> str:
    known, check = numbers(found), str(found.get("check"))
    loss, low, high = (
        percent(known[name], signed=check == "likelihood")
        for name in ("loss", "loss_low", "loss_high")
    )
    text = (
        f"Answers with {', '.join(names)} were compared with the baseline's: "
        f"{_LOSS.get(check, 'loss {value}').format(value=loss)} ({low} to {high}), "
        f"{percent(known['max_loss'])} at most is allowed"
    )
    if "agreement" in known and check != "agreement":
        text += f"; greedy answers agree for {percent(known['agreement'])} of their length"
    return f"{text}."
