"""The study directory: the only truth about a study. Layout, atomic writes, the lock.

A trial works in `trials/NNNN.partial/` and is renamed to `trials/NNNN/` in one step when its
`outcome.json` is complete, so a folder without the suffix is always whole.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.canonical import Json
from autotune.errors import InputError
from autotune.study.record import TrialRecord

PARTIAL = ".partial"


def write_json(path: Path, value: Json) -> None:
    """Write strict JSON (no NaN) atomically, readable by people."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a text file atomically: a reader sees the old or the new content, never a part."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with scratch.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    scratch.chmod(mode)
    scratch.replace(path)


def read_json(path: Path) -> Json:
    """The JSON value of a file. Raises InputError for a missing or broken file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(message=f"file not found: {path}") from None
    except (ValueError, OSError) as error:
        raise InputError(message=f"cannot read {path}", seen=str(error)) from error


@dataclass(frozen=True, slots=True)
class StudyDirectory:
    """A study's folder. Cheap to make; nothing is cached."""

    path: Path

    @classmethod
    def existing(cls, path: Path) -> StudyDirectory:
        """The directory of an earlier run. Raises InputError if it is none."""
        if not (path / "study.json").is_file():
            raise InputError(
                message=f"no study in {path}",
                seen="there is no study.json" if path.is_dir() else "the folder does not exist",
                hint="`autotune tune` prints the directory of each study",
            )
        return cls(path)

    @property
    def trials(self) -> Path:
        return self.path / "trials"

    @property
    def best(self) -> Path:
        return self.path / "best"

    def trial(self, number: int) -> Path:
        """The folder of a finished trial."""
        return self.trials / f"{number:04d}"

    def open_trial(self, number: int) -> Path:
        """Make the working folder of a new trial."""
        folder = self.trials / f"{number:04d}{PARTIAL}"
        folder.mkdir(parents=True)
        return folder

    def close_trial(self, folder: Path, record: TrialRecord) -> Path:
        """Write the outcome and give the folder its final name. Returns the final folder."""
        write_json(folder / "outcome.json", record.to_json())
        final = self.trial(record.number)
        folder.rename(final)
        return final

    def partial_trials(self) -> list[tuple[int, Path]]:
        """(number, folder) of trials that were never closed: their run was killed."""
        found = [
            (int(folder.name.removesuffix(PARTIAL)), folder)
            for folder in self.trials.glob(f"*{PARTIAL}")
            if folder.name.removesuffix(PARTIAL).isdigit()
        ]
        return sorted(found)

    def adopt(self, number: int, folder: Path) -> TrialRecord | None:
        """Give a partial trial its final name if only that was missing: its record, else None."""
        outcome = folder / "outcome.json"
        if not outcome.is_file():
            return None
        record = TrialRecord.from_json(read_json(outcome))
        folder.rename(self.trial(number))
        return record

    def records(self) -> list[TrialRecord]:
        """All finished trials in order."""
        folders = sorted(f for f in self.trials.glob("*") if f.name.isdigit())
        return [TrialRecord.from_json(read_json(folder / "outcome.json")) for folder in folders]

    def next_number(self) -> int:
        """The number of the next trial: numbering goes on over kills and resumes."""
        names = (folder.name.removesuffix(PARTIAL) for folder in self.trials.glob("[0-9]*"))
        return max((int(name) for name in names if name.isdigit()), default=-1) + 1

    def append_event(self, line: Mapping[str, Json]) -> None:
        """Add one line to `events.jsonl`. A line torn by a kill is ended first, so that it does not
        take the new one with it.
        """
        text = json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n"
        with (self.path / "events.jsonl").open("ab+") as stream:
            if stream.tell() > 0:
                stream.seek(-1, os.SEEK_END)
                if stream.read(1) != b"\n":
                    stream.write(b"\n")
            stream.write(text.encode())

    def events(self) -> list[Mapping[str, Json]]:
        """The event log; a line torn by a kill is left out."""
        path = self.path / "events.jsonl"
        if not path.exists():
            return []
        found: list[Mapping[str, Json]] = []
        # Not splitlines: an engine's message may hold U+2028, which ends no line of JSON
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                found.append(event)
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study: one run at a time. Raises InputError naming the other run."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                stream.seek(0)
                holder = stream.read().strip() or "unknown"
                raise InputError(
                    message=f"the study {self.path.name} is being run already",
                    seen=f"its lock is held by pid {holder}",
                    hint=f"`autotune show {self.path}` shows how far it is",
                ) from None
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            yield
