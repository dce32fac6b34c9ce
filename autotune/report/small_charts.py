"""Figures made of small panels: latency curves of a trial, one panel per knob, the change strip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from markupsafe import Markup

from autotune.canonical import Json, canonical_json
from autotune.measure.comparison import Change
from autotune.report.charts import better_words, goal_label, trade_metrics, with_unit
from autotune.report.comparison import limit_states, sides
from autotune.report.figure import DRAWN, Figure, goal_words, legend, mark_of, state_word, tip
from autotune.report.latency import FEWEST_REQUESTS, Curve
from autotune.report.numbers import Scale, percent, quantity
from autotune.report.svg import Axis, Mark, Plot, axis, categories
from autotune.report.view import KnobView, StudyView, TrialView
from autotune.report.words import setting
from autotune.spec.vocabulary import METRICS

_FAMILIES = ("ttft", "tpot")
_FEWEST_VALUES, _FEWEST_MEASURED = 3, 8
Curves = Mapping[str, Curve]


def distributions(view: StudyView, today: Curves, new: Curves) -> Figure:
    """C5: cumulative curves of TTFT and TPOT, today's settings beside the candidate's."""
    families = [family for family in _FAMILIES if family in today or family in new]
    if not families:
        return Figure(
            anchor="latency",
            title="What users wait for",
            missing="Not drawn: request records are missing or hold fewer than "
            f"{FEWEST_REQUESTS} requests.",
        )
    rows = [
        (side, METRICS[f"{family}_p95"].family.upper(), f"p{mark:g}", quantity(value, scale))
        for family in families
        for scale in (view.units.scale(METRICS[f"{family}_p95"]),)
        for side, curves in (("today", today), ("new", new))
        if family in curves
        for mark, value in curves[family].marks
    ]
    title = _distribution_title(view, today, new)
    return Figure(
        anchor="latency",
        title=title,
        subtitle="Share of all requests answered within a time; further left is better. Ticks mark "
        "p50, p95 and p99. Failed requests are never answered, so a curve may end below 100 %.",
        pictures=tuple(_curve_panel(view, family, today, new, 440, 270) for family in families),
        columns=("settings", "metric", "statistic", "value"),
        rows=tuple(rows),
        legend=(("baseline", "today (baseline)"), ("best", _rival_name(view))),
    )


def _rival_name(view: StudyView) -> str:
    number = f" (#{view.rival.number})" if view.rival else ""
    return ("recommended" if view.recommended else "best candidate") + number


def _distribution_title(view: StudyView, today: Curves, new: Curves) -> str:
    a, b = today.get("ttft"), new.get("ttft")
    if a is None or b is None:
        return "What users wait for"
    scale = view.units.scale(METRICS["ttft_p95"])
    before, after = dict(a.marks).get(50.0), dict(b.marks).get(50.0)
    if before is None or after is None:
        return "What users wait for"
    return (
        f"Half of the first tokens come within {quantity(after, scale, digits=2)}; "
        f"today within {quantity(before, scale, digits=2)}"
    )


def _curve_panel(
    view: StudyView, family: str, today: Curves, new: Curves, width: int, height: int
) -> Markup:
    metric = next(m for m in trade_metrics(view) if m.family == family)
    scale = view.units.scale(metric)
    limit = _limit(view, metric.name)
    curves = [c[family] for c in (today, new) if family in c]
    plot = _curve_plot(curves, scale, family, (width, height), limit)
    plot.frame()
    if limit:
        label = f"{metric.statistic} limit {quantity(limit, scale)}"
        plot.limit_x(limit * scale.factor, label, upper=True)
    both: tuple[tuple[Mark, Curves], ...] = (("baseline", today), ("best", new))
    for kind, chosen in both:
        if family in chosen:
            _draw_curve(plot, chosen[family], scale.factor, kind)
    title = f"{family.upper()} of all requests"
    return plot.render(title, f"{title}: cumulative share, today's settings and the candidate's.")


def _curve_plot(
    curves: Sequence[Curve],
    scale: Scale,
    family: str,
    size: tuple[int, int],
    limit: float | None = None,
) -> Plot:
    width, height = size
    small = height < 200
    times = [t * scale.factor for curve in curves for t, _ in curve.points if t > 0] or [1.0]
    if limit:
        times.append(limit * scale.factor)
    # Three decades are plenty: a few requests at almost nothing would squeeze all others.
    low = max(min(times), max(times) / 1000)
    x = axis([low, max(times)], (44, width - 14), with_unit(family.upper(), scale), log=True)
    if small:
        x = replace(x, ticks=_thinned(x.ticks))
    shares = (0.0, 0.5, 1.0) if small else (0.0, 0.25, 0.5, 0.75, 0.95)
    y = Axis(
        low=0.0,
        high=1.0,
        start=height - 42,
        end=22 if small else 28,
        ticks=tuple((share, f"{100 * share:.0f}") for share in shares),
        title="share of requests, %",
    )
    return Plot(width, height, x, y)


def _thinned(ticks: tuple[tuple[float, str], ...]) -> tuple[tuple[float, str], ...]:
    step = max(1, math.ceil(len(ticks) / 5))
    return ticks[::step]


def _draw_curve(plot: Plot, curve: Curve, factor: float, kind: Mark, *, ticks: bool = True) -> None:
    points = [(max(t * factor, plot.x.low), share) for t, share in curve.points]
    plot.steps([(points[0][0], 0.0), *points], f"curve {kind}")
    for mark, value in curve.marks if ticks else ():
        x, y = plot.x.at(max(value * factor, plot.x.low)), plot.y.at(mark / 100)
        plot.raw(
            f'<g class="mark pin {kind}"><title>p{mark:g}: {value * factor:.4g}</title>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 6:.1f}" y2="{y + 6:.1f}"/></g>'
        )


def _limit(view: StudyView, name: str) -> float | None:
    today, new = sides(view)
    limits = [
        state.limit
        for state in limit_states(view, new or today)
        if state.metric is not None and state.metric.name == name and state.limit is not None
    ]
    return limits[0] if limits else None


def trial_curves(view: StudyView, trial: TrialView, own: Curves, today: Curves) -> list[Markup]:
    """C5 for one trial, small: its TTFT and TPOT curves over the baseline's in grey."""
    pictures = []
    for family in _FAMILIES:
        if family not in own:
            continue
        scale = view.units.scale(METRICS[f"{family}_p95"])
        is_baseline = trial.record.role == "baseline"
        behind = None if is_baseline else today.get(family)
        curves = [curve for curve in (behind, own[family]) if curve is not None]
        plot = _curve_plot(curves, scale, family, (330, 170))
        plot.frame()
        if behind is not None:
            _draw_curve(plot, behind, scale.factor, "other", ticks=False)
        kind: Mark = "baseline" if is_baseline else "best"
        _draw_curve(plot, own[family], scale.factor, kind)
        title = f"{family.upper()} of trial {trial.number}"
        beside = "" if behind is None else ", today's settings in grey"
        pictures.append(plot.render(title, f"{title}: cumulative share of requests{beside}."))
    return pictures


