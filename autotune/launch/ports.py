"""Ports on the loopback: which are free, who listens. Source: proc(5), /proc/net/tcp and tcp6."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

from autotune.clock import Clock
from autotune.errors import EnvironmentFault
from autotune.launch.lineage import command_line

LOOPBACK = "127.0.0.1"

FREE_WAIT_S = 2.0
"""How long a fixed port may stay taken after its last server ended."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"
# Below the range from which Linux takes source ports of outgoing connections (32768 and up): an
# engine may bind half a minute after the port was chosen.
_CHOICES = range(18000, 32000)
_TRIES = 50


def listening_inodes(port: int) -> set[int]:
    """Socket inodes that listen on this port, on any address; empty if nobody does."""
    found = set()
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(int(fields[9]))
    return found


def inodes_of(pids: Iterable[int]) -> set[int]:
    """Socket inodes that these processes hold open; unreadable ones are left out."""
    found = set()
    for pid in pids:
        try:
            handles = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for handle in handles:
            with contextlib.suppress(OSError):  # closed meanwhile
                target = str(handle.readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    if listening_inodes(port):
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old TIME_WAIT is no holder
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_port() -> int:
    """A loopback port on which nothing listens. Raises EnvironmentFault if none is found."""
    for port in random.sample(_CHOICES, k=200):
        if is_free(port):
            return port
    raise EnvironmentFault(
        message="no free port on 127.0.0.1",
        seen=f"200 random ports from {_CHOICES.start} to {_CHOICES.stop - 1} are all taken",
    )


class PortLeases:
    """Ports of servers that start or run: an engine binds long after its port was chosen,
    and two that start at the same time must not be given the same one. Any thread may use it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: set[int] = set()

    def take(self) -> int:
        """A free port that nobody else has. Raises EnvironmentFault if none is found."""
        with self._lock:
            for _ in range(_TRIES):
                port = choose_port()
                if port not in self._taken:
                    self._taken.add(port)
                    return port
        raise EnvironmentFault(
            message="no free port on 127.0.0.1", seen=f"{len(self._taken)} are held by this study"
        )

    def give_back(self, port: int) -> None:
        """The server of this port has ended, or was never started."""
        with self._lock:
            self._taken.discard(port)


def holder_of(port: int) -> str:
    """Who listens on a port, in words, as far as we may see it."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        connections = []
    pids = {
        c.pid
        for c in connections
        if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and c.pid
    }
    if not pids:
        return "a process of another user"
    return ", ".join(f"pid {pid} ({command_line(pid)[:120] or 'unknown'})" for pid in sorted(pids))


def wait_free(port: int, *, timeout_s: float, clock: Clock) -> bool:
    """Wait until nobody listens on the port any more; False if that did not happen in time."""
    deadline = clock.monotonic() + timeout_s
    while not is_free(port):
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(0.05)
    return True
