from __future__ import annotations

import math

import pytest

from autotune.measure.telemetry import Sample, _queue_percentile

BOUNDS = (0.3, 0.5, math.inf)


def sample(at_s: float, counts: tuple[float, ...], total: float | None = None) -> Sample:
    values = {} if total is None else {"queue_sum": total, "queue_count": counts[-1]}
    buckets = dict(zip(BOUNDS, counts, strict=True))
    return Sample(at_s=at_s, values=values, queue_buckets=buckets)


def test_a_wide_first_bucket_does_not_make_a_queue_out_of_none() -> None:
    before, after = sample(0, (5, 5, 5), 0.001), sample(9, (105, 105, 105), 0.0026)
    found = _queue_percentile([before, after], 95)
    assert found == pytest.approx(0.0016 / 100 / 0.05)


def test_a_real_queue_is_read_from_the_buckets() -> None:
    before, after = sample(0, (0, 0, 0), 0.0), sample(9, (50, 100, 100), 35.0)
    assert _queue_percentile([before, after], 95) == pytest.approx(0.3 + 0.2 * 0.9)


def test_without_a_mean_the_buckets_have_the_word() -> None:
    before, after = sample(0, (0, 0, 0)), sample(9, (100, 100, 100))
    assert _queue_percentile([before, after], 95) == pytest.approx(0.285)
    assert _queue_percentile([before, before], 95) is None
