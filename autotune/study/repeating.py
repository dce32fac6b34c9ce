"""Measuring a launch again in the same server, to learn what differs without a cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autotune.measure.outcome import Measured, Score
from autotune.replay.records import ReplayResult
from autotune.study.directory import write_json
from autotune.study.measuring import MeasureSession
from autotune.study.phases import PhaseClock

WORTH = 20.0
"""A repeat is made if so many of its length are left: it must not eat the search."""


def repeated(
    first: Measured,
    count: int,
    *,
    folder: Path,
    phases: PhaseClock,
    session: Callable[[Path, int], MeasureSession],
    replay: Callable[[MeasureSession], ReplayResult | None],
) -> Measured | None:
    """The measurement with up to `count` further ones of the same server, or None if it died.

    `session` makes the session of a repeat, with a cache state of its own, in its own folder
    `repeat-N`; `replay` replays it (None: the server died).
    """
    took_s = phases.seconds.get("warming", 0.0) + phases.seconds.get("replaying", 0.0)
    found: list[Score] = []
    for number in range(1, count + 1):
        if phases.left_s is not None and phases.left_s < WORTH * took_s:
            break
        place = folder / f"repeat-{number}"
        place.mkdir()
        one = session(place, number)
        with phases.phase("repeating", expected_s=took_s):
            one.warm_up()
            result = replay(one)
            if result is None:
                return None
            outcome = one.judge(result, baseline=first.measurement.reference)
        if outcome.measurement is not None:
            write_json(place / "measurement.json", outcome.measurement.to_json())
        if isinstance(outcome, Measured):
            found.append(outcome.score)
    return replace(first, repeats=tuple(found))
