"""A server in virtual time, as the loop sees servers: it has an address, a log, and an end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.canonical import Json
from autotune.clock import Clock
from autotune.engines.engine import ExitInfo
from autotune.engines.plan import LaunchPlan
from autotune.launch.launcher import Ticket
from autotune.launch.readiness import NotReady
from autotune.simulator.memory import OutOfMemory
from autotune.simulator.traffic import Traffic
from autotune.simulator.virtual import VirtualRun
from autotune.study.virtual_machine import VirtualEngine, VirtualLaunch, VirtualMachine

URL = "http://virtual"


class VirtualServer:
    """A `RunningServer` without a process. Times pass on `clock`."""

    url = URL

    def __init__(self, plan: LaunchPlan, ticket: Ticket, launch: VirtualLaunch) -> None:
        self.plan = plan
        self.log_path: Path | None = ticket.directory / f"{plan.member}.log"
        self.log_path.write_text(launch.log, encoding="utf-8")
        self._launch = launch
        self._ended: ExitInfo | None = None
        self._out: OutOfMemory | None = None

    def wait_ready(self, timeout_s: float, clock: Clock) -> float:
        """Let the start pass. Returns its seconds; raises NotReady as a real start does."""
        launch = self._launch
        clock.sleep(min(launch.seconds, timeout_s))
        if launch.seconds > timeout_s:
            message = f"the server was not ready after {timeout_s:.0f} s"
            raise NotReady(kind="timeout", message=message, seconds=timeout_s)
        if launch.engine is None:
            self._ended = ExitInfo(code=launch.exit_code)
            message = f"the server ended by itself (exit code {launch.exit_code})"
            raise NotReady(
                kind="exited", message=message, seconds=launch.seconds, exit_info=self._ended
            )
        return launch.seconds

    def replay(self, traffic: Traffic) -> VirtualRun:
        """What a client sees of this traffic. The server must be ready."""
        assert self._launch.engine is not None
        run = self._launch.engine.replay(traffic)
        self._out = run.died
        return run

    @property
    def engine(self) -> VirtualEngine | None:
        """The engine, if it came up."""
        return self._launch.engine

    def die(self) -> None:
        """The engine ran out of memory in the last replay: its log says so, the process is gone."""
        assert self._launch.engine is not None
        assert self._out is not None
        assert self.log_path is not None
        with self.log_path.open("a", encoding="utf-8") as log:
            log.write(self._launch.engine.last_words(self._out))
        # vLLM's API server shuts down in order after its engine died
        self._ended = ExitInfo(code=0)

    def identity(self) -> Mapping[str, Json]:
        return {"kind": "virtual"}

    def poll(self) -> ExitInfo | None:
        return self._ended

    def stop(self, *, forced: bool = False) -> ExitInfo:
        del forced
        self._ended = self._ended or ExitInfo(code=0, by_us=True)
        return self._ended


class VirtualLauncher:
    """A `Launcher` on a virtual machine."""

    kind = "process"

    def __init__(self, machine: VirtualMachine) -> None:
        self._machine = machine

    def check(self, plan: LaunchPlan) -> None:
        """Nothing can be missing."""

    def start(self, plan: LaunchPlan, ticket: Ticket) -> VirtualServer:
        return VirtualServer(plan, ticket, self._machine.launch(plan, ticket.trial))

    def sweep(self, study_id: str, directory: Path) -> list[str]:
        """Nothing can be left."""
        del study_id, directory
        return []
