"""A study as its viewers hear it: a stream of events, made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.study.events import Event

LONG = {f"some-quite-long-knob-{i}": [None, 1024 * i] for i in range(1, 9)}


class Story:
    """Events in order, with a clock that goes on by what each step takes."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.number = -1
        self.events: list[Event] = []

    def add(self, kind: Any, after_s: float = 0.0, **data: Any) -> Event:
        self.at_s += after_s
        event = Event(
            kind=kind,
            at=f"2026-01-01T00:00:{int(self.at_s) % 60:02d}.000+00:00",
            elapsed_s=self.at_s,
            data=data,
        )
        self.events.append(event)
        return event

    def started(self, **changes: Any) -> Event:
        data = {
            "name": "lab", "directory": "runs/lab", "budget_s": 3600.0, "budget_trials": 40,
            "used_s": 0.0, "searched": 0, "confirmations": 6, "metrics": ["ttft_p95", "tpot_p95"],
            "objective": ["minimize ttft_p95"], "constraints": ["tpot_p95 <= 1.1 x baseline"],
            "simulated": True, "resumed": False, "durations": [], "reference": {},
        }  # fmt: skip
        return self.add("study_started", **(data | changes))

    def trial(self, role: str = "search", changed: Any = None) -> Event:
        self.number += 1
        return self.add(
            "trial_started", trial=self.number, role=role, params={}, changed=changed or {}
        )

    def phase(self, name: str, after_s: float = 0.0, **more: Any) -> Event:
        return self.add(
            "phase", after_s, trial=self.number, phase=name, **({"expected_s": None} | more)
        )

    def progress(self, share: float = 0.5, **changes: Any) -> Event:
        data = {
            "elapsed_s": 120.0 * share, "total_s": 120.0, "sent": int(1000 * share),
            "finished": int(900 * share), "failed": 3, "planned": 1000, "ttft_p95_s": 0.412,
            "tpot_p95_s": 0.0312,
        }  # fmt: skip
        return self.add("progress", trial=self.number, **(data | changes))

    def finished(self, state: str = "measured", after_s: float = 14.003, **changes: Any) -> Event:
        measured = state == "measured"
        data = {
            "number": self.number, "role": "search", "state": state, "feasible": measured,
            "validity": "valid" if measured else None, "seconds": {"total": after_s},
            "metrics": {"ttft_p95_s": 0.4123, "tpot_p95_s": 0.0312} if measured else {},
            "constraints": {}, "reason": None, "message": None,
        }  # fmt: skip
        return self.add("trial_finished", after_s, **(data | changes))

    def best(self, **changes: Any) -> Event:
        data = {"trial": self.number, "role": "search", "values": [0.4123], "metric": "ttft_p95"}
        return self.add("best", **(data | changes))

    def night(self) -> list[Event]:
        """A bit of everything."""
        self.started()
        self.add("note", message="the recording is too short for a second window; " * 4)
        self.trial("baseline")
        self.phase("launching", detail="loading_weights")
        self.phase("warming", 20.0)
        self.phase("replaying", 3.0, expected_s=121.5)
        self.progress(0.1)
        self.finished(role="baseline")
        self.best(role="baseline", trial=0)
        for state, changes in (
            ("measured", {}),
            ("measured", {"feasible": False, "constraints": {"tpot_p95 <= 1.1 x baseline": 0.2}}),
            ("measured", {"validity": "suspect"}),
            ("infeasible", {"reason": "kv_cache_too_small"}),
            ("unmeasurable", {"reason": "measurement_invalid"}),
            ("interrupted", {"reason": "interrupted"}),
        ):
            self.trial(changed=LONG)
            self.phase("launching", expected_s=19.4)
            self.phase("replaying", 20.0, expected_s=121.5)
            self.progress(0.97, ttft_p95_s=None, tpot_p95_s=None)
            self.finished(state, **changes)
            self.best()
        self.add("study_finished", verdict="better", best=1, trials=7, reason="in 3 of 3 pairs",
                 stopped_because="all 40 trials are done")  # fmt: skip
        return self.events


@pytest.fixture
def story() -> Story:
    return Story()
