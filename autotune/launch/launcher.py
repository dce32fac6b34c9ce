"""How a plan is started and ended: the protocol of all launchers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.canonical import Json
from autotune.engines.engine import ExitInfo
from autotune.engines.plan import LaunchPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Who asks for a launch: `study_id` and `trial` mark every process or container as ours;
    `directory` is where `server.log` and the launcher's own pid record go. `attempt` counts
    launches of the same trial from 0.
    """

    study_id: str
    trial: int
    directory: Path
    attempt: int = 0


class RunningServer(Protocol):
    """A server that was started (or attached to). Not necessarily ready."""

    url: str
    plan: LaunchPlan
    log_path: Path | None

    def identity(self) -> Mapping[str, Json]:
        """What proves that it is ours: pid and start time, or container id."""
        ...

    def poll(self) -> ExitInfo | None:
        """None while it runs, else how it ended. Never blocks on a log stream."""
        ...

    def stop(self, *, forced: bool = False) -> ExitInfo:
        """End it and all its descendants; bounded; idempotent. `forced` skips the polite wait.
        Raises EnvironmentFault naming what is left if something survives.
        """
        ...


class Launcher(Protocol):
    """Starts plans."""

    kind: str

    def check(self, plan: LaunchPlan) -> None:
        """Preflight without starting anything: program or image present, secrets set, model folder
        there, port free. Raises InputError or EnvironmentFault.
        """
        ...

    def start(self, plan: LaunchPlan, ticket: Ticket) -> RunningServer:
        """Start; returns at once. Raises EnvironmentFault when nothing could be started."""
        ...

    def sweep(self, study_id: str, directory: Path) -> list[str]:
        """Remove what earlier, broken runs of this study left: processes by the pid + start-time
        records found below `directory`, containers by label. Returns one line per removal.
        """
        ...