def knob_names(view: StudyView) -> list[str]:
    """Knobs that any trial set, those of the space first."""
    used = {name for trial in view.searched for name in trial.record.params}
    ordered = [knob.name for knob in view.knobs if knob.name in used]
    return ordered + sorted(used - set(ordered))


def knob_panels(view: StudyView) -> tuple[Figure, list[tuple[str, str, int, str]]]:
    """C8: one panel per knob with three values or more; the rest as (knob, value, trials, best).

    All as a table while fewer than eight trials are measured.
    """
    enough = len(view.measured) >= _FEWEST_MEASURED and view.metric is not None
    pictures, table = [], []
    for name in knob_names(view):
        values = _values_of(view, name)
        if enough and len(values) >= _FEWEST_VALUES:
            pictures.append(_knob_panel(view, name, values))
        else:
            table += _value_rows(view, name, values)
    if not pictures:
        return (
            Figure(
                anchor="knob-panels",
                title="What each knob did",
                missing="Not drawn: it takes eight measured trials and three values of a knob.",
            ),
            table,
        )
    scale = view.units.scale(view.metric)
    title = f"Association of each knob with {goal_label(view)}"
    return (
        Figure(
            anchor="knob-panels",
            title=title,
            subtitle=f"{with_unit(goal_label(view), scale)}; {better_words(view)}. Other knobs "
            "moved too, so this is association, not cause.",
            pictures=tuple(pictures),
            columns=("knob", "value", "trials", f"best {goal_label(view)} within limits"),
            rows=tuple(
                (name, value, str(number), best)
                for knob in knob_names(view)
                for name, value, number, best in _value_rows(view, knob, _values_of(view, knob))
            ),
            legend=legend(view, view.searched),
        ),
        table,
    )


def _values_of(view: StudyView, name: str) -> list[Json]:
    """Values tried, numbers in order, then others; None (engine default) first."""
    seen: dict[str, Json] = {}
    for trial in view.searched:
        value = trial.record.params.get(name)
        seen.setdefault(canonical_json(value), value)
    return sorted(seen.values(), key=value_order)


def knob_values(view: StudyView, name: str) -> list[dict[str, Json]]:
    """What was tried of a knob: value, trials, and the best goal within the limits (base units)."""
    found = []
    for value in _values_of(view, name):
        trials = _with_value(view, name, value)
        fit = [goal for t in trials if t.record.feasible and (goal := view.goal(t)) is not None]
        best = (max if view.maximized else min)(fit, default=None)
        found.append({"value": value, "trials": [t.number for t in trials], "best": best})
    return found


def value_order(value: Json) -> tuple[int, float, str]:
    """Sorts values of a knob: the engine's default first, numbers in order, then the rest."""
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 1, float(value), ""
    return 2, 0.0, canonical_json(value)


def _with_value(view: StudyView, name: str, value: Json) -> list[TrialView]:
    key = canonical_json(value)
    return [t for t in view.searched if canonical_json(t.record.params.get(name)) == key]


