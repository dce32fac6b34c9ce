"""How a replay of one server goes on, in the terminal: a bar that moves, or a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.cli.console import say, talk
from autotune.replay.records import ReplayProgress
from autotune.report.numbers import duration

PLAIN_EVERY_S = 10.0
BAR = 24

OnProgress = Callable[[ReplayProgress], None]


@contextmanager
def listening(how: str) -> Iterator[OnProgress | None]:
    """A listener for a replay's progress; `how` as in `--progress`. It must be used inside."""
    if how == "auto":
        how = "live" if sys.stderr.isatty() else "plain"
    if how == "none":
        yield None
    elif how == "live":
        with _live() as listener:
            yield listener
    else:
        yield _plain()


def _plain() -> OnProgress:
    told = time.monotonic()

    def tell(progress: ReplayProgress) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= PLAIN_EVERY_S:
            told = now
            say(words(progress))

    return tell


@contextmanager
def _live() -> Iterator[OnProgress]:
    from rich.live import Live
    from rich.text import Text

    console = talk()
    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def tell(progress: ReplayProgress) -> None:
            share = min(1.0, progress.elapsed_s / max(progress.total_s, 1e-9))
            full = round(share * BAR)
            line = f"[{'#' * full}{'.' * (BAR - full)}] {words(progress)}"
            live.update(Text(line[: console.width - 1], no_wrap=True))

        yield tell


def words(progress: ReplayProgress) -> str:
    """One line: time, requests, and the latest figures (recent requests only, never scored)."""
    parts = [
        f"{duration(progress.elapsed_s)} of {duration(progress.total_s)}",
        f"{progress.finished:,} of {progress.planned:,} answered",
        f"{progress.sent - progress.finished} in flight",
    ]
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    for name, value in (("ttft", progress.ttft_p95_s), ("tpot", progress.tpot_p95_s)):
        if value is not None:
            shown = f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
            parts.append(f"{name} p95 {shown}")
    return ", ".join(parts)
