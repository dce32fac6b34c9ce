"""Candidates that were refused without a launch: judged, told to the proposer, kept in a file.

`refused.jsonl` of the study directory holds one line for each: `params`, `reason`, `message`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autotune.canonical import Json
from autotune.engines.engine import Diagnosis
from autotune.search.proposer import Known
from autotune.space.candidate import Candidate

FILE = "refused.jsonl"

Judge = Callable[[Candidate], Diagnosis | None]
"""Why a candidate need not be launched, or None."""


class Refusals:
    """All refusals of one study, also those of its earlier runs."""

    def __init__(self, folder: Path, judges: Sequence[Judge]) -> None:
        self._path = folder / FILE
        self._judges = tuple(judges)
        self._refused = {Candidate(line["params"]): line for line in read_refused(folder)}

    def __len__(self) -> int:
        return len(self._refused)

    def judge(self, candidate: Candidate) -> Diagnosis | None:
        """Why this candidate is refused (it is then on file), or None. Raises OSError."""
        for judge in self._judges:
            diagnosis = judge(candidate)
            if diagnosis is not None:
                self._keep(candidate, diagnosis)
                return diagnosis
        return None

    def known(self) -> list[Known]:
        """The refused candidates of earlier runs, for the proposer."""
        return [
            Known(candidate=c, values=None, violations={}, diagnosis=_diagnosis(line))
            for c, line in self._refused.items()
        ]

    def _keep(self, candidate: Candidate, diagnosis: Diagnosis) -> None:
        if candidate in self._refused:
            return
        line = {
            "params": dict(candidate.params),
            "reason": diagnosis.reason,
            "message": diagnosis.message,
            "evidence": list(diagnosis.evidence),
        }
        self._refused[candidate] = line
        text = json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n"
        with self._path.open("ab+") as stream:
            if stream.tell() > 0:
                stream.seek(-1, os.SEEK_END)
                # A line torn by a kill must not take this one with it
                text = text if stream.read(1) == b"\n" else f"\n{text}"
            stream.write(text.encode())


def _diagnosis(line: Mapping[str, Json]) -> Diagnosis:
    return Diagnosis(
        fault="candidate",
        phase="startup",
        reason=str(line["reason"]),
        remedy=None,
        message=str(line.get("message", "")),
    )


def read_refused(folder: Path) -> list[dict[str, Json]]:
    """The refusals on file; a line torn by a kill is left out."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for row in text.split("\n"):
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("params"), dict) and "reason" in line:
            found.append(line)
    return found
