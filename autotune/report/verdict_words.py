"""The first screen's sentences: headline, what changed and by how much, what to do.

Each claim has three states: shown, not shown, shown otherwise; "not shown" says what would have
been seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.measure.comparison import Change
from autotune.report.answer_words import answer_words, lossy_changes
from autotune.report.comparison import (
    LimitState,
    goal_change,
    goal_values,
    limit_states,
    sides,
)
from autotune.report.near_misses import miss_sentences
from autotune.report.numbers import duration, percent, place_beside, quantity, share
from autotune.report.several_words import several_story
from autotune.report.story import CONFIRM, KEEP, RUN, Story
from autotune.report.view import StudyView, TrialView
from autotune.report.words import (
    change_range,
    change_words,
    direction_word,
    is_distinguishable,
    metric_label,
    outcome_phrase,
    plural,
    sentence_start,
    signed_share,
)
from autotune.spec.vocabulary import MetricName

SIMULATED = "In the simulation: "
_MOST_LAUNCHES = 200


def tell(view: StudyView) -> Story:
    """The sentences for the study as it stands, with or without a verdict."""
    story = _story(view)
    if view.verdict is not None and view.verdict.verdict == "better" and lossy_changes(view):
        story = replace(story, sentences=(*story.sentences, answer_words(view).text))
    return replace(story, headline=SIMULATED + story.headline) if view.simulated else story


def _story(view: StudyView) -> Story:
    if _is_untrustworthy(view):
        return _untrustworthy(view)
    if view.verdict is None:
        return _so_far(view)
    if (several := several_story(view)) is not None:
        headline, sentences = several
        better = view.verdict.verdict == "better"
        return Story(
            headline=headline,
            sentences=(*sentences, *(_limit_sentences(view) if better else ())),
            advice=(RUN if view.verdict.confirmed else CONFIRM,) if better else (KEEP,),
        )
    match view.verdict.verdict:
        case "better":
            return _better(view) if view.verdict.confirmed else _promising(view)
        case "not_distinguishable":
            return _not_distinguishable(view)
        case "keep_baseline":
            return _keep(view)
        case "no_feasible":
            return _no_feasible(view)


def _is_untrustworthy(view: StudyView) -> bool:
    """Nothing was measured because of the client or the machine, so nothing may be concluded."""
    faults = [t.record for t in view.searched if t.record.state == "unmeasurable"]
    return bool(faults) and not any(t.record.state == "measured" for t in view.trials)


def _untrustworthy(view: StudyView) -> Story:
    record = next(t.record for t in view.searched if t.record.state == "unmeasurable")
    reason = (record.message or record.reason or "no trial could be measured").rstrip(".")
    return Story(
        headline=f"No verdict: the measurement cannot be trusted. {sentence_start(reason)}.",
        sentences=(
            (
                f"{sentence_start(plural(len(view.trials), 'trial'))} ended without a measurement, "
                "so nothing is recommended."
            ),
        ),
        advice=("Mend the cause, then `autotune resume`; `autotune doctor` checks the machine.",),
    )


def goal_sentence(view: StudyView, *, confirmed: bool) -> str | None:
    """`TTFT p95 goes from 1.39 s to 0.49 s, 65 % shorter (95 % interval 61 to 68 %), in ...`."""
    metric, change = view.metric, goal_change(view)
    today, new = goal_values(view)
    if metric is None or change is None or today is None or new is None:
        return None
    before, after = _goal_texts(view)
    text = f"{sentence_start(metric_label(metric))} goes from {before} to {after}"
    text += f", {change_words(metric, change.ratio)}"
    spread = change_range(change)
    if not confirmed or view.verdict is None:
        return f"{text}: the search value of one launch each."
    if spread is not None:
        text += f" (95 % interval {spread})"
    pairs = len(view.verdict.pairs)
    return f"{text}, in {plural(pairs, 'paired launch', 'paired launches')} {traffic_words(view)}."


def traffic_words(view: StudyView) -> str:
    """Which traffic the confirmation saw."""
    if view.workload.get("held_out") is True:
        return "on traffic the search never saw"
    return "on the same traffic as the search"


def goal_text(view: StudyView, value: float | None) -> str:
    """A value of the first objective in the report's unit."""
    return quantity(value, view.units.scale(view.metric), digits=2)


def _goal_texts(view: StudyView) -> tuple[str, str]:
    """Today's value of the first objective and the new one, written to the same place."""
    scale, change = view.units.scale(view.metric), goal_change(view)
    known = [side.interval(view.metric) if side and view.metric else None for side in sides(view)]
    today, new = goal_values(view)
    ends = None if change is None else (change.low, change.high)
    place = place_beside(today, scale, known, ends)
    digits = 3 if any(known) else 2
    before, after = (quantity(each, scale, digits=digits, place=place) for each in (today, new))
    return before, after


