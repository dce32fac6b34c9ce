"""What single knobs did: launches one setting apart, which knobs matter, where the edges are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from autotune.canonical import Json, canonical_json
from autotune.report.charts import goal_label
from autotune.report.figure import Figure, reason_text
from autotune.report.numbers import percent, share
from autotune.report.small_charts import knob_names, value_order
from autotune.report.svg import Mark, Plot, axis, categories
from autotune.report.view import StudyView, TrialView
from autotune.report.words import setting

if TYPE_CHECKING:
    import numpy as np

FEWEST_FOR_RANKING = 30
"""Below so many measured trials no knob is ranked."""
LEAST_EXPLAINED = 0.5
"""A model that explains less of launches it has not seen ranks nothing."""
DRAWS = 200
_WIDTH = 560
_MOST_CELLS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class OneChange:
    """Two launches that differ in one knob only. `ratio`: the goal at `new` over that at `old`."""

    knob: str
    old: Json
    new: Json
    ratio: float
    trials: tuple[int, int]


def one_changes(view: StudyView) -> list[OneChange]:
    """Every pair of measured trials with one knob between them, nearest to today's setting first.

    A direct comparison, but of single launches: it carries their noise.
    """
    origin = view.baseline.record.params if view.baseline else {}
    found = []
    for one, two in combinations(view.measured, 2):
        names = {*one.record.params, *two.record.params}
        differing = [
            name
            for name in names
            if canonical_json(one.record.params.get(name))
            != canonical_json(two.record.params.get(name))
        ]
        if len(differing) != 1:
            continue
        name = differing[0]
        first, second = one, two
        if canonical_json(two.record.params.get(name)) == canonical_json(origin.get(name)):
            first, second = two, one
        before, after = view.goal(first), view.goal(second)
        if before and after and before > 0 and after > 0:
            found.append(
                OneChange(
                    knob=name,
                    old=first.record.params.get(name),
                    new=second.record.params.get(name),
                    ratio=after / before,
                    trials=(first.number, second.number),
                )
            )
    return sorted(found, key=lambda change: (change.knob, -abs(math.log(change.ratio))))


def change_rows(view: StudyView) -> list[tuple[str, str, str, str, str]]:
    """(knob, from, to, change of the goal, trials) as text, at most three per knob."""
    rows: list[tuple[str, str, str, str, str]] = []
    for change in one_changes(view):
        if sum(row[0] == change.knob for row in rows) < 3:
            rows.append(
                (
                    change.knob,
                    setting(change.old),
                    setting(change.new),
                    percent(change.ratio - 1, signed=True),
                    f"#{change.trials[0]} and #{change.trials[1]}",
                )
            )
    return rows


def importance(view: StudyView) -> Figure:
    """C9: the share of the goal's spread that each knob's values explain, with 90 % intervals."""
    import numpy as np

    missing = _why_not_ranked(view)
    if missing is not None:
        return Figure(anchor="importance", title="Which knobs matter", missing=missing)
    names = [name for name in knob_names(view) if len(_values(view.measured, name)) > 1]
    goals = np.log([_goal(view, trial) for trial in view.measured])
    codes = {name: _codes(view.measured, name) for name in names}
    shares = {name: _explained(goals, codes[name]) for name in names}
    rng = np.random.default_rng(7)
    drawn: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(DRAWS):
        rows = rng.integers(0, len(goals), len(goals))
        for name in names:
            drawn[name].append(_explained(goals[rows], codes[name][rows]))
    spans = {name: tuple(np.quantile(drawn[name], (0.05, 0.95))) for name in names}
    ordered = sorted(names, key=lambda name: -shares[name])
    height = 60 + 26 * len(ordered)
    x = axis([0.0, 1.0], (220, _WIDTH - 16), "share of the spread explained", zero=True, log=False)
    y = categories(ordered, (14, height - 46), "")
    plot = Plot(_WIDTH, height, x, y, floor=height - 46)
    plot.frame(grid=False)
    for place, name in enumerate(ordered):
        middle, (low, high) = y.at(place), spans[name]
        plot.raw(
            f'<rect class="bar" x="{x.start}" y="{middle - 7:.1f}" '
            f'width="{x.at(shares[name]) - x.start:.1f}" height="14"/>'
            f'<line class="whisker" x1="{x.at(low):.1f}" x2="{x.at(high):.1f}" '
            f'y1="{middle:.1f}" y2="{middle:.1f}"/>'
        )
    return Figure(
        anchor="importance",
        title=f"{ordered[0]} explains most of {goal_label(view)}",
        subtitle="How much of the spread between launches goes with each knob's values alone; "
        "lines are 90 % intervals from resampling. Knobs that move together share it.",
        pictures=(plot.render("Which knobs matter", "A bar per knob, the largest first."),),
        columns=("knob", "share", "90 % interval"),
        rows=tuple(
            (name, share(shares[name]), f"{share(spans[name][0])} to {share(spans[name][1])}")
            for name in ordered
        ),
    )


def _why_not_ranked(view: StudyView) -> str | None:
    if len(view.measured) < FEWEST_FOR_RANKING:
        return (
            f"Not drawn: {len(view.measured)} measured trials are too few to rank knobs "
            f"(it takes {FEWEST_FOR_RANKING})."
        )
    if any(_goal(view, trial) <= 0 for trial in view.measured):
        return "Not drawn: the goal is zero in some trials."
    known = _held_out_share(view)
    if known < LEAST_EXPLAINED:
        return (
            "Not drawn: the knobs' values, taken one by one, explain less than half of the spread "
            "between launches, so no ranking would hold."
        )
    return None


def _held_out_share(view: StudyView) -> float:
    """R squared of a sum of effects per knob value on launches left out one by one (ridge 1)."""
    import numpy as np

    goals = np.log([_goal(view, trial) for trial in view.measured])
    columns = [np.ones(len(goals))]
    for name in knob_names(view):
        codes = _codes(view.measured, name)
        columns += [(codes == code).astype(float) for code in np.unique(codes)]
    table = np.stack(columns, axis=1)
    ridge = np.eye(table.shape[1])
    ridge[0, 0] = 1e-9
    hat = table @ np.linalg.solve(table.T @ table + ridge, table.T)
    left_out = (goals - hat @ goals) / np.maximum(1 - np.diag(hat), 1e-6)
    spread = float(np.sum((goals - goals.mean()) ** 2))
    return 1 - float(np.sum(left_out**2)) / spread if spread > 0 else 0.0


def _explained(goals: np.ndarray, codes: np.ndarray) -> float:
    """Between-group share of the sum of squares (eta squared) of one knob's values."""
    import numpy as np

    total = float(np.sum((goals - goals.mean()) ** 2))
    if total <= 0:
        return 0.0
    within = sum(
        float(np.sum((group - group.mean()) ** 2))
        for code in np.unique(codes)
        for group in (goals[codes == code],)
    )
    return max(0.0, 1 - within / total)


