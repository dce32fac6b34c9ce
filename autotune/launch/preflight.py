"""What must be there before anything is started: program, model folder, mounts, secrets, port."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from autotune.engines.plan import LaunchPlan
from autotune.engines.redaction import is_secret_name
from autotune.errors import InputError
from autotune.launch.ports import holder_of, is_free

_MODEL_WORDS = ("--model", "--model-path", "serve")
_SHORTEST_INHERITED_SECRET = 8


def resolve_secrets(plan: LaunchPlan, environ: Mapping[str, str]) -> dict[str, str]:
    """Variable of the server -> secret value. Raises InputError naming what is not set."""
    missing = sorted({name for name in plan.secrets.values() if not environ.get(name)})
    wanted = ", ".join(variable for variable, name in plan.secrets.items() if name in missing)
    if missing:
        raise InputError(
            message=f"environment variable {', '.join(missing)} is not set",
            seen=f"the launch hands it to the server as {wanted}",
            so="nothing was started",
            hint=f"export {missing[0]}=...",
        )
    return {variable: environ[name] for variable, name in plan.secrets.items()}


def secret_values(plan: LaunchPlan, environ: Mapping[str, str], *, inherited: bool) -> set[str]:
    """All values that the server could print and nobody should read: the plan's secrets, plain
    variables with a secret's name, and, if it inherits our environment, those in there.
    """
    values = set(resolve_secrets(plan, environ).values())
    values |= {value for name, value in plan.env.items() if is_secret_name(name)}
    if inherited:
        values |= {
            value
            for name, value in environ.items()
            if is_secret_name(name) and len(value) >= _SHORTEST_INHERITED_SECRET
        }
    return values


def check_program(plan: LaunchPlan, environ: Mapping[str, str]) -> None:
    """Raises InputError if the plan's first word is no program that we can run."""
    search = plan.env.get("PATH", environ.get("PATH"))
    if shutil.which(plan.argv[0], path=search) is None:
        raise InputError(
            message=f"program not found: {plan.argv[0]}",
            so="nothing was started",
            hint="give its path as `engine: command:`, or install the engine where PATH finds it",
        )


def check_fixed_port(plan: LaunchPlan) -> None:
    """Raises InputError if the plan's own port is taken."""
    if plan.port is not None and not is_free(plan.port):
        raise InputError(
            message=f"port {plan.port} is busy",
            seen=f"held by {holder_of(plan.port)}",
            so="nothing was started and the other server was left alone",
            hint="leave `port` out to use a free one",
        )


def check_folders(plan: LaunchPlan) -> None:
    """Raises InputError if a mounted folder or a model given as a path is not there."""
    for mount in plan.mounts:
        if mount.source.startswith("/") and not Path(mount.source).exists():
            raise InputError(
                message=f"mounted folder not found: {mount.source}", so="nothing was started"
            )
    for word in sorted(_model_paths(plan)):
        path = _host_path(plan, word)
        if path is not None and not path.exists():
            raise InputError(
                message=f"model folder not found: {path}",
                so="nothing was started",
                hint="give a folder that exists, or the name of a model on the hub",
            )


def _model_paths(plan: LaunchPlan) -> set[str]:
    """Words of the plan that name the model and are paths."""
    words = {plan.model}
    for before, word in zip(plan.argv, plan.argv[1:], strict=False):
        if before in _MODEL_WORDS:
            words.add(word)
        name, equals, value = word.partition("=")
        if equals and name in _MODEL_WORDS:
            words.add(value)
    return {word for word in words if word.startswith(("/", "./", "../", "~/"))}


def _host_path(plan: LaunchPlan, word: str) -> Path | None:
    """Where the path lies on this host; None where that cannot be known (inside an image)."""
    if plan.image is None:
        return Path(word).expanduser()
    for mount in plan.mounts:
        target = mount.target.rstrip("/")
        if mount.source.startswith("/") and (word == target or word.startswith(f"{target}/")):
            return Path(mount.source + word[len(target) :])
    return None
