"""The front of a study with several objectives, for the terminal."""

from __future__ import annotations

from rich.table import Table

from autotune.report.figure import changes_text
from autotune.report.several_words import front_rows
from autotune.report.view import StudyView, metric_of
from autotune.report.words import metric_label


def front_table(view: StudyView) -> Table | None:
    """Today's settings and those that nothing beats in every objective; None with one objective."""
    rows = front_rows(view)
    if not rows:
        return None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim")
    table.add_column("#", justify="right")
    for text in view.objectives:
        metric = metric_of(text)
        table.add_column(metric_label(metric) if metric else text)
    table.add_column("")
    table.add_column("changed from today")
    for row in rows:
        cells = [
            f"{value}\n{change}" if change else value
            for value, change in zip(row.values, row.changes, strict=True)
        ]
        settings = "" if row.today else changes_text(row.trial)
        table.add_row(str(row.trial.number), *cells, row.word, settings)
    return table
