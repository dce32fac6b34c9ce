"""The noise floor of a study: what its repeated measurements of the baseline differ by.

Results of the search that differ by less are ties, and ties go to the one with fewer changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.canonical import Json
from autotune.measure.noise import Noise, noise_of_launches
from autotune.spec.expressions import Objective
from autotune.study.record import TrialRecord

FILE = "noise.json"
"""What is learned, by objective text; a fact of the study for the report and other tools."""


def noise_floor(records: Sequence[TrialRecord], objective: str) -> Noise | None:
    """How much the objective of this text varies between measurements of the baseline, on the
    traffic of the search; None while it was measured once.
    """
    launches = [
        [record.values[objective], *(values[objective] for values in record.repeats)]
        for record in records
        if record.role in ("baseline", "check")
        and record.state == "measured"
        and objective in record.values
    ]
    return noise_of_launches(launches)


def noise_json(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> dict[str, Json]:
    """The content of `FILE`; {} while nothing is known."""
    found = {o.text: noise_floor(records, o.text) for o in objectives}
    return {text: noise.to_json() for text, noise in found.items() if noise is not None}


def tie_of(records: Sequence[TrialRecord], objective: str) -> float:
    """Up to which difference of the logs two results of the search are a tie; 0 if not known."""
    found = noise_floor(records, objective)
    return 0.0 if found is None else found.tie
