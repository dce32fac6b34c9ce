"""Records of a replay as `requests.parquet`: one row per planned request, columns as the fields."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.replay.records import RequestRecord

_UNITS = "times in seconds after the start of the replay (monotonic), lengths in tokens"


def write_records(path: Path, records: Sequence[RequestRecord]) -> None:
    """Write `records` to `path`, whole or not at all. Missing values are nulls, never NaN."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema()
    columns = {name: [getattr(record, name) for record in records] for name in schema.names}
    table = pa.table(columns, schema=schema)
    partial = path.with_name(path.name + ".part")
    parquet.write_table(table, partial, compression="zstd")
    partial.replace(path)


def read_records(path: Path) -> tuple[RequestRecord, ...]:
    """The records in a file that `write_records` wrote; columns it does not know are ignored and
    missing ones take their defaults.
    """
    from pyarrow import parquet

    known = {field.name for field in dataclasses.fields(RequestRecord)}
    # One file, not a data set: a trial's folder name must not become a partition column.
    with parquet.ParquetFile(path) as file:
        wanted = [name for name in file.schema_arrow.names if name in known]
        rows = file.read(columns=wanted).to_pylist()
    return tuple(RequestRecord(**row) for row in rows)


def _schema() -> Any:
    """The pyarrow schema that follows from the record's own field types."""
    import pyarrow as pa

    kinds = {
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        str: pa.string(),
    }
    hints = typing.get_type_hints(RequestRecord)
    fields = []
    for field in dataclasses.fields(RequestRecord):
        hint = hints[field.name]
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        nullable = type(None) in parts or typing.get_origin(hint) is typing.Union
        core = next((part for part in parts if part in kinds), str)  # a Literal is text
        fields.append(pa.field(field.name, kinds[core], nullable=nullable))
    return pa.schema(fields, metadata={"units": _UNITS})
