"""`beliefs.json`: what a search with a model believes of its trials, all launches considered.

The finalists are chosen by it, so it is kept: after a resume the choice must be the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.errors import InputError
from autotune.study.directory import StudyDirectory, read_json, write_json

FILE = "beliefs.json"


def read_beliefs(directory: StudyDirectory) -> dict[int, float]:
    """Trial -> the objective's value in base units; {} where nothing was kept, or nothing that can
    be read: then what was measured decides.
    """
    try:
        kept = read_json(directory.path / FILE)["values"]
        return {int(trial): float(value) for trial, value in kept.items()}
    except (InputError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def write_beliefs(directory: StudyDirectory, objective: str, values: Mapping[int, float]) -> None:
    """Keep them. `objective`: its text."""
    kept = {str(trial): value for trial, value in sorted(values.items())}
    write_json(directory.path / FILE, {"objective": objective, "values": kept})
