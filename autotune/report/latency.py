"""Latency curves of a trial, from its request records: small enough to be drawn for every trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.measure.metrics import latency_samples
from autotune.measure.quantiles import percentile
from autotune.replay.records import RequestRecord

FEWEST_REQUESTS = 20
_POINTS = 64
MARKS = (50.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A cumulative curve: `points` are (seconds, share of all requests answered within them).

    A failed request is never answered, so its curve ends below 1. `marks`: (percentile, seconds) of
    those that exist. `requests` is the number of measured requests the metric is defined for.
    """

    points: tuple[tuple[float, float], ...]
    marks: tuple[tuple[float, float], ...]
    requests: int


def latency_curves(folder: Path, families: Sequence[str]) -> dict[str, Curve]:
    """Curves of a trial's request records by latency family; fewer than 20 requests give none."""
    path = folder / "requests.parquet"
    if not path.is_file():
        return {}
    records = _records(path)
    measured = [record for record in records if record.measured]
    curves = {family: _curve(latency_samples(measured, family)) for family in families}
    return {family: curve for family, curve in curves.items() if curve is not None}


def _records(path: Path) -> list[RequestRecord]:
    """The records of a file, or none if it is no Parquet file or lacks columns."""
    import pyarrow as pa

    from autotune.replay.parquet import read_records

    try:
        return list(read_records(path))
    except (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError):
        return []


def _curve(samples: list[float]) -> Curve | None:
    if len(samples) < FEWEST_REQUESTS:
        return None
    ordered = sorted(samples)
    answered = [value for value in ordered if math.isfinite(value)]
    if not answered:
        return None
    total = len(ordered)
    step = max(1, math.ceil(len(answered) / _POINTS))
    ranks = sorted({*range(0, len(answered), step), len(answered) - 1})
    points = tuple((max(answered[rank], 0.0), (rank + 1) / total) for rank in ranks)
    marks = [(share, percentile(ordered, share)) for share in MARKS]
    return Curve(
        points=points,
        marks=tuple((share, value) for share, value in marks if math.isfinite(value)),
        requests=total,
    )
