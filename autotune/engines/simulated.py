"""The simulated engines: vLLM's or SGLang's flags and metrics, served by our own simulator."""

from __future__ import annotations

import sys

from autotune.engines.engine import LaunchTarget
from autotune.engines.known_engine import KnownEngine
from autotune.errors import InputError


class SimulatedEngine(KnownEngine):
    """A simulated vLLM server; nothing that it yields may be shown without saying so."""

    kind: str = "simulated"
    simulated: bool = True
    subcommand: str = "serve"

    def default_command(self, target: LaunchTarget) -> tuple[str, ...]:
        """Our own interpreter; a container has none that is known, so its command must be given."""
        if target.launcher == "docker":
            raise InputError(
                message="the simulated engine in a container needs a command",
                hint="set `engine.command`, for example "
                f"[python, -m, autotune.simulator, {self.subcommand}]",
            )
        return (sys.executable, "-m", "autotune.simulator", self.subcommand)


class SimulatedSglang(SimulatedEngine):
    """The same simulator with SGLang's flags, metrics and log."""

    kind: str = "simulated-sglang"
    subcommand: str = "serve-sglang"
