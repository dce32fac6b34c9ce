"""The study's figures: how the search went, what is traded, whether every pair agreed."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report.comparison import LimitState, limit_states, sides
from autotune.report.figure import (
    DRAWN,
    Figure,
    changes_text,
    goal_words,
    legend,
    mark_of,
    reason_text,
    state_word,
    tip,
)
from autotune.report.numbers import Scale, duration, quantity
from autotune.report.svg import Axis, Plot, axis, categories
from autotune.report.verdict_words import traffic_words
from autotune.report.view import StudyView, TrialView, metric_of
from autotune.report.words import change_words, direction_word, metric_label, plural
from autotune.spec.vocabulary import METRICS, MetricName

WIDTH, HEIGHT = 720, 334
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 700, 30, 290
_RUG = 24
_FEWEST_HISTORY, _FEWEST_SCATTER, _FEWEST_PAIRS = 3, 3, 2


def better_words(view: StudyView) -> str:
    """Which direction of the goal is better."""
    if view.metric is None:
        return "higher is better" if view.maximized else "lower is better"
    return f"{direction_word(view.metric, falls=not view.maximized)} is better"


def goal_label(view: StudyView) -> str:
    """The goal's short name."""
    if view.metric is not None:
        return metric_label(view.metric)
    return view.objectives[0] if view.objectives else "goal"


def with_unit(label: str, scale: Scale) -> str:
    """An axis title or column head with its unit."""
    return f"{label}, {scale.unit}" if scale.unit else label


def history(view: StudyView) -> Figure:
    """C3: the first objective over the time that launches took, with the best so far as steps."""
    title = _history_title(view)
    if len(view.measured) < _FEWEST_HISTORY:
        number = plural(len(view.measured), "measured trial")
        return Figure(
            anchor="history",
            title="How the search went",
            missing=f"Not drawn: {number} so far, three are needed for a history.",
        )
    scale = view.units.scale(view.metric)
    x, places = _time_axis(view)
    values = [goal * scale.factor for t in view.measured if (goal := view.goal(t)) is not None]
    limits = [s for s in _limits_of(view, view.metric) if s.limit is not None]
    y = axis(values, (_BOTTOM - _RUG, _TOP), with_unit(goal_label(view), scale))
    plot = Plot(WIDTH, HEIGHT, x, y, floor=_BOTTOM)
    plot.frame()
    for state in limits:
        assert state.limit is not None
        if y.low < state.limit * scale.factor < y.high:
            label = f"limit {quantity(state.limit, scale)}"
            plot.limit_y(state.limit * scale.factor, label, upper=state.upper)
    plot.steps(_best_so_far(view, places, scale.factor, x.high), "best-so-far")
    _history_marks(view, plot, places, scale.factor)
    return Figure(
        anchor="history",
        title=title,
        subtitle=f"{with_unit(goal_label(view), scale)}; {better_words(view)}. "
        "The step line is the best value so far within the limits.",
        pictures=(plot.render(title, _history_words(view)),),
        columns=("#", "state", with_unit(goal_label(view), scale), "ended after", "changed"),
        rows=tuple(
            (
                str(trial.number),
                state_word(trial),
                goal_words(view, trial),
                duration(trial.ended_s),
                changes_text(trial),
            )
            for trial in view.searched
        ),
        legend=legend(view, view.searched),
    )


def _time_axis(view: StudyView) -> tuple[Axis, dict[int, float]]:
    """The time that launches took, and each trial's place on it; trial numbers if none is known."""
    longest = max(trial.ended_s for trial in view.searched)
    per, unit = (60.0, "min") if longest < 5400 else (3600.0, "h")
    title = f"time spent on launches, {unit}" if longest > 0 else "trial number"
    places = {
        trial.number: trial.ended_s / per if longest > 0 else float(trial.number)
        for trial in view.searched
    }
    ends = [0.0, *places.values()]
    return axis(ends, (_LEFT, _RIGHT), title, zero=True, log=False, ticks=8), places


def _history_marks(view: StudyView, plot: Plot, places: dict[int, float], factor: float) -> None:
    for trial in sorted(view.searched, key=lambda t: DRAWN[mark_of(view, t)]):
        goal, at, kind = view.goal(trial), places[trial.number], mark_of(view, trial)
        if goal is None:
            plot.rug(at, tip(view, trial), kind)
            continue
        plot.mark(kind, at, goal * factor, tip(view, trial))
        if kind in {"baseline", "best"}:
            word = "today" if kind == "baseline" else f"#{trial.number}"
            text = f"{word}: {goal_words(view, trial)}"
            plot.note(at, goal * factor, text, f"label {kind}")


