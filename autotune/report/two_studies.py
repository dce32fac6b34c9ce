"""Two studies side by side: an engine upgrade, other hardware. Only where the traffic is the same.

The two were run apart from each other, so nothing here is paired: two numbers are called different
only where their 95 % intervals do not overlap, and never as certain as a verdict of one study.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import autotune
from autotune.canonical import Json, canonical_json
from autotune.measure.comparison import Change
from autotune.report.comparison import Interval, Side, sides
from autotune.report.first_screen import hardware, identity, model_name
from autotune.report.html import jinja_environment
from autotune.report.numbers import bounds, quantity
from autotune.report.verdict_words import tell
from autotune.report.view import StudyView
from autotune.report.words import change_cell, metric_label, setting
from autotune.spec.vocabulary import METRICS, MetricName

Word = Literal["differs", "not distinguishable", "one measurement each", "not measured in both"]
COMPARED = (
    "ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "tpot_p99", "e2e_p95", "capacity",
    "goodput", "output_throughput", "request_throughput", "success_rate", "kv_usage_max",
    "gpu_memory_peak", "power_mean", "energy_per_1k_tokens", "startup_seconds",
)  # fmt: skip
_SAME_TRAFFIC = ("digest", "held_out_digest", "window_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One metric of one side (today's or recommended settings) in both studies, base units."""

    metric: MetricName
    first: float | None
    second: float | None
    first_interval: Interval | None
    second_interval: Interval | None
    word: Word

    @property
    def ratio(self) -> float | None:
        """Second over first; None where a side is missing or zero."""
        if not self.first or self.second is None:
            return None
        return self.second / self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoStudies:
    """What can be said of two studies. `obstacles`: why their numbers must not be compared;
    `differences`: what differs and is legitimate to compare, as (what, first, second).
    """

    first: StudyView
    second: StudyView
    obstacles: tuple[str, ...]
    differences: tuple[tuple[str, str, str], ...]
    today: tuple[PairRow, ...]
    chosen: tuple[PairRow, ...]


def compare_studies(first: StudyView, second: StudyView) -> TwoStudies:
    """Put two studies side by side; rows are empty where the traffic is not the same."""
    obstacles = _obstacles(first, second)
    rows: list[tuple[PairRow, ...]] = [(), ()]
    if not obstacles:
        ones, twos = sides(first), sides(second)
        rows = [_rows(ones[i], twos[i]) for i in (0, 1)]
    return TwoStudies(
        first=first,
        second=second,
        obstacles=obstacles,
        differences=_differences(first, second),
        today=rows[0],
        chosen=rows[1],
    )


def render(two: TwoStudies, *, built_at: datetime | None = None) -> str:
    """The page as text: one self-contained file."""
    moment = (built_at or datetime.now(UTC)).astimezone().isoformat(timespec="minutes")
    return (
        jinja_environment()
        .get_template("two_studies.html.j2")
        .render(
            title=f"{two.first.name} and {two.second.name}",
            studies=[_portrait(view) for view in (two.first, two.second)],
            headline=headline(two),
            obstacles=two.obstacles,
            differences=two.differences,
            parts=[
                (title, [_cells(two.first, row) for row in rows])
                for title, rows in (
                    ("Today's settings of each", two.today),
                    ("The settings that each study shows beside them", two.chosen),
                )
            ],
            built_at=moment,
            tool=f"autotune {autotune.__version__}",
        )
    )


def to_json(two: TwoStudies) -> dict[str, Json]:
    """The same as data; `baseline` and `candidate` are lists of rows in base units."""
    return {
        "studies": [str(view.directory) for view in (two.first, two.second)],
        "comparable": not two.obstacles,
        "obstacles": list(two.obstacles),
        "differences": [list(row) for row in two.differences],
        "baseline": [_row_json(row) for row in two.today],
        "candidate": [_row_json(row) for row in two.chosen],
    }


def headline(two: TwoStudies) -> str:
    """The answer in one sentence."""
    if two.obstacles:
        return "These two studies cannot be compared"
    metric = two.first.metric
    row = next((r for r in (*two.chosen, *two.today) if r.metric == metric), None)
    if metric is None or row is None or row.ratio is None:
        return "The goal was not measured in both studies"
    label = metric_label(metric)
    scale = two.first.units.scale(metric)
    values = f"{quantity(row.first, scale)} and {quantity(row.second, scale)}"
    if row.word == "differs":
        return f"{label} differs: {values} ({change_cell(metric, Change(ratio=row.ratio))})"
    return f"{label}: {values}, {row.word}"


