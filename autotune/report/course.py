"""C6 and C7: inside a launch: queue and cache over time, and where the start went.

Telemetry is thinned to at most `MOST_POINTS` points by the highest value of each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from autotune.report.figure import Figure
from autotune.report.svg import Axis, Plot, axis, tick_text
from autotune.report.view import StudyView, TrialView
from autotune.study.events import Event

MOST_POINTS = 150
MOST_TRIALS = 40
"""Timelines are drawn for so many trials: the compared ones, the confirmation, then the best."""
MOST_CURVES = 300
"""Latency curves are drawn for so many trials, in the same order."""
MOST_STARTS = 15
_SIZE = (430, 150)
_STARTS_WIDTH = 880
_ROW = 24


def drawn(view: StudyView, most: int = MOST_TRIALS) -> frozenset[int]:
    """Numbers of the trials that are drawn, where not all can be: timelines, or latency curves."""
    first = [trial for trial in (view.baseline, view.rival) if trial is not None]
    by_goal = [trial.number for trial in view.measured if trial.record.feasible]
    by_goal.sort(key=lambda number: _cost(view, number))
    ranked = [trial for number in by_goal if (trial := view.trial(number)) is not None]
    order = [*first, *view.confirmations, *ranked, *view.searched]
    numbers = dict.fromkeys(trial.number for trial in order if trial.measurement is not None)
    return frozenset(list(numbers)[:most])


def _cost(view: StudyView, number: int) -> float:
    trial = view.trial(number)
    goal = None if trial is None else view.goal(trial)
    return math.inf if goal is None else -goal if view.maximized else goal


def timeline(trial: TrialView) -> list[Markup]:
    """Small panels of one launch over the seconds of its replay; [] without telemetry."""
    columns = _telemetry(trial.folder / "telemetry.parquet")
    times = columns.get("at_s", [])
    known = [moment for moment in times if moment is not None]
    if len(known) < 3 or known[-1] <= known[0]:
        return []
    panels = []
    for title, names, factor in (
        ("requests", (("running", "running", "baseline"), ("waiting", "waiting", "best")), 1.0),
        ("KV cache in use, %", (("kv_usage", "KV cache", "baseline"),), 100.0),
        ("GPU power, W", (("gpu_power_w", "power", "baseline"),), 1.0),
    ):
        lines = [
            (label, css, _thinned(times, columns[name], factor))
            for name, label, css in names
            if any(value for value in columns.get(name, ()) if value)
        ]
        if lines:
            panels.append(_panel(title, lines, known[0], known[-1]))
    return panels


def starts(view: StudyView) -> Figure:
    """One bar per launch, parted by the phases that the engine's log told."""
    launches = [(number, phases) for number, phases in _starts(view.events) if len(phases) >= 2]
    if not launches:
        return Figure(
            anchor="starts",
            title="Where the start went",
            missing="Not drawn: no launch told two phases of its start.",
        )
    launches = launches[-MOST_STARTS:]
    longest = max(sum(seconds for _, seconds in phases) for _, phases in launches)
    height = 60 + _ROW * len(launches)
    x = axis(
        [0.0, longest], (60, _STARTS_WIDTH - 16), "seconds from the start", zero=True, log=False
    )
    y = Axis(low=0, high=1, start=height - 46, end=10, ticks=(), title="")
    plot = Plot(_STARTS_WIDTH, height, x, y)
    plot.frame(grid=False)
    for row, (number, phases) in enumerate(launches):
        _start_bar(plot, x, 12 + row * _ROW, number, phases)
    rows = [
        (f"#{number}", phase, f"{seconds:.1f} s")
        for number, phases in launches
        for phase, seconds in phases
    ]
    name, spent = _largest([phases for _, phases in launches])
    return Figure(
        anchor="starts",
        title=f"Most of a start goes to: {name} ({spent:.1f} s in the middle launch)",
        subtitle="Phases as the engine's log announced them, the last launches that served.",
        pictures=(plot.render("Start-up phases", "A bar per launch, parted by phase."),),
        columns=("trial", "phase", "time"),
        rows=tuple(rows),
    )


