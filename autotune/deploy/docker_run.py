"""`docker-run.sh`: the measured container as a `docker run` script."""

from __future__ import annotations

from autotune.deploy import bash
from autotune.deploy.facts import DeployFacts
from autotune.deploy.words import require_image
from autotune.engines.plan import LaunchPlan


def render(plan: LaunchPlan, facts: DeployFacts) -> str:
    """The same script as `launch.sh` of a container plan. Raises InputError for a process plan."""
    require_image(plan, "a docker run script")
    return bash.render(plan, facts)