def _best_so_far(
    view: StudyView, places: dict[int, float], factor: float, end: float
) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    best: float | None = None
    for trial in view.measured:
        goal = view.goal(trial)
        if not trial.record.feasible or goal is None:
            continue
        if best is None or (goal > best if view.maximized else goal < best):
            best = goal
            points.append((places[trial.number], goal * factor))
    return [*points, (end, points[-1][1])] if points else []


def _history_title(view: StudyView) -> str:
    measured = view.measured
    goals = {view.goal(trial) for trial in measured}
    if len(measured) > 1 and len(goals) == 1:
        return f"All {len(measured)} measured trials have the same {goal_label(view)}"
    rival, baseline = view.rival, view.baseline
    value = view.goal(rival) if rival else None
    today = view.goal(baseline) if baseline else None
    if rival is None or value is None or not rival.record.feasible:
        return "No candidate met all limits"
    if today is not None and baseline is not None and baseline.record.feasible:
        ahead = value > today if view.maximized else value < today
        if not ahead:
            return "No candidate measured better than today's settings within the limits"
    return (
        f"Trial {rival.number} measured the best {goal_label(view)} within the limits, "
        f"after {duration(rival.ended_s)} of launches"
    )


def _history_words(view: StudyView) -> str:
    kinds = [mark_of(view, trial) for trial in view.searched]
    failed, ended = kinds.count("failed"), kinds.count("ended")
    breaks = sum(not trial.record.feasible for trial in view.measured)
    return (
        f"{plural(len(view.measured), 'measured trial')} over time, {breaks} of them breaking a "
        f"limit; {ended} ended early and {failed} failed. The numbers are in the table below the "
        "figure."
    )


def _limits_of(view: StudyView, metric: MetricName | None) -> list[LimitState]:
    today, new = sides(view)
    return [state for state in limit_states(view, new or today) if state.metric == metric]


def trade_metrics(view: StudyView) -> tuple[MetricName, MetricName]:
    """The TTFT and TPOT statistics that the study is about (p95 where it names none)."""
    named = [metric_of(text) for text in (*view.objectives, *view.constraints)]

    def chosen(family: str) -> MetricName:
        own = [metric for metric in named if metric is not None and metric.family == family]
        return own[0] if own else METRICS[f"{family}_p95"]

    return chosen("ttft"), chosen("tpot")


def trade_off(view: StudyView) -> Figure:
    """C4: TTFT against TPOT of every measured trial, with the limits drawn."""
    first, second = trade_metrics(view)
    points = [
        (trial, a, b)
        for trial in view.searched
        if trial.record.state == "measured"
        and (a := trial.metric(first)) is not None
        and (b := trial.metric(second)) is not None
    ]
    labels = metric_label(first), metric_label(second)
    if len(points) < _FEWEST_SCATTER or len({(a, b) for _, a, b in points}) == 1:
        same = len(points) >= _FEWEST_SCATTER
        why = (
            "all trials measured the same" if same else f"{plural(len(points), 'trial')} with both"
        )
        return Figure(
            anchor="trade",
            title=f"{labels[0]} against {labels[1]}",
            missing=f"Not drawn: {why}.",
        )
    scales = view.units.scale(first), view.units.scale(second)
    plot = _scatter(view, points, (first, second), scales)
    meets = sum(trial.record.feasible for trial, _, _ in points)
    title = f"{meets} of {plural(len(points), 'measured trial')} met all limits"
    if not view.constraints:
        title = f"What {labels[0]} costs in {labels[1]}"
    return Figure(
        anchor="trade",
        title=title,
        subtitle=f"{labels[0]} against {labels[1]}; lower left is better. The step line joins the "
        "trials that no other one beats in both; hatched: beyond a limit.",
        pictures=(plot.render(title, f"{labels[0]} against {labels[1]} of each trial."),),
        columns=("#", "state", with_unit(labels[0], scales[0]), with_unit(labels[1], scales[1]),
                 "changed"),
        rows=tuple(
            (
                str(trial.number),
                state_word(trial),
                quantity(a, scales[0], trial.interval(first)),
                quantity(b, scales[1], trial.interval(second)),
                changes_text(trial),
            )
            for trial, a, b in points
        ),
        legend=legend(view, tuple(trial for trial, _, _ in points)),
    )  # fmt: skip


