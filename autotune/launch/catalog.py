"""Launchers by name."""

from __future__ import annotations

from autotune.clock import Clock, StopSignal
from autotune.errors import InputError
from autotune.launch.launcher import Launcher

KINDS = ("process", "docker", "attach")


def launcher_for(kind: str, *, clock: Clock, stop: StopSignal) -> Launcher:
    """The launcher of that kind. Raises InputError for an unknown one. Imports are lazy."""
    if kind == "process":
        from autotune.launch.process import ProcessLauncher

        return ProcessLauncher(clock=clock, stop=stop)
    if kind == "docker":
        from autotune.launch.docker import DockerLauncher

        return DockerLauncher(clock=clock, stop=stop)
    if kind == "attach":
        from autotune.launch.attach import AttachLauncher

        return AttachLauncher(clock=clock, stop=stop)
    raise InputError(message=f"unknown launcher: {kind}", hint=f"one of {', '.join(KINDS)}")