def _better(view: StudyView) -> Story:
    metric, change = view.metric, goal_change(view)
    if metric is None or change is None:
        headline = "Change the launch settings"
    else:
        headline = f"Change the launch settings: {outcome_phrase(metric, change.ratio)}"
    return Story(
        headline=headline,
        sentences=_kept((goal_sentence(view, confirmed=True), *_limit_sentences(view))),
        advice=(RUN,),
    )


def _promising(view: StudyView) -> Story:
    metric, change = view.metric, goal_change(view)
    phrase = (
        outcome_phrase(metric, change.ratio)
        if metric is not None and change is not None
        else "a setting that measured better than today's"
    )
    return Story(
        headline=f"Promising, not confirmed: {phrase}",
        sentences=_kept((goal_sentence(view, confirmed=False), *_limit_sentences(view))),
        advice=(CONFIRM,),
    )


def _limit_sentences(view: StudyView) -> tuple[str, ...]:
    today, new = sides(view)
    states, before = limit_states(view, new), limit_states(view, today)
    if not states:
        return ("The study sets no limits.",)
    rate = ["All other numbers were measured at each one's own capacity."]
    sentences = rate if view.metric is not None and view.metric.searched else []
    sentences += [
        f"Today's settings miss {limit_name(old)} ({value_text(view, old)} against "
        f"{limit_text(view, old)}); these meet it."
        for old, now in zip(before, states, strict=True)
        if old.met is False and now.met
    ]
    shown = [state for state in states if state.standing == "holds"]
    if len(shown) == len(states):
        sentences.append("All limits hold." if len(states) > 1 else "The limit holds.")
    else:
        sentences += [_doubtful(view, state) for state in states if state.standing != "holds"]
    return tuple(sentences)


def _doubtful(view: StudyView, state: LimitState) -> str:
    name, limit = limit_name(state), limit_text(view, state)
    if state.standing == "broken":
        return (
            f"{sentence_start(name)} misses its limit: {value_text(view, state)} against {limit}."
        )
    if state.standing == "unknown":
        return f"The limit {state.text} was not measured."
    if state.metric is not None and state.metric.name == "success_rate" and state.met:
        low = state.interval[0] if state.interval else None
        bound = f"; that shows at least {share(low)}, not {limit}" if low is not None else ""
        return f"Success rate {value_text(view, state)} meets its limit as observed{bound}."
    verb = "meets" if state.met else "misses"
    return (
        f"{sentence_start(name)} {verb} its limit of {limit} as observed "
        f"({value_text(view, state)}), but its interval reaches across."
    )


def limit_name(state: LimitState) -> str:
    """The short name of what a limit is about."""
    return metric_label(state.metric) if state.metric else state.text


def limit_text(view: StudyView, state: LimitState) -> str:
    """The resolved limit in the report's unit."""
    return quantity(state.limit, view.units.scale(state.metric))


def value_text(view: StudyView, state: LimitState) -> str:
    """The observed value against a limit; failures may leave it without a finite one."""
    if state.unbounded:
        return "not met: too many requests failed"
    return quantity(state.value, view.units.scale(state.metric), state.interval)


def _not_distinguishable(view: StudyView) -> Story:
    change = goal_change(view)
    before, after = _goal_texts(view)
    sentences = [f"The best candidate measured {after} against {before}."]
    if change is not None:
        sentences += _difference(change)
    return Story(
        headline="No setting could be told apart from today's",
        sentences=tuple(sentences),
        advice=_kept(("Keep today's settings.", more_launches(view))),
    )


def _difference(change: Change) -> list[str]:
    if change.low is None or change.high is None:
        return [
            (
                f"The difference, {percent(change.ratio - 1, signed=True)}, "
                "is within run-to-run variation."
            )
        ]
    most = max(abs(change.low - 1), abs(change.high - 1))
    seen = (change.high - change.low) / 2
    return [
        (
            f"The difference, {signed_share(change.ratio - 1, change)} % "
            f"(interval {change_range(change)} %), is within run-to-run variation."
        ),
        (
            f"They may still differ by up to {percent(most)}; "
            f"a difference of {percent(seen)} or more would have been seen."
        ),
    ]