def _telemetry(path: Path) -> Mapping[str, list[float | None]]:
    import pyarrow.parquet as pq
    from pyarrow import ArrowInvalid

    try:
        table: dict[str, list[Any]] = pq.read_table(path).to_pydict()
    except (OSError, ArrowInvalid):
        return {}
    return table


def _thinned(
    times: Sequence[float | None], values: Sequence[float | None], factor: float
) -> list[tuple[float, float]]:
    points = [
        (moment, value * factor)
        for moment, value in zip(times, values, strict=True)
        if moment is not None and value is not None and math.isfinite(value)
    ]
    step = max(1, math.ceil(len(points) / MOST_POINTS))
    return [
        max(points[start : start + step], key=lambda point: point[1])
        for start in range(0, len(points), step)
    ]


def _panel(
    title: str,
    lines: Sequence[tuple[str, str, list[tuple[float, float]]]],
    first: float,
    last: float,
) -> Markup:
    values = [value for _, _, points in lines for _, value in points] or [0.0]
    x = axis([0.0, last - first], (46, _SIZE[0] - 60), "seconds", zero=True, log=False)
    y = axis([0.0, max(values)], (_SIZE[1] - 46, 24), title, zero=True, log=False, ticks=3)
    plot = Plot(*_SIZE, x, y)
    plot.frame()
    for label, css, points in lines:
        if not points:
            continue
        moved = [(moment - first, value) for moment, value in points]
        plot.line(moved, f"curve {css}")
        if len(lines) > 1:
            plot.text(x.end + 4, y.at(moved[-1][1]) + 4, label, "tick")
    return plot.render(
        title, f"{title} over the replay, highest {tick_text(round(max(values), 1))}."
    )


def _starts(events: Sequence[Event]) -> list[tuple[int, list[tuple[str, float]]]]:
    """(trial, [(phase, seconds)]) of every launch that came to be warmed up."""
    found: list[tuple[int, list[tuple[str, float]]]] = []
    marks: dict[int, list[tuple[str, float]]] = {}
    for event in events:
        if event.kind != "phase":
            continue
        number, phase = event.data.get("trial"), event.data.get("phase")
        if not isinstance(number, int):
            continue
        if phase == "launching":
            name = str(event.data.get("detail") or "process")
            marks.setdefault(number, []).append((name.replace("_", " "), event.elapsed_s))
        elif number in marks:
            told = [*marks.pop(number), ("end", event.elapsed_s)]
            spans = [
                (name, until - since)
                for (name, since), (_, until) in pairwise(told)
                if until - since > 0.01
            ]
            found.append((number, spans))
    return found


def _start_bar(
    plot: Plot, x: Axis, top: float, number: int, phases: Sequence[tuple[str, float]]
) -> None:
    plot.text(52, top + 14, f"#{number}", "tick", anchor="end")
    at = 0.0
    for index, (name, seconds) in enumerate(phases):
        left, right = x.at(at), x.at(at + seconds)
        plot.raw(
            f'<rect class="phase phase-{index % 4}" x="{left:.1f}" y="{top:.1f}" '
            f'width="{max(right - left, 0.5):.1f}" height="{_ROW - 6}"/>'
        )
        if right - left > 8 * len(name):
            plot.text((left + right) / 2, top + 13, name, f"phase-name phase-{index % 4}", "middle")
        at += seconds


def _largest(launches: Sequence[Sequence[tuple[str, float]]]) -> tuple[str, float]:
    spent: dict[str, list[float]] = {}
    for phases in launches:
        for name, seconds in phases:
            spent.setdefault(name, []).append(seconds)
    name = max(spent, key=lambda key: math.fsum(spent[key]))
    ordered = sorted(spent[name])
    return name, ordered[len(ordered) // 2]
