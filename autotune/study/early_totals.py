"""What the early ends of a study add up to, for its summary, its report and scripts."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.canonical import Json
from autotune.study.record import TrialRecord


def saving(records: Sequence[TrialRecord]) -> dict[str, Json]:
    """`count` of the trials whose replay was ended early, and about how many seconds of launches
    (`saved_s`) were not run because of it.
    """
    ended = [record.stopped_early for record in records if record.stopped_early]
    return {
        "count": len(ended),
        "saved_s": round(sum(float(end["saved_s"]) for end in ended), 3),
    }