def more_launches(view: StudyView) -> str | None:
    """How many more launches would show the observed difference, if a bearable number would.

    An interval of a mean narrows with the square root of the number of pairs.
    """
    change = goal_change(view)
    pairs = len(view.verdict.pairs) if view.verdict else 0
    if change is None or change.low is None or change.high is None or pairs == 0:
        return None
    wanted, half = abs(change.ratio - 1), (change.high - change.low) / 2
    if wanted <= 0 or is_distinguishable(change):
        return None
    needed = 2 * (int(pairs * (half / wanted) ** 2) + 1 - pairs)
    if not 0 < needed <= _MOST_LAUNCHES:
        return None
    spent = view.trials[-1].ended_s / len(view.trials) if view.trials else 0.0
    return (
        f"To see a difference of {percent(wanted)}, about {needed} more launches "
        f"({duration(needed * spent)}) are needed."
    )


def _keep(view: StudyView) -> Story:
    candidates = [t for t in view.measured if t.record.role == "search"]
    if not candidates:
        return Story(
            headline="No advice: only today's settings were measured",
            sentences=("No other settings gave a measurement to compare with.",),
            advice=("`best/launch.sh` starts today's settings.",),
        )
    sentences = [(f"{sentence_start(plural(len(candidates), 'candidate'))} "
                 f"{'was' if len(candidates) == 1 else 'were'} measured.")]  # fmt: skip
    sentences += _kept((_nearest(view), _faster_but(view, candidates)))
    return Story(
        headline="Keep today's settings: nothing tried was better within the limits",
        sentences=tuple(sentences),
        advice=(KEEP,),
    )


def _nearest(view: StudyView) -> str | None:
    rival, metric = view.rival, view.metric
    baseline = view.goal(view.baseline) if view.baseline else None
    value = view.goal(rival) if rival else None
    if rival is None or metric is None or value is None or not baseline:
        return None
    if not rival.record.feasible:
        return None
    change = goal_change(view)
    paired = view.verdict is not None and len(view.verdict.pairs) > 0
    if paired and change is not None:
        spread = change_range(change)
        tail = f" (95 % interval {spread})" if spread else ""
        return f"The nearest, #{rival.number}, was {change_words(metric, change.ratio)}{tail}."
    words = change_words(metric, value / baseline)
    return f"The nearest, #{rival.number}, measured {words} in one launch."


def _faster_but(view: StudyView, candidates: Sequence[TrialView]) -> str | None:
    baseline = view.goal(view.baseline) if view.baseline else None
    if baseline is None or view.metric is None:
        return None
    ahead = [
        trial
        for trial in candidates
        if not trial.record.feasible
        and (value := view.goal(trial)) is not None
        and (value > baseline if view.maximized else value < baseline)
    ]
    if not ahead:
        return None
    broken = {text for t in ahead for text, by in t.record.constraints.items() if by > 0}
    falls = not view.maximized
    number = plural(len(ahead), "other was", "others were")
    return (
        f"{number} {direction_word(view.metric, falls=falls)} but broke a limit: "
        f"{', '.join(sorted(broken))}."
    )


def _no_feasible(view: StudyView) -> Story:
    baseline = view.baseline
    fails_too = (
        baseline is not None
        and baseline.record.state == "measured"
        and not baseline.record.feasible
    )
    tail = ", and today's settings do not either" if fails_too else ""
    return Story(
        headline=f"Nothing tried meets all limits{tail}",
        sentences=tuple(miss_sentences(view)),
        advice=(
            (
                "No recommendation was written. Choose: relax the limit that stops most, "
                "lower the load, or give the engine more memory or GPUs."
            ),
        ),
    )


def _so_far(view: StudyView) -> Story:
    """What can be said before there is a verdict."""
    again = ("`autotune report` builds this page again; `autotune resume` goes on.",)
    if not view.trials:
        return Story(
            headline="No trial has finished yet",
            sentences=("There is nothing to compare so far.",),
            advice=again,
        )
    best, baseline = view.best, view.baseline
    if best is None:
        headline = "So far nothing tried meets all limits"
        return Story(headline=headline, sentences=tuple(miss_sentences(view)), advice=again)
    if best.record.role != "baseline":
        story = _promising(view)
        return Story(headline=story.headline, sentences=story.sentences, advice=again)
    value = goal_text(view, view.goal(best))
    sentence = f"Today's settings measured {value} ({_label(view.metric)}) in one launch."
    if len(view.searched) == 1:
        return Story(
            headline="Only today's settings were measured so far",
            sentences=(sentence,),
            advice=again,
        )
    others = len(view.searched) - (1 if baseline else 0)
    return Story(
        headline="So far nothing tried was better than today's settings within the limits",
        sentences=(sentence, f"{sentence_start(plural(others, 'candidate'))} tried."),
        advice=again,
    )


def _label(metric: MetricName | None) -> str:
    return metric_label(metric) if metric else "the goal"


def _kept(texts: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(text for text in texts if text)
