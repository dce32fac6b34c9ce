"""The report page: one self-contained file, built from the study's directory at any moment."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

import autotune
from autotune.canonical import Json
from autotune.report import (
    caveats,
    certainty,
    charts,
    fact_tables,
    first_screen,
    knob_effects,
    memory,
    small_charts,
    tables,
)
from autotune.report.course import starts
from autotune.report.engines_compared import engines_compared
from autotune.report.latency import Curve, latency_curves
from autotune.report.predictions import predictions
from autotune.report.reading import clean
from autotune.report.report_json import report_json
from autotune.report.several_words import front_rows
from autotune.report.show import show_json
from autotune.report.traffic_charts import traffic
from autotune.report.verdict_words import tell
from autotune.report.view import StudyView, load_view
from autotune.report.words import metric_label, objective_words, sentence_start
from autotune.spec.vocabulary import METRICS
from autotune.study.directory import write_json, write_text

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT = "report.html"
NUMBERS = "report.json"
_PRICE_FIRST = 5


def build_report(directory: Path) -> Path:
    """Write `report.html` and `report.json` of a study directory in any state, each atomically.
    Returns the page's path.

    Raises OSError if the directory cannot be written.
    """
    path = directory / REPORT
    view = load_view(directory)
    write_text(path, render(view))
    write_json(directory / NUMBERS, report_json(view))
    return path


def render(view: StudyView, *, built_at: datetime | None = None) -> str:
    """The whole page as text; `built_at` defaults to now."""
    environment = jinja_environment()
    template = environment.get_template("report.html.j2")
    moment = (built_at or datetime.now(UTC)).astimezone().isoformat(timespec="minutes")
    return template.render(
        **context(view), built_at=moment, tool=f"autotune {autotune.__version__}"
    )


def context(view: StudyView) -> dict[str, object]:
    """Everything that the template shows, as text, figures and rows; nothing is computed there."""
    story = tell(view)
    all_doubts = caveats.doubts(view)
    knob_figure, knob_rows = small_charts.knob_panels(view)
    return {
        "view": view,
        "title": certainty.page_title(view),
        "identity": first_screen.identity(view),
        "banners": caveats.banners(view),
        "story": story,
        "command": first_screen.command(view),
        "script": first_screen.script(view),
        "settings": first_screen.settings(view),
        "recommended": view.recommended is not None,
        "confirmed": view.verdict is not None and view.verdict.confirmed,
        "rival": view.rival,
        "goal_label": charts.goal_label(view),
        "goals": first_screen.goal_rows(view),
        "strip_head": first_screen.strip_head(view),
        "sure": first_screen.sure(view),
        "price": first_screen.price(view),
        "doubts": all_doubts,
        "doubts_first": all_doubts[:_PRICE_FIRST],
        "compare": tables.compare_rows(view),
        "pairs": charts.confirmation(view),
        "history": charts.history(view),
        "trade": charts.trade_off(view),
        "latency": small_charts.distributions(view, *_curves(view)),
        "knobs": knob_figure,
        "importance": knob_effects.importance(view),
        "edge": knob_effects.edge(view),
        "one_changes": knob_effects.change_rows(view),
        "predictions": predictions(view),
        "traffic": traffic(view),
        "starts": starts(view),
        "engines": engines_compared(view),
        "front": front_rows(view) if len(view.objectives) > 1 else [],
        "knob_rows": knob_rows,
        "knob_why": [(knob.name, knob.why, knob.lossy) for knob in view.knobs],
        "failures": tables.failure_rows(view),
        "failure_sentence": charts.failure_sentence(view),
        "trials": tables.trial_rows(view),
        "workload": fact_tables.workload_rows(view),
        "environment": fact_tables.environment_rows(view),
        "memory": memory.memory_rows(view),
        "refused": memory.refused_rows(view),
        "objectives": [objective_words(text) for text in view.objectives],
        "definitions": _definitions(view),
        "data": _embedded(show_json(view)),
    }


def _curves(view: StudyView) -> tuple[dict[str, Curve], dict[str, Curve]]:
    families = ("ttft", "tpot")
    sides = (view.baseline, view.rival)
    today, new = (latency_curves(trial.folder, families) if trial else {} for trial in sides)
    return today, new


def _definitions(view: StudyView) -> list[tuple[str, str, str]]:
    """(anchor, name, definition) of every metric that any trial measured, one per family."""
    keys = {key for trial in view.trials if trial.measurement for key in trial.measurement.metrics}
    families: dict[str, tuple[str, str, str]] = {}
    for metric in METRICS.values():
        if metric.key in keys or metric == view.metric:
            label = metric_label(metric).removesuffix(f" {metric.statistic}")
            title = metric.title.removesuffix(f", {metric.statistic}")
            families.setdefault(metric.family, (metric.family, label, sentence_start(title)))
    return list(families.values())


def _embedded(value: Json) -> Markup:
    """Strict JSON that no text in it can break out of a script element with."""
    text = json.dumps(_cleaned(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - no character with a meaning in HTML is left


def _cleaned(value: Json) -> Json:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return value


def _shown(value: object) -> object:
    """What an expression of the template prints: text without control characters."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def jinja_environment() -> Environment:
    """Templates of the pages: everything escaped, control characters left out."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("autotune.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["capfirst"] = sentence_start
    environment.filters["groupby_kept"] = _grouped
    environment.filters["ticked"] = _ticked
    return environment


def _ticked(text: str) -> Markup:
    """The text escaped, with what stands between backticks as code."""
    parts = clean(text).split("`")
    if len(parts) % 2 == 0:
        return escape(clean(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else escape(part)
        for index, part in enumerate(parts)
    )


def _grouped(rows: list[object], attribute: str) -> list[list[object]]:
    """Neighbours with an equal attribute, in the order given (jinja's own groupby sorts)."""
    return [list(group) for _, group in groupby(rows, key=lambda row: getattr(row, attribute))]