def _scatter(
    view: StudyView,
    points: Sequence[tuple[TrialView, float, float]],
    metrics: tuple[MetricName, MetricName],
    scales: tuple[Scale, Scale],
) -> Plot:
    factors = scales[0].factor, scales[1].factor
    limits = [[s for s in _limits_of(view, m) if s.limit is not None] for m in metrics]
    xs = [a * factors[0] for _, a, _ in points] + [
        s.limit * factors[0] for s in limits[0] if s.limit
    ]
    ys = [b * factors[1] for _, _, b in points] + [
        s.limit * factors[1] for s in limits[1] if s.limit
    ]
    x = axis(xs, (_LEFT, _RIGHT), with_unit(metric_label(metrics[0]), scales[0]))
    y = axis(ys, (_BOTTOM, _TOP), with_unit(metric_label(metrics[1]), scales[1]))
    plot = Plot(WIDTH, HEIGHT, x, y)
    plot.frame()
    for state in limits[0]:
        assert state.limit is not None
        plot.limit_x(
            state.limit * factors[0], f"limit {quantity(state.limit, scales[0])}", upper=state.upper
        )
    for state in limits[1]:
        assert state.limit is not None
        plot.limit_y(
            state.limit * factors[1], f"limit {quantity(state.limit, scales[1])}", upper=state.upper
        )
    front = _front([(a, b) for trial, a, b in points if trial.record.feasible])
    plot.steps([(a * factors[0], b * factors[1]) for a, b in front], "front")
    for trial, a, b in sorted(points, key=lambda point: DRAWN[mark_of(view, point[0])]):
        kind = mark_of(view, trial)
        plot.mark(kind, a * factors[0], b * factors[1], tip(view, trial))
        if kind in {"baseline", "best"}:
            name = "today" if kind == "baseline" else f"#{trial.number}"
            plot.note(a * factors[0], b * factors[1], name, f"label {kind}")
    return plot


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other one beats in both coordinates (lower is better), by the first."""
    front: list[tuple[float, float]] = []
    for a, b in sorted(set(points)):
        if not front or b < front[-1][1]:
            front.append((a, b))
    return front


def confirmation(view: StudyView) -> Figure:
    """C2: baseline and candidate of every confirmation pair, in run order."""
    pairs = view.finalist_pairs
    if len(pairs) < _FEWEST_PAIRS or view.metric is None:
        number = plural(len(pairs), "paired launch", "paired launches")
        return Figure(
            anchor="pairs",
            title="Paired launches",
            missing=f"Not drawn: {number}; two are needed to see whether they agree.",
        )
    scale = view.units.scale(view.metric)
    values = [v * scale.factor for pair in pairs for v in (pair.baseline_value, pair.best_value)]
    better = sum(
        pair.best_value > pair.baseline_value if view.maximized
        else pair.best_value < pair.baseline_value
        for pair in pairs
    )  # fmt: skip
    title = f"The new settings were better in {better} of {len(pairs)} paired launches"
    width = min(WIDTH, 120 + 130 * len(pairs))
    x = categories([f"pair {pair.pair + 1}" for pair in pairs], (_LEFT, width - 20), "in run order")
    y = axis(values, (_BOTTOM, _TOP), with_unit(goal_label(view), scale))
    plot = Plot(width, HEIGHT, x, y)
    plot.frame()
    for index, pair in enumerate(pairs):
        a, b = pair.baseline_value, pair.best_value
        left, right = index - 0.2, index + 0.2
        plot.line([(left, a * scale.factor), (right, b * scale.factor)], "pair")
        text = quantity(a, scale), quantity(b, scale)
        plot.mark("baseline", left, a * scale.factor, f"today #{pair.baseline_trial}: {text[0]}")
        plot.mark("best", right, b * scale.factor, f"new #{pair.best_trial}: {text[1]}")
    metric = view.metric
    return Figure(
        anchor="pairs",
        title=title,
        subtitle=f"{with_unit(goal_label(view), scale)}; {better_words(view)}. Each pair is one "
        f"launch of today's settings and one of the new, {traffic_words(view)}.",
        pictures=(plot.render(title, f"{goal_label(view)} of {len(pairs)} pairs of launches."),),
        columns=("pair", "launches", "today", "new", "difference"),
        rows=tuple(
            (
                str(pair.pair + 1),
                f"#{pair.baseline_trial} and #{pair.best_trial}",
                quantity(pair.baseline_value, scale),
                quantity(pair.best_value, scale),
                change_words(metric, pair.ratio) if pair.ratio else "not comparable",
            )
            for pair in pairs
        ),
        legend=(("baseline", "today (baseline)"), ("best", "new settings")),
    )


def failure_sentence(view: StudyView) -> str:
    """How many trials failed, and of what most."""
    failed = [trial for trial in view.trials if trial.record.state != "measured"]
    if not failed:
        return "No trial failed."
    reasons = [
        state_word(trial) if trial.record.stopped_early else reason_text(trial) for trial in failed
    ]
    most = max(sorted(set(reasons)), key=reasons.count)
    number = reasons.count(most)
    of_them = "all" if number == len(failed) else f"{number}"
    tail = f", {of_them} of them: {most}" if len(failed) > 1 else f": {most}"
    return f"{plural(len(failed), 'trial')} ended without a measurement{tail}."
