"""The study as plain lines: one per event, a heartbeat in silence, no escape codes.

Used where there is no terminal, and always for `tune.log` in the study directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from autotune.cli.progress import StudyProgress, one_line
from autotune.report.numbers import duration
from autotune.study.events import Event

HEARTBEATS_S = (30.0, 60.0, 300.0)
"""Silence before the first, the second and every further heartbeat."""


class PlainLines:
    """Writes lines through `write` (which gets a line without its end)."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._state = StudyProgress()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._spoke = threading.Event()
        self._elapsed_s = 0.0
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        with self._lock:
            state = self._state
            ending = state.running.get(event.data.get("number", -1))
            changed = ending.changed if ending else ""
            state.handle(event)
            self._elapsed_s = event.elapsed_s
            line = self._line(event, changed)
        if line:
            self._say(event.at, line)

    def close(self) -> None:
        """Stop the heartbeat."""
        self._done.set()
        self._spoke.set()
        self._thread.join()

    def _say(self, at: str, line: str) -> None:
        stamp = datetime.fromisoformat(at).astimezone().isoformat(timespec="seconds")
        self._write(f"{stamp} {one_line(line)}")
        self._spoke.set()

    def _line(self, event: Event, changed: str) -> str | None:
        data, state = event.data, self._state
        match event.kind:
            case "study_started":
                return f"start     {data['name']} dir={data['directory']}"
            case "trial_started":
                return f"launch    trial={data['trial']} {state.running[data['trial']].changed}"
            case "phase" if data["phase"] in ("warming", "replaying"):
                expected = data.get("expected_s")
                about = f" about {duration(expected)}" if expected else ""
                detail = f" {data['detail']}" if data.get("detail") else ""
                return f"{data['phase']:<9} trial={data['trial']}{about}{detail}"
            case "trial_finished":
                row = state.rows[-1]
                numbers = " ".join(
                    f"{metric.name}={text.replace(' ', '')}"
                    for metric, text in zip(state.metrics, row.numbers, strict=True)
                    if text != "-"
                )
                text = f"{row.word:<9} trial={row.number} {duration(row.seconds)}"
                return " ".join(x for x in (text, numbers, changed, row.note) if x)
            case "note":
                return f"note      {state.notes[-1]}"
            case "study_finished":
                return f"verdict   {data['verdict']} {data['reason']}"
            case _:
                return None

    def _beat(self) -> None:
        silences = 0
        while not self._done.is_set():
            wait = HEARTBEATS_S[min(silences, len(HEARTBEATS_S) - 1)]
            if self._spoke.wait(wait):
                self._spoke.clear()
                silences = 0
                continue
            silences += 1
            with self._lock:
                trials = self._state.running.values()
                what = ", ".join(f"trial={one.number} {one.phase}" for one in trials)
                what = what or "between trials"
                best = f", best {self._state.best}" if self._state.best else ""
            self._write(
                f"{datetime.now().astimezone().isoformat(timespec='seconds')} "
                f"alive     {what}{best}"
            )