def _goal(view: StudyView, trial: TrialView) -> float:
    value = view.goal(trial)
    assert value is not None
    return value


def _values(trials: Sequence[TrialView], name: str) -> dict[str, Json]:
    values = [trial.record.params.get(name) for trial in trials]
    return {canonical_json(value): value for value in values}


def _codes(trials: Sequence[TrialView], name: str) -> np.ndarray:
    import numpy as np

    order = {key: place for place, key in enumerate(sorted(_values(trials, name)))}
    return np.array([order[canonical_json(t.record.params.get(name))] for t in trials])


def edge(view: StudyView) -> Figure:
    """C10: the two knobs between whose values launches stop to work."""
    pair = _edge_pair(view)
    if pair is None:
        return Figure(
            anchor="edge",
            title="Where the edge is",
            missing="Not drawn: no failure has working and failing values of two knobs around it.",
        )
    across, down = (_ordered(view, name) for name in pair)
    width, height = 150 + 62 * len(across), 74 + 34 * len(down)
    x = categories([setting(value) for value in across], (120, width - 20), pair[0])
    y = categories([setting(value) for value in down], (30, height - 46), pair[1])
    plot = Plot(width, height, x, y, floor=height - 46)
    plot.frame()
    rows, reasons = [], set()
    for trial in view.searched:
        places = [_place(values, trial.record.params.get(name))
                  for values, name in zip((across, down), pair, strict=True)]  # fmt: skip
        failed = trial.record.state == "infeasible"
        if None in places or trial.record.state not in ("measured", "infeasible"):
            continue
        kind: Mark = "failed" if failed else "other"
        words = reason_text(trial) if failed else "ran"
        plot.mark(kind, float(places[0] or 0), float(places[1] or 0), f"#{trial.number}: {words}")
        rows.append(
            (f"#{trial.number}", *(setting(trial.record.params.get(n)) for n in pair), words)
        )
        reasons |= {words} if failed else set()
    return Figure(
        anchor="edge",
        title=f"Where {pair[0]} and {pair[1]} stop to work together",
        subtitle=f"Failed for: {', '.join(sorted(reasons))}.",
        pictures=(plot.render("Where the edge is", "A mark per launch over two knobs."),),
        columns=("trial", *pair, "end"),
        rows=tuple(rows),
        legend=(("other", "ran"), ("failed", "failed")),
    )


def _edge_pair(view: StudyView) -> tuple[str, str] | None:
    failed = [t for t in view.searched if t.record.state == "infeasible" and t.changed
              and not t.record.stopped_early]  # fmt: skip
    ran = [t for t in view.searched if t.record.state == "measured"]
    telling = {}
    for name in knob_names(view):
        bad, good = set(_values(failed, name)), set(_values(ran, name))
        if bad and good - bad and 2 <= len(bad | good) <= _MOST_CELLS:
            telling[name] = len(good - bad) / len(bad | good)
    names = sorted(telling, key=lambda name: (-telling[name], name))
    return (names[0], names[1]) if len(names) >= 2 and failed and ran else None


def _ordered(view: StudyView, name: str) -> list[Json]:
    return sorted(_values(view.searched, name).values(), key=value_order)


def _place(values: Sequence[Json], value: Json) -> int | None:
    keys = [canonical_json(known) for known in values]
    key = canonical_json(value)
    return keys.index(key) if key in keys else None
