"""All trials of a study as one table, for spreadsheets and notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from autotune.canonical import Json, canonical_json
from autotune.report.view import StudyView, TrialView

if TYPE_CHECKING:
    import pandas as pd

TableFormat = Literal["csv", "parquet"]


def trial_table(view: StudyView) -> pd.DataFrame:
    """One row per finished trial, one column per fact.

    Columns: `number`, `role`, `state`, `feasible`, ...; `param.NAME` per knob (JSON text where the
    values are of several types); `metric.KEY` with `metric.KEY.low` and `.high` (95 % interval) in
    base units; `violation.LIMIT` (<= 0 holds); `predicted.KEY`; `seconds.PHASE`. What was not
    measured is empty.
    """
    import pandas as pd

    rows = [_row(trial) for trial in view.trials]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pd.DataFrame(rows, columns=columns)
    for name in columns:
        # A knob may hold numbers, text and lists; a column of a file holds one type
        if name.startswith("param.") and table[name].map(type).nunique() > 1:
            table[name] = [None if _empty(v) else canonical_json(v) for v in table[name]]
    return table


def write_table(view: StudyView, path: Path, form: TableFormat) -> None:
    """Write the table. Raises OSError if the file cannot be written."""
    table = trial_table(view)
    if form == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)


def csv_text(view: StudyView) -> str:
    """The table as CSV text."""
    return str(trial_table(view).to_csv(index=False))


def _row(trial: TrialView) -> dict[str, Json]:
    record = trial.record
    row: dict[str, Json] = {
        "number": record.number,
        "role": record.role,
        "pair": record.pair,
        "state": record.state,
        "feasible": record.feasible,
        "reason": record.reason,
        "fault": record.fault,
        "validity": record.validity,
        "simulated": record.simulated,
        "started_at": record.started_at,
        "why": record.why,
    }
    row |= {f"param.{name}": _cell(value) for name, value in record.params.items()}
    row |= {f"value.{name}": value for name, value in record.values.items()}
    row |= {f"violation.{name}": value for name, value in record.constraints.items()}
    # What was seen of a replay that was ended early is no measurement of it
    if trial.measurement is not None and not record.stopped_early:
        for key, value in trial.measurement.metrics.items():
            low, high = trial.measurement.intervals.get(key, (None, None))
            row |= {f"metric.{key}": value}
            if low is not None or high is not None:
                row |= {f"metric.{key}.low": low, f"metric.{key}.high": high}
    row |= {f"predicted.{key}": value for key, value in record.predicted.items()}
    row |= {f"seconds.{name}": value for name, value in record.seconds.items()}
    return row


def _cell(value: Json) -> Json:
    return canonical_json(value) if isinstance(value, list | dict) else value


def _empty(value: object) -> bool:
    return value is None or (isinstance(value, float) and value != value)
