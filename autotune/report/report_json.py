"""`report.json`: every number of the page, as data."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import autotune
from autotune.canonical import Json
from autotune.report import fact_tables, first_screen, tables
from autotune.report.comparison import LimitState, Row, compare, sides
from autotune.report.reading import finite
from autotune.report.show import show_json, trial_json
from autotune.report.small_charts import knob_names, knob_values
from autotune.report.verdict_words import tell
from autotune.report.view import StudyView


def report_json(view: StudyView, *, built_at: datetime | None = None) -> dict[str, Json]:
    """What `show --json` tells, and what the page shows beside it.

    `compare`: every metric, baseline beside the candidate, base units, 95 % intervals.
    `measurements`: each trial's `measurement.json`. Numbers are finite; a missing one is null.
    """
    story = tell(view)
    today, new = sides(view)
    value: dict[str, Json] = {
        **show_json(view),
        "tool": f"autotune {autotune.__version__}",
        "built_at": (built_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        "sentences": list(story.sentences),
        "command": first_screen.command(view),
        "compared_trials": {
            "baseline": [] if today is None else [trial.number for trial in today.trials],
            "candidate": [] if new is None else [trial.number for trial in new.trials],
        },
        "compare": [_row(row) for row in compare(view)],
        "knobs": [
            {
                "name": name,
                "why": next((knob.why for knob in view.knobs if knob.name == name), ""),
                "values": knob_values(view, name),
            }
            for name in knob_names(view)
        ],
        "failures": [_without_html(asdict(row)) for row in tables.failure_rows(view)],
        "workload": dict(view.workload),
        "environment": [list(pair) for pair in fact_tables.environment_rows(view)],
        "measurements": {
            str(trial.number): (trial_json(view, trial.number) or {}).get("measurement")
            for trial in view.trials
        },
    }
    return dict(finite(value))


def _row(row: Row) -> dict[str, Json]:
    return {
        "metric": row.metric.name,
        "key": row.metric.key,
        "unit": row.metric.unit,
        "group": row.group,
        "baseline": row.today,
        "candidate": row.new,
        "baseline_interval": _pair(row.today_interval),
        "candidate_interval": _pair(row.new_interval),
        "change": None if row.change is None else row.change.to_json(),
        "limits": [_limit(state) for state in row.limits],
    }


def _limit(state: LimitState) -> dict[str, Json]:
    return {
        "text": state.text,
        "limit": state.limit,
        "value": state.value,
        "interval": _pair(state.interval),
        "met": state.met,
        "standing": state.standing,
    }


def _pair(interval: tuple[float | None, float | None] | None) -> list[Json] | None:
    return None if interval is None else list(interval)


def _without_html(row: dict[str, Json]) -> dict[str, Json]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}
