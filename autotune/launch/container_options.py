"""What the Docker daemon is asked for: a plan as keywords of the SDK's `create`. Pure."""

from __future__ import annotations

import re
import secrets
from typing import Any

from docker.types import DeviceRequest, Mount

from autotune import __version__
from autotune.engines.plan import CONTAINER_HOST, CONTAINER_PORT, LaunchPlan
from autotune.errors import InputError
from autotune.launch.launcher import Ticket
from autotune.launch.ports import LOOPBACK

LABEL_STUDY = "autotune.study"
LABEL_TRIAL = "autotune.trial"
LABEL_ATTEMPT = "autotune.attempt"
LABEL_TOOL = "autotune.tool"
LABEL_CACHE = "autotune.cache"
"""On the named volumes that keep an engine's caches between trials and studies."""


def container_name(ticket: Ticket) -> str:
    """A new name for a container; no two calls give the same."""
    study = re.sub(r"[^A-Za-z0-9_.-]+", "-", ticket.study_id)[:60]
    return f"autotune-{study}-{ticket.trial}-{secrets.token_hex(3)}"


def container_options(plan: LaunchPlan, ticket: Ticket, *, port: int, name: str) -> dict[str, Any]:
    """All keywords but `environment`, which holds secrets and is added at the last moment."""
    argv = plan.argv_for(CONTAINER_HOST, CONTAINER_PORT)
    options: dict[str, Any] = {
        "image": image_of(plan),
        "entrypoint": [argv[0]],
        "command": list(argv[1:]),
        "name": name,
        "labels": {
            LABEL_STUDY: ticket.study_id,
            LABEL_TRIAL: str(ticket.trial),
            LABEL_ATTEMPT: str(ticket.attempt),
            LABEL_TOOL: __version__,
        },
        "ports": {f"{CONTAINER_PORT}/tcp": (LOOPBACK, port)},
        "mounts": [
            Mount(
                target=mount.target,
                source=mount.source,
                type="bind" if mount.source.startswith("/") else "volume",
                read_only=mount.read_only,
                labels=None if mount.source.startswith("/") else {LABEL_CACHE: __version__},
            )
            for mount in plan.mounts
        ],
        "init": True,
        "auto_remove": False,
        "detach": True,
    }
    if plan.gpus is None:
        options["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    elif plan.gpus:
        options["device_requests"] = [
            DeviceRequest(device_ids=list(plan.gpus), capabilities=[["gpu"]])
        ]
    if plan.ipc_host:
        options["ipc_mode"] = "host"
    elif plan.shm_size is not None:
        options["shm_size"] = plan.shm_size
    return options


def image_of(plan: LaunchPlan) -> str:
    """The plan's image. Raises InputError if it has none."""
    if not plan.image:
        raise InputError(
            message="launcher `docker` needs an image",
            hint="set `engine: image:`, for example vllm/vllm-openai:v0.26.0",
        )
    return plan.image
