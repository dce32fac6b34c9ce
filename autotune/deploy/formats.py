"""The formats of `autotune script --format`, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.deploy import argv, bash, compose, docker_run, kubernetes, systemd
from autotune.deploy.facts import DeployFacts
from autotune.engines.plan import LaunchPlan

FORMATS: Mapping[str, Callable[[LaunchPlan, DeployFacts], str]] = {
    "bash": bash.render,
    "docker": docker_run.render,
    "compose": compose.render,
    "k8s": kubernetes.render,
    "systemd": systemd.render,
    "argv": argv.render,
}
"""Each raises InputError for a plan that has no such form."""
