"""Signals become wishes: Ctrl-C and SIGTERM ask for a clean end, a closed terminal for nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from autotune.cli.console import say
from autotune.clock import StopSignal

FIRST = "Stopping: the current trial is closed as interrupted, its server is being removed."
AGAIN = "Press Ctrl-C again to skip the polite waits (the server is still removed)."
SECOND = "Stopping at once; what was started is still removed."


@contextmanager
def stop_on_signals(stop: StopSignal) -> Iterator[None]:
    """While inside, SIGINT and SIGTERM set `stop`; SIGHUP is ignored, the study goes on."""

    def ask(number: int, frame: FrameType | None) -> None:
        stop.request()
        # A handler may run in the middle of another write, which must not be entered again
        with suppress(RuntimeError):
            say("\n" + (SECOND if stop.forced else f"{FIRST}\n{AGAIN}"))

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, ask),
        signal.SIGTERM: signal.signal(signal.SIGTERM, ask),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
