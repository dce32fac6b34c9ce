"""How long the phases of a trial take, and what earlier ones took."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from autotune.clock import Clock
from autotune.study.directory import StudyDirectory
from autotune.study.stream import EventStream


@dataclass(slots=True)
class PhaseClock:
    """Times the phases of a trial and announces them with what earlier trials took."""

    events: EventStream
    clock: Clock
    history: dict[str, list[float]]
    trial: int
    deadline_s: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _detail: str | None = None
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the trial began."""
        return self.clock.monotonic() - self._began

    @property
    def left_s(self) -> float | None:
        """Seconds until the trial's deadline, if it has one."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - self.elapsed_s)

    def tell(self, detail: str) -> None:
        """What is special about the phases from now on, in words; told with each of them."""
        self._detail = detail

    @contextmanager
    def phase(self, name: str, expected_s: float | None = None) -> Iterator[None]:
        """Run one phase; its duration counts even when it fails."""
        earlier = self.history.setdefault(name, [])
        if expected_s is None and earlier:
            expected_s = statistics.median(earlier)
        told = {} if self._detail is None else {"detail": self._detail}
        self.events.emit("phase", trial=self.trial, phase=name, expected_s=expected_s, **told)
        started = self.clock.monotonic()
        completed = False
        try:
            yield
            completed = True
        finally:
            self.seconds[name] = round(
                self.seconds.get(name, 0.0) + self.clock.monotonic() - started, 3
            )
            if completed:
                earlier.append(self.seconds[name])


def phase_history(directory: StudyDirectory) -> dict[str, list[float]]:
    """What the phases of earlier trials took: a resumed run expects the same."""
    history: dict[str, list[float]] = {}
    for record in directory.records():
        if record.state == "measured":
            for name, seconds in record.seconds.items():
                history.setdefault(name, []).append(seconds)
    return history
