"""The live view: finished trials go to the scrollback, a few lines below say what happens now."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from autotune.canonical import Json
from autotune.cli.progress import Current, Row, StudyProgress
from autotune.report.numbers import duration
from autotune.study.events import Event

REFRESH_PER_SECOND = 2
WORD_STYLES = {"ok": "cyan", "baseline": "bold", "breaks": "yellow", "suspect": "yellow",
               "failed": "red", "void": "red", "stopped": "dim", "early": "dim"}  # fmt: skip
BAR_WIDTH = 28
MOST_TRIALS = 4
"""So many lines the trials that run at the same time have."""


class LiveView:
    """An observer that keeps at most eight live lines. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = StudyProgress()
        self._lock = threading.Lock()
        self._received = time.monotonic()
        self._elapsed_s = 0.0
        self._header_shown = False
        self._live = Live(
            get_renderable=self._frame,
            console=console,
            refresh_per_second=REFRESH_PER_SECOND,
            vertical_overflow="crop",
            transient=True,
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            seen = len(self._state.rows)
            self._state.handle(event)
            self._elapsed_s, self._received = event.elapsed_s, time.monotonic()
            new = self._state.rows[seen:]
        if event.kind == "note":
            for line in textwrap.wrap(
                f"note: {self._state.notes[-1]}", self._console.width, subsequent_indent="      "
            ):
                self._print(Text(line, style="yellow"))
        for row in new:
            self._show_row(row)

    def _show_row(self, row: Row) -> None:
        heads = self._state.labels()
        widths = [max(len(head), 9) for head in heads]
        if not self._header_shown:
            self._header_shown = True
            titles = "  ".join(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True))
            self._print(Text(f"  #  {'end':<9}{'time':>10}  {titles}  changed from baseline",
                             style="dim"))  # fmt: skip
        line = Text(f"{row.number:>3}  ")
        line.append(f"{row.word:<9}", style=WORD_STYLES.get(row.word, ""))
        line.append(f"{duration(row.seconds):>10}  ")
        line.append("  ".join(f"{n:>{w}}" for n, w in zip(row.numbers, widths, strict=True)))
        line.append(f"  {row.changed}")
        if row.note:
            line.append(f"  {row.note}", style="dim")
        self._print(line)

    def _print(self, text: Text) -> None:
        self._console.print(
            cut(text, self._console.width), no_wrap=True, overflow="crop", soft_wrap=False
        )

    def _frame(self) -> Group:
        with self._lock:
            return Group(*[cut(line, self._console.width - 1) for line in self._lines()])

    def _lines(self) -> list[Text]:
        state = self._state
        elapsed = self._elapsed_s + time.monotonic() - self._received
        lines = [Text("-" * (self._console.width - 1), style="dim")]
        lines += self._trial_lines(elapsed)
        if state.best:
            lines.append(Text(f"best   {state.best}"))
        lines.append(Text(f"time   {state.time_line(elapsed)}"))
        lines.append(Text(f"fails  {state.fails_line()}"))
        return lines

    def _trial_lines(self, elapsed: float) -> list[Text]:
        running = list(self._state.running.values())
        if not running:
            return [Text("between trials" if not self._state.finished else "finished")]
        if len(running) == 1:
            return self._one_trial(running[0], elapsed)
        shown = running if len(running) <= MOST_TRIALS else running[: MOST_TRIALS - 1]
        lines = [self._head(current, elapsed) for current in shown]
        for line, current in zip(lines, shown, strict=True):
            line.append(f"   {current.changed}")
        more = len(running) - len(shown)
        return [*lines, *([Text(f"   and {more} more")] if more else [])]

    def _head(self, current: Current, elapsed: float) -> Text:
        spent = max(0.0, elapsed - current.phase_began_s)
        expected = f" of about {duration(current.expected_s)}" if current.expected_s else ""
        head = Text(f"#{current.number} {current.phase:<10}", style="bold")
        head.append(f" {duration(spent)}{expected}")
        if current.phase == "replaying" and current.progress:
            head.append(f"  {_bar(current.progress)}")
        if current.detail:
            head.append(f"   {current.detail}")
        elif current.phase == "launching" and not expected and not current.progress:
            head.append("   first launch, no estimate")
        return head

    def _one_trial(self, current: Current, elapsed: float) -> list[Text]:
        changed = current.changed
        room = self._console.width - 6
        if len(changed) > room:
            changed = ".." + changed[-(room - 2) :]
        lines = [self._head(current, elapsed), Text(f"   {changed}")]
        if current.phase == "replaying" and current.progress:
            lines.append(Text(f"   {_so_far(current.progress)}"))
        return lines


def _bar(progress: Mapping[str, Json]) -> str:
    share = min(1.0, progress["elapsed_s"] / max(progress["total_s"], 1e-9))
    full = round(share * BAR_WIDTH)
    return f"[{'#' * full}{'.' * (BAR_WIDTH - full)}] {share * 100:.0f} %"


def _so_far(progress: Mapping[str, Json]) -> str:
    shown = []
    for name, key in (("ttft", "ttft_p95_s"), ("tpot", "tpot_p95_s")):
        value = progress.get(key)
        if value is not None:
            shown.append(f"{name} p95 {value * 1000:.0f} ms")
    numbers = "  ".join(shown) or "no numbers yet"
    in_flight = progress["sent"] - progress["finished"]
    return (
        f"so far  {numbers}  in flight {in_flight}  failed {progress['failed']}"
        f"  of {progress['planned']}"
    )


def cut(line: Text, width: int) -> Text:
    """The line, at most `width` columns wide; `..` stands for what is missing."""
    if line.cell_len > width:
        line.truncate(max(0, width - 2), overflow="crop")
        line.append("..")
    return line
