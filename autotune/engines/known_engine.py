"""An engine whose flags are known: how a candidate becomes a launch plan.

What engines and versions differ in is in `facts/*.yaml` and the flag tables beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.canonical import Json
from autotune.engines.command_line import parse_launch_command
from autotune.engines.diagnosis import diagnose_log
from autotune.engines.engine import Diagnosis, ExitInfo, LaunchTarget, ParsedCommand, Phase
from autotune.engines.facts import EngineFacts, engine_facts
from autotune.engines.flags import check_flags, flag_words
from autotune.engines.launch_params import (
    attached_plan,
    image_version,
    local_folder,
    merged_params,
    with_checkpoint,
)
from autotune.engines.plan import HOST, PORT, LaunchPlan, Mount
from autotune.errors import InputError
from autotune.space.candidate import Candidate


class KnownEngine:
    """A server of one kind. `version` (None: not known) decides which flags it is known to lack."""

    kind: str
    simulated: bool = False

    def __init__(self, version: str | None = None) -> None:
        self._version = version

    @property
    def facts(self) -> EngineFacts:
        """What is known about this kind of engine."""
        return engine_facts(self.kind)

    def plan(self, candidate: Candidate, target: LaunchTarget) -> LaunchPlan:
        """The plan that starts this candidate. Equal candidates and targets give equal plans."""
        version = self._version or image_version(target.image)
        if target.launcher == "attach":
            return attached_plan(self.kind, candidate, target)
        target = with_checkpoint(candidate, target)
        params, env = merged_params(self.facts, candidate, target)
        check_flags(self.facts, params, version)
        # For a container too these words are the whole entry point, so that an image whose own
        # entry point is the server is not given `serve` twice.
        command = target.command or self.default_command(target)
        folder = None if self.simulated else local_folder(target.model)
        model = target.model if folder is None else str(folder)
        words = [
            *command,
            *_model_words(self.facts, command, model),
            "--host",
            HOST,
            "--port",
            PORT,
        ]
        for name, value in params.items():
            words += flag_words(self.facts, name, value)
        plan = LaunchPlan(
            engine=self.kind,
            launcher=target.launcher,
            argv=tuple(words),
            model=_served_name(params, model),
            env=env,
            secrets=target.secrets,
            gpus=target.gpus,
            port=target.port,
            health=target.health or self.facts.routes["health"],
        )
        if target.launcher == "docker":
            mounts = target.mounts if self.simulated else _mounts(self.facts, target, version)
            return _contained(self.facts, plan, target, params, mounts)
        return plan

    def parse_command(self, text: str) -> ParsedCommand:
        """Take a pasted launch command or launch script apart. Raises InputError."""
        return parse_launch_command(text, self.facts)

    def diagnose(
        self, log: Sequence[str], exit_info: ExitInfo | None, phase: Phase | None
    ) -> Diagnosis:
        """Classify a failure from the log lines and the way it ended."""
        return diagnose_log(log, exit_info, phase, self.kind, version=self._version)

    def metric_names(self) -> Mapping[str, str]:
        """Our name -> Prometheus name."""
        return self.facts.metric_names(self._version)

    def default_command(self, target: LaunchTarget) -> tuple[str, ...]:
        """How the server is started where the study does not say. Raises InputError if unknown."""
        del target
        return self.facts.command


def _model_words(facts: EngineFacts, command: tuple[str, ...], model: str) -> list[str]:
    """How the model is given: by its flag, or as a word where the program takes one."""
    by_flag = not facts.takes_model_word or any(word in facts.model_flag_words for word in command)
    return [facts.model_flag, model] if by_flag else [model]


def _served_name(params: Mapping[str, Json], model: str) -> str:
    served = params.get("served-model-name")
    if isinstance(served, list):
        served = served[0] if served else None
    return str(served) if served is not None else model


def _contained(
    facts: EngineFacts,
    plan: LaunchPlan,
    target: LaunchTarget,
    params: Mapping[str, Json],
    mounts: tuple[Mount, ...],
) -> LaunchPlan:
    """The plan inside a container: image, mounts of model and caches, shared memory."""
    if target.image is None:
        raise InputError(message="launcher docker needs an image", hint="set `engine.image`")
    shm_size = target.shm_size
    if shm_size is None and not target.ipc_host:
        flags = facts.shm.get("parallel_flags", ())
        parallel = any(params.get(name, 1) not in (1, "1") for name in flags)
        shm_size = facts.shm.get("parallel" if parallel else "single")
    return replace(
        plan,
        image=target.image,
        mounts=mounts,
        shm_size=shm_size,
        ipc_host=target.ipc_host,
    )


def _mounts(facts: EngineFacts, target: LaunchTarget, version: str | None) -> tuple[Mount, ...]:
    mounts = list(target.mounts)
    folder = local_folder(target.model)
    if folder is not None:
        # The files of a hub snapshot are links into a folder two levels up.
        source = folder.parent.parent if folder.parent.name == "snapshots" else folder
        mounts.append(Mount(source=str(source), target=str(source)))
    for cache in facts.caches:
        if cache.hub_only and folder is not None:
            continue
        home = Path(cache.host).expanduser() if cache.host else None
        volume = cache.volume.format(version=re.sub(r"[^\w.-]", "-", version or "any"))
        source_name = str(home) if home is not None and home.is_dir() else volume
        mounts.append(Mount(source=source_name, target=cache.target, read_only=False))
    taken: set[str] = set()
    unique = []
    for mount in mounts:
        if mount.target not in taken:
            taken.add(mount.target)
            unique.append(mount)
    return tuple(unique)
