"""Time as a seam: whatever waits or reads a clock gets one of these."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol

from autotune.errors import Interrupted


class Clock(Protocol):
    """A source of time. All durations are seconds as float."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        ...

    def utcnow(self) -> datetime:
        """The wall-clock time, aware, UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; zero or less returns at once."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def utcnow(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class VirtualClock:
    """A clock that only moves when somebody sleeps. For tests and simulated studies."""

    def __init__(self, start: datetime | None = None) -> None:
        self._elapsed = 0.0
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self._elapsed

    def utcnow(self) -> datetime:
        return datetime.fromtimestamp(self._start.timestamp() + self._elapsed, UTC)

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._elapsed += seconds


class StopSignal:
    """The user's wish to stop, as a value that every bounded wait looks at.

    Signal handlers only set it (`request`); nothing is interrupted in the middle of a clean-up.
    The first request asks for a clean end, the second (`forced`) for the shortest one that still
    removes what was started.
    """

    def __init__(self) -> None:
        self._count = 0
        self._event = threading.Event()

    def request(self) -> None:
        """Record one more wish to stop. Safe to call from a signal handler."""
        self._count += 1
        self._event.set()

    @property
    def requested(self) -> bool:
        return self._count > 0

    @property
    def forced(self) -> bool:
        return self._count > 1

    def check(self) -> None:
        """Raise `Interrupted` if a stop was requested."""
        if self.requested:
            raise Interrupted(message="stopped by the user")
