"""`server.pid.json`: the proof, kept in the trial's folder, that processes are ours to end."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from autotune.launch.launcher import Ticket
from autotune.launch.lineage import ProcessId, boot_id

SUFFIX = ".pid.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PidRecord:
    """The launched process (`root`), and all descendants seen so far (`family`, with the root).

    `create_time` is for readers (seconds since the epoch); identity rests on pid, start ticks and
    boot. `program` is the first word of the command.
    """

    path: Path
    study: str
    trial: int
    program: str
    launch: str
    boot: str
    create_time: float
    root: ProcessId
    family: frozenset[ProcessId]

    def write(self) -> None:
        """Replace the file atomically. Raises OSError."""
        text = json.dumps(
            {
                "pid": self.root.pid,
                "create_time": self.create_time,
                "start_ticks": self.root.start_ticks,
                "boot_id": self.boot,
                "study": self.study,
                "trial": self.trial,
                "launch": self.launch,
                "argv0": self.program,
                "family": sorted([p.pid, p.start_ticks] for p in self.family),
            }
        )
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.write_text(text + "\n")
        draft.replace(self.path)

    def remove(self) -> None:
        """Delete the file, once all that it names is gone."""
        self.path.unlink(missing_ok=True)


def record_path(ticket: Ticket, member: str) -> Path:
    """Where the record of a deployment's member lies."""
    return ticket.directory / f"{member}{SUFFIX}"


def read_record(path: Path) -> PidRecord | None:
    """The record in a file; None if it is torn or not a record."""
    try:
        data = json.loads(path.read_text())
        return PidRecord(
            path=path,
            study=str(data["study"]),
            trial=int(data["trial"]),
            program=str(data["argv0"]),
            launch=str(data["launch"]),
            boot=str(data["boot_id"]),
            create_time=float(data["create_time"]),
            root=ProcessId(int(data["pid"]), int(data["start_ticks"])),
            family=frozenset(ProcessId(int(pid), int(ticks)) for pid, ticks in data["family"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def records_of(study_id: str, directory: Path) -> list[PidRecord]:
    """Records of this study and this boot below a directory; older boots' processes are gone."""
    found = (read_record(path) for path in sorted(directory.rglob(f"*{SUFFIX}")))
    return [r for r in found if r is not None and r.study == study_id and r.boot == boot_id()]


def known(records: Collection[PidRecord]) -> set[ProcessId]:
    """All processes that the records name."""
    return {process for record in records for process in {record.root, *record.family}}
