"""C12: what the search predicted of each launch beside what was measured."""

from __future__ import annotations

import math
from pathlib import Path

from autotune.report import reading
from autotune.report.charts import goal_label, with_unit
from autotune.report.figure import Figure, legend, mark_of, tip
from autotune.report.numbers import quantity, share
from autotune.report.reading import Problems
from autotune.report.svg import Plot, axis
from autotune.report.view import StudyView, TrialView

BAND = 0.10
"""The band that is drawn around "as predicted"."""
_SIZE = (560, 400)
_FEWEST_FOR_A_FINDING = 3
_FORECAST = "forecast.json"


def predictions(view: StudyView) -> Figure:
    """Predicted against measured for the first objective; one mark per measured launch."""
    pairs = _pairs(view)
    if not pairs or view.metric is None:
        return Figure(
            anchor="predictions",
            title="What was predicted",
            missing="Not drawn: no launch of this study was predicted before it was measured.",
        )
    scale = view.units.scale(view.metric)
    values = [value * scale.factor for _, *both in pairs for value in both]
    label = with_unit(goal_label(view), scale)
    x = axis(values, (64, _SIZE[0] - 20), f"predicted {label}")
    y = axis(values, (_SIZE[1] - 50, 26), f"measured {label}")
    plot = Plot(*_SIZE, x, y)
    plot.frame()
    low, high = x.low, x.high
    for factor, css in ((1 - BAND, "front"), (1.0, "curve other"), (1 + BAND, "front")):
        ends = [(low, low * factor), (high, high * factor)]
        plot.line([(a, min(max(b, y.low), y.high)) for a, b in ends], css)
    for trial, expected, measured in pairs:
        words = f"{tip(view, trial)}; predicted {quantity(expected, scale)}"
        plot.mark(mark_of(view, trial), expected * scale.factor, measured * scale.factor, words)
    errors = [abs(measured / expected - 1) for _, expected, measured in pairs if expected > 0]
    return Figure(
        anchor="predictions",
        title=_title(errors),
        subtitle="Each mark is a launch, predicted before it was made from a model that was fitted "
        f"to earlier ones. On the middle line it came out as predicted; the others are "
        f"{share(BAND)} off.{_gave_way(view.directory)}",
        pictures=(
            plot.render("Predicted beside measured", "A mark per launch, with the diagonal."),
        ),
        columns=("trial", f"predicted {goal_label(view)}", "measured", "off by"),
        rows=tuple(
            (
                f"#{trial.number}",
                quantity(expected, scale),
                quantity(measured, scale),
                share(measured / expected - 1) if expected > 0 else "",
            )
            for trial, expected, measured in pairs
        ),
        legend=legend(view, tuple(trial for trial, *_ in pairs)),
    )


def _pairs(view: StudyView) -> list[tuple[TrialView, float, float]]:
    if view.metric is None:
        return []
    found = []
    for trial in view.searched:
        expected = trial.record.predicted.get(view.metric.key)
        measured = view.goal(trial)
        if expected is not None and math.isfinite(expected) and measured is not None:
            found.append((trial, expected, measured))
    return found


def _title(errors: list[float]) -> str:
    if len(errors) < _FEWEST_FOR_A_FINDING:
        return "What was predicted, and what came"
    middle = sorted(errors)[len(errors) // 2]
    return f"Half of {len(errors)} launches came out within {share(middle)} of the prediction"


def _gave_way(directory: Path) -> str:
    found = reading.read_object(directory / _FORECAST, directory, Problems()) or {}
    reason = found.get("gave_way")
    return f" The model was given up during the search: {reason}." if reason else ""