def _value_rows(
    view: StudyView, name: str, values: Sequence[Json]
) -> list[tuple[str, str, int, str]]:
    rows = []
    for value in values:
        trials = _with_value(view, name, value)
        fit = [t for t in trials if t.record.feasible and view.goal(t) is not None]
        sign = -1 if view.maximized else 1
        best = min(fit, key=lambda t: sign * (view.goal(t) or 0.0), default=None)
        if best is not None:
            words = f"{goal_words(view, best)} (#{best.number})"
        elif any(t.record.state == "measured" for t in trials):
            words = "none within the limits"
        else:
            words = " or ".join(sorted({state_word(t) for t in trials}))
        rows.append((name, setting(value), len(trials), words))
    return rows


def _knob_panel(view: StudyView, name: str, values: Sequence[Json]) -> Markup:
    scale = view.units.scale(view.metric)
    goals = [goal * scale.factor for t in view.measured if (goal := view.goal(t)) is not None]
    texts = [_short(setting(value), len(values)) for value in values]
    x = categories(texts, (44, 316), name)
    y = axis(goals, (144, 26), with_unit(goal_label(view), scale), ticks=4)
    plot = Plot(330, 206, x, y, floor=164)
    plot.frame()
    for index, value in enumerate(values):
        for trial in sorted(_with_value(view, name, value), key=lambda t: DRAWN[mark_of(view, t)]):
            goal, kind = view.goal(trial), mark_of(view, trial)
            if goal is None:
                plot.rug(index, tip(view, trial), kind)
            else:
                plot.mark(kind, index, goal * scale.factor, tip(view, trial))
    title = f"{goal_label(view)} by {name}"
    return plot.render(title, f"{title}: {len(values)} values tried; numbers in the table.")


def _short(text: str, among: int) -> str:
    """A tick's text cut to the room it has."""
    room = max(5, 46 // max(among, 1))
    text = {"engine default": "default"}.get(text, text)
    return text if len(text) <= room else text[: room - 1] + "\N{HORIZONTAL ELLIPSIS}"


def knob_why(knobs: Sequence[KnobView], name: str) -> str:
    """Why the search space varies a knob, or nothing."""
    return next((knob.why for knob in knobs if knob.name == name), "")


STRIP_WIDTH, STRIP_PAD = 210, 10


def _strip_at(ratio: float, span: tuple[float, float]) -> float:
    low, high = span
    share = (min(max(ratio - 1, low), high) - low) / (high - low)
    return STRIP_PAD + share * (STRIP_WIDTH - 2 * STRIP_PAD)


def change_axis(span: tuple[float, float]) -> Markup:
    """The head of the forest: its ends and zero as text; an end too near to zero is left out."""
    zero = _strip_at(1.0, span)
    texts = [f'<text x="{zero:.1f}" y="13" text-anchor="middle">0</text>']
    for end, anchor in ((span[0], "start"), (span[1], "end")):
        x = _strip_at(1 + end, span)
        if abs(x - zero) > 60:
            label = percent(end, signed=True)
            texts.append(f'<text x="{x:.1f}" y="13" text-anchor="{anchor}">{label}</text>')
    return Markup(  # noqa: S704 - formatted numbers only
        f'<svg class="strip" width="{STRIP_WIDTH}" height="18" '
        f'viewBox="0 0 {STRIP_WIDTH} 18">{"".join(texts)}</svg>'
    )


def change_strip(change: Change | None, span: tuple[float, float], metric_name: str) -> Markup:
    """C1: one row of the forest: a dot with its 95 % interval on a shared axis of change."""
    width, height = STRIP_WIDTH, 26

    def at(ratio: float) -> float:
        return _strip_at(ratio, span)

    zero, middle = at(1.0), height / 2
    parts = [
        f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="{height}"/>',
    ]
    words = "not comparable"
    if change is not None:
        words = f"change {percent(change.ratio - 1, signed=True)}"
        if change.low is not None and change.high is not None:
            words += (
                f", 95 % interval {percent(change.low - 1, signed=True)} to "
                f"{percent(change.high - 1, signed=True)}"
            )
            parts.append(
                f'<line class="whisker" x1="{at(change.low):.1f}" x2="{at(change.high):.1f}" '
                f'y1="{middle}" y2="{middle}"/>'
            )
        x = at(change.ratio)
        parts.append(
            f'<g class="mark best"><path d="M{x:.1f} {middle - 6:.1f} l6 6 l-6 6 l-6 -6 z"/></g>'
        )
    label = escape(f"{metric_name}: {words}")
    return Markup(  # noqa: S704 - the label is escaped, the rest are formatted numbers
        f'<svg class="strip" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}"><title>{label}</title>{"".join(parts)}</svg>'
    )


def strip_span(changes: Sequence[Change | None]) -> tuple[float, float]:
    """The shared axis of the forest as relative changes: all ends and zero, at most +200 %."""
    ends = [0.0]
    for change in changes:
        if change is not None:
            known = [e for e in (change.low, change.high, change.ratio) if e is not None]
            ends += [end - 1 for end in known]
    low, high = max(min(ends), -1.0), min(max(ends), 2.0)
    room = max((high - low) * 0.08, 0.02)
    return low - room, high + room