def _obstacles(first: StudyView, second: StudyView) -> tuple[str, ...]:
    found = []
    one, two = first.workload, second.workload
    for key in _SAME_TRAFFIC:
        if canonical_json(one.get(key)) != canonical_json(two.get(key)):
            words = {"digest": "the replayed traffic", "window_s": "the replayed window",
                     "held_out_digest": "the traffic of the confirmation"}[key]  # fmt: skip
            found.append(
                f"{words} is not the same: {setting(one.get(key))} and {setting(two.get(key))}"
            )
    if first.objectives[:1] != second.objectives[:1]:
        found.append(
            f"the goals differ: {', '.join(first.objectives)} and {', '.join(second.objectives)}"
        )
    if first.simulated != second.simulated:
        found.append("one study was simulated, the other measured")
    return tuple(found)


def _differences(first: StudyView, second: StudyView) -> tuple[tuple[str, str, str], ...]:
    facts = [
        ("model", model_name(first), model_name(second)),
        ("engine", first.engine_words, second.engine_words),
        ("hardware", hardware(first), hardware(second)),
        ("limits", ", ".join(first.constraints), ", ".join(second.constraints)),
        ("run", _day(first), _day(second)),
    ]
    names = dict.fromkeys([*first.baseline_params, *second.baseline_params])
    facts += [
        (f"today's {name}", setting(first.baseline_params.get(name)),
         setting(second.baseline_params.get(name)))
        for name in names
    ]  # fmt: skip
    ones = first.rival.record.params if first.rival else {}
    twos = second.rival.record.params if second.rival else {}
    facts += [
        (f"shown {name}", setting(ones.get(name)), setting(twos.get(name)))
        for name in dict.fromkeys([*ones, *twos])
    ]
    return tuple((what, a or "not known", b or "not known") for what, a, b in facts if a != b)


def _day(view: StudyView) -> str:
    return str(view.fingerprint.get("started_at") or "")[:10]


def _rows(one: Side | None, two: Side | None) -> tuple[PairRow, ...]:
    if one is None or two is None:
        return ()
    rows = []
    for name in COMPARED:
        metric = METRICS[name]
        first, second = one.value(metric), two.value(metric)
        if first is None and second is None:
            continue
        intervals = one.interval(metric), two.interval(metric)
        rows.append(
            PairRow(
                metric=metric, first=first, second=second,
                first_interval=intervals[0], second_interval=intervals[1],
                word=_word(first, second, *intervals),
            )
        )  # fmt: skip
    return tuple(rows)


def _word(
    first: float | None, second: float | None, one: Interval | None, two: Interval | None
) -> Word:
    if first is None or second is None:
        return "not measured in both"
    if one is None or two is None:
        return "one measurement each"
    (low, high), (other_low, other_high) = one, two
    above = low is not None and other_high is not None and low > other_high
    below = high is not None and other_low is not None and high < other_low
    return "differs" if above or below else "not distinguishable"


def _portrait(view: StudyView) -> dict[str, object]:
    story = tell(view)
    return {
        "name": view.name,
        "identity": identity(view),
        "headline": story.headline,
        "sentences": story.sentences,
        "simulated": view.simulated,
        "directory": view.directory.name,
    }


def _cells(view: StudyView, row: PairRow) -> dict[str, str]:
    scale = view.units.scale(row.metric)
    change = None if row.ratio is None or row.ratio <= 0 else Change(ratio=row.ratio)
    return {
        "label": metric_label(row.metric),
        "definition": row.metric.title,
        "first": quantity(row.first, scale, row.first_interval),
        "second": quantity(row.second, scale, row.second_interval),
        "first_range": bounds(row.first, scale, row.first_interval),
        "second_range": bounds(row.second, scale, row.second_interval),
        "change": change_cell(row.metric, change),
        "word": row.word,
    }


def _row_json(row: PairRow) -> dict[str, Json]:
    return {
        "metric": row.metric.name,
        "unit": row.metric.unit,
        "first": row.first,
        "second": row.second,
        "first_interval": None if row.first_interval is None else list(row.first_interval),
        "second_interval": None if row.second_interval is None else list(row.second_interval),
        "ratio": row.ratio,
        "word": row.word,
    }
