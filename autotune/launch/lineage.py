"""Who descends from a launch: processes by pid and start time, from Linux' /proc.

A pid alone proves nothing, since pids are reused; a pid with its start time does, until the next
boot. A process belongs to a launch by any of: being the launched one or its descendant, being in
its session, having been seen as a descendant earlier, or carrying the launch's marker in its
environment.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import Clock

STUDY_MARKER = "AUTOTUNE_STUDY"
TRIAL_MARKER = "AUTOTUNE_TRIAL"
LAUNCH_MARKER = "AUTOTUNE_LAUNCH"

_PROC = Path("/proc")
_DEAD_STATES = "ZXx"


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """One process for certain: `start_ticks` are clock ticks since boot."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """What /proc says about one process; a zombie is not `running` but still holds its pid."""

    id: ProcessId
    parent: int
    session: int
    running: bool


Table = Mapping[int, ProcessRow]


def boot_id() -> str:
    """The kernel's name for this boot; start times compare only within one."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_row(pid: int) -> ProcessRow | None:
    """One process, or None if there is none of that pid. Source: proc(5), /proc/pid/stat."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessRow(
        id=ProcessId(pid, int(fields[19])),
        parent=int(fields[1]),
        session=int(fields[3]),
        running=fields[0].decode() not in _DEAD_STATES,
    )


def read_table() -> dict[int, ProcessRow]:
    """All processes that we can see."""
    rows = (read_row(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {row.id.pid: row for row in rows if row is not None}


def is_running(process: ProcessId) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    row = read_row(process.pid)
    return row is not None and row.running and row.id == process


def environment_value(pid: int, name: str) -> str | None:
    """A variable of the environment a process was started with; None if absent or unreadable."""
    try:
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = name.encode() + b"="
    for entry in block.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def command_line(pid: int) -> str:
    """The words of a process, for messages; empty if unreadable."""
    try:
        return (
            (_PROC / str(pid) / "cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


def marked(table: Table, name: str, value: str, *, since_ticks: int = 0) -> set[ProcessId]:
    """Processes started with `name=value` in their environment, at or after `since_ticks`."""
    return {
        row.id
        for row in table.values()
        if row.id.start_ticks >= since_ticks and environment_value(row.id.pid, name) == value
    }


def descendants(table: Table, ancestors: Collection[ProcessId]) -> set[ProcessId]:
    """The ancestors that are still in the table and everything below them."""
    children: dict[int, list[ProcessRow]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row)
    found: set[ProcessId] = set()
    queue = [process for process in ancestors if _holds(table, process)]
    while queue:
        process = queue.pop()
        if process not in found:
            found.add(process)
            queue += [row.id for row in children.get(process.pid, ())]
    return found


def session_members(table: Table, leader: ProcessId) -> set[ProcessId]:
    """Processes of the leader's session; none if the leader's pid is no longer held by it."""
    if not _holds(table, leader):
        return set()
    return {row.id for row in table.values() if row.session == leader.pid}


def own_line() -> set[int]:
    """Pids of this process and all its ancestors: never to be ended."""
    pids = {os.getpid()}
    row = read_row(os.getpid())
    while row is not None and row.parent > 0 and row.parent not in pids:
        pids.add(row.parent)
        row = read_row(row.parent)
    return pids


def running_only(table: Table, processes: Collection[ProcessId]) -> set[ProcessId]:
    """Those that run, without ourselves and our ancestors."""
    ours = own_line()
    return {p for p in processes if _holds(table, p) and table[p.pid].running and p.pid not in ours}


def send(process: ProcessId, number: signal.Signals) -> None:
    """Signal exactly this process; nothing happens if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        handle = None  # gone, or a kernel without pidfd: the check below tells
    try:
        if not is_running(process):
            return
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return  # what may not be signalled shows up as a survivor
    finally:
        if handle is not None:
            os.close(handle)


def end_all(
    find: Callable[[], set[ProcessId]],
    *,
    clock: Clock,
    polite_s: float,
    orphan_s: float,
    kill_s: float,
    leader: ProcessId | None = None,
    hurry: Callable[[], bool] = lambda: False,
) -> set[ProcessId]:
    """End all processes that `find` names, asked anew at every look; returns those that survived.

    SIGTERM was sent or is of no use when `polite_s` is 0. Waits up to `polite_s` for all to go, but
    only `orphan_s` once the leader is gone, then kills for up to `kill_s`. Never longer than both.
    """
    step_s = 0.02
    deadline = clock.monotonic() + polite_s
    leader_gone = False
    while (left := find()) and clock.monotonic() < deadline and not hurry():
        if leader is not None and not leader_gone and leader not in left:
            leader_gone = True
            deadline = min(deadline, clock.monotonic() + orphan_s)
        clock.sleep(step_s)
    deadline = clock.monotonic() + kill_s
    while left and clock.monotonic() < deadline:
        for process in left:
            send(process, signal.SIGKILL)
        clock.sleep(step_s)
        left = find()
    return left


def _holds(table: Table, process: ProcessId) -> bool:
    row = table.get(process.pid)
    return row is not None and row.id == process
