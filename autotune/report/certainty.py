"""How sure the result is, and the page's title: short lines beside the verdict."""

from __future__ import annotations

from autotune.report.comparison import goal_change
from autotune.report.numbers import percent
from autotune.report.verdict_words import goal_text
from autotune.report.view import StudyView
from autotune.report.words import change_words, metric_label, plural


def page_title(view: StudyView) -> str:
    """The tab's title: `qwen-rag-overnight: 65 % shorter TTFT p95 (autotune)`."""
    verdict, metric, change = view.verdict, view.metric, goal_change(view)
    prefix = "simulated " if view.simulated else ""
    if verdict is None:
        outcome = f"{plural(len(view.trials), 'trial')} so far"
    elif verdict.verdict == "better" and metric is not None and change is not None:
        outcome = f"{change_words(metric, change.ratio)} {metric_label(metric)}"
        outcome += "" if verdict.confirmed else ", not confirmed"
    else:
        outcome = {
            "better": "change the settings",
            "not_distinguishable": "not told apart from today's",
            "keep_baseline": "keep today's settings",
            "no_feasible": "no candidate meets the limits",
        }[verdict.verdict]
    return f"{view.name}: {prefix}{outcome} (autotune)"


def luck(view: StudyView) -> str | None:
    """The winner's-curse line: what the search saw against what the confirmation saw."""
    verdict, metric = view.verdict, view.metric
    if verdict is None or metric is None or not verdict.confirmed:
        return None
    search, confirmed = verdict.search_value, verdict.best_value
    if search is None or not confirmed:
        return None
    if view.workload.get("held_out") is True:
        # Other traffic, other values: only the changes can be compared
        today = view.goal(view.baseline) if view.baseline else None
        if not today or search <= 0:
            return None
        return f"on its own traffic the search saw {change_words(metric, search / today)}"
    off = search / confirmed - 1
    lucky = off > 0 if view.maximized else off < 0
    if abs(off) < 0.0005:
        return f"the search saw {goal_text(view, search)} as well"
    word = "lucky" if lucky else "unlucky"
    return f"the search value was {goal_text(view, search)} ({word} by {percent(abs(off))})"


def agreement(view: StudyView) -> str | None:
    """Whether the pairs agree in direction: `all 3 pairs agree in direction`."""
    ratios = [p.ratio for p in view.verdict.pairs if p.ratio] if view.verdict else []
    if len(ratios) < 2:
        return None
    better = sum((ratio > 1) == view.maximized and ratio != 1 for ratio in ratios)
    if better in {0, len(ratios)}:
        return f"all {len(ratios)} pairs agree in direction"
    return f"{better} of {len(ratios)} pairs favour the new settings"
