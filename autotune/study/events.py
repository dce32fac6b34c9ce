"""Everything observable about a running study, as one stream.

The same events go to `events.jsonl`, to the live view and to the plain lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from autotune.canonical import Json

Kind = Literal[
    "study_started",  # name, directory, budget_*, slots, gpus, used_s, searched, metrics, ...
    "trial_started",  # trial, role, params, changed (name -> [baseline, value])
    "phase",  # trial, phase, expected_s, detail: launching warming replaying scoring stopping ...
    "progress",  # trial, fields of ReplayProgress: never written to events.jsonl
    "trial_finished",  # fields of TrialRecord, plus metrics (the headline ones)
    "best",  # trial, role, values, metric
    "note",  # message: something a user should read
    "study_finished",  # verdict, best, trials, reason
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. `at` is ISO 8601 UTC, `elapsed_s` since the run was started."""

    kind: Kind
    at: str
    elapsed_s: float
    data: Mapping[str, Json] = field(default_factory=dict)


class Observer(Protocol):
    """Anything that wants to hear events. Must return quickly and never raise."""

    def __call__(self, event: Event) -> None: ...


def wall_seconds(moments: Iterable[tuple[str, float]]) -> float:
    """How long the runs of a study took together, each to its last event. `moments`: kind and
    `elapsed_s` of its events in order.
    """
    runs: list[float] = []
    for kind, elapsed_s in moments:
        # What a run says before it starts is said in its first second
        if kind == "study_started" or not runs:
            runs.append(0.0)
        runs[-1] = max(runs[-1], elapsed_s)
    return sum(runs)
