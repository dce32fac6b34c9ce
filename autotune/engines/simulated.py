"""The simulated engine: vLLM's flags and metrics, served by our own simulator, without a GPU."""

from __future__ import annotations

import sys

from autotune.engines.engine import LaunchTarget
from autotune.engines.vllm import VllmEngine
from autotune.errors import InputError


class SimulatedEngine(VllmEngine):
    """A simulated vLLM server; nothing that it yields may be shown without saying so."""

    kind: str = "simulated"
    simulated: bool = True

    def default_command(self, target: LaunchTarget) -> tuple[str, ...]:
        """Our own interpreter; a container has none that is known, so its command must be given."""
        if target.launcher == "docker":
            raise InputError(
                message="the simulated engine in a container needs a command",
                hint="set `engine.command`, for example [python, -m, autotune.simulator, serve]",
            )
        return (sys.executable, "-m", "autotune.simulator", "serve")
