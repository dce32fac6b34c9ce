"""The table of trials that leaves the tool as a file."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autotune.report.trial_table import csv_text, trial_table, write_table
from autotune.report.view import load_view


@pytest.fixture
def finished(study: Any) -> Any:
    return study(requests=60).search(8).verdict("better")


def test_every_trial_is_a_row_with_its_numbers(finished: Any) -> None:
    view = load_view(finished.path)
    table = trial_table(view)
    assert list(table["number"]) == [trial.number for trial in view.trials]
    measured = view.measured[0]
    row = table[table["number"] == measured.number].iloc[0]
    assert measured.measurement is not None
    assert row["metric.ttft_p95_s"] == measured.measurement.metrics["ttft_p95_s"]
    assert row["metric.ttft_p95_s.low"] <= row["metric.ttft_p95_s"]
    assert row["seconds.total"] == measured.record.seconds["total"]
    failed = table[table["state"] != "measured"]
    assert len(failed)
    assert failed["metric.ttft_p95_s"].isna().all()


def test_files_read_back_the_same(finished: Any, tmp_path: Path) -> None:
    view = load_view(finished.path)
    write_table(view, tmp_path / "t.csv", "csv")
    write_table(view, tmp_path / "t.parquet", "parquet")
    as_csv, as_parquet = (
        pd.read_csv(tmp_path / "t.csv"),
        pd.read_parquet(tmp_path / "t.parquet"),
    )
    assert list(as_csv.columns) == list(as_parquet.columns) == list(trial_table(view).columns)
    assert list(as_csv["metric.ttft_p95_s"].dropna()) == list(
        as_parquet["metric.ttft_p95_s"].dropna()
    )
    assert pd.read_csv(StringIO(csv_text(view))).equals(as_csv)


def test_values_of_several_types_share_a_column_as_json(finished: Any) -> None:
    view = load_view(finished.path)
    table = trial_table(view)
    knobs = [name for name in table.columns if name.startswith("param.")]
    assert knobs
    for name in knobs:
        assert table[name].dropna().map(type).nunique() <= 1


def test_a_study_without_trials_gives_an_empty_table(study: Any) -> None:
    assert len(trial_table(load_view(study().path))) == 0
