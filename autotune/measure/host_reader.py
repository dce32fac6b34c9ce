"""The machine itself as `telemetry` sees it: how busy its cores were, how much memory is left."""

from __future__ import annotations

import psutil

from autotune.measure.telemetry import HostReading


class HostReader:
    """Reads the whole machine's counters; each reading is of the time since the one before."""

    def __init__(self) -> None:
        self._before: tuple[float, float, float] | None = None

    def read(self) -> HostReading | None:
        """The time since the last reading; None the first time, or if no time has passed."""
        times = psutil.cpu_times()
        steal = getattr(times, "steal", None)
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Guest time is inside user time already.
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        total = sum(times) - guests
        before, self._before = self._before, (total, idle, steal or 0.0)
        if before is None or total <= before[0]:
            return None
        span = total - before[0]
        return HostReading(
            cpu_share=min(1.0, max(0.0, 1 - (idle - before[1]) / span)),
            steal_share=None if steal is None else max(0.0, (steal - before[2]) / span),
            memory_available_bytes=float(psutil.virtual_memory().available),
        )
