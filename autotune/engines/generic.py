"""Any server with the OpenAI-compatible API: its command is the user's, its flags unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.canonical import Json
from autotune.engines.command_line import parse_launch_command
from autotune.engines.diagnosis import diagnose_log
from autotune.engines.engine import (
    Diagnosis,
    ExitInfo,
    FlagStyle,
    LaunchTarget,
    ParsedCommand,
    Phase,
)
from autotune.engines.facts import engine_facts
from autotune.engines.flags import as_switch, check_flags, flag_words
from autotune.engines.launch_params import attached_plan, merged_params
from autotune.engines.plan import HOST, PORT, LaunchPlan
from autotune.errors import InputError
from autotune.space.candidate import MODEL, Candidate


class GenericEngine:
    """A server started by the user's own command.

    `{host}`, `{port}` and `{model}` in the command are filled in; where it has no `{port}`,
    `--host` and `--port` are added. Flags are appended in the target's style. A switch that is off
    needs a `--no-` form, and `negatable` names those that have one.
    """

    kind: str = "generic"
    simulated: bool = False

    def __init__(self, version: str | None = None) -> None:
        self._version = version

    def plan(self, candidate: Candidate, target: LaunchTarget) -> LaunchPlan:
        """The plan that starts this candidate with the command given."""
        if target.launcher == "attach":
            return attached_plan(self.kind, candidate, target)
        if not target.command:
            raise InputError(
                message="engine kind generic needs a command",
                hint="set `engine.command` to the words that start the server",
            )
        if target.launcher == "docker" and target.image is None:
            raise InputError(message="launcher docker needs an image", hint="set `engine.image`")
        facts = engine_facts(self.kind)
        params, env = merged_params(facts, candidate, target)
        check_flags(facts, params, self._version)
        chosen = str(candidate.params.get(MODEL, target.model))
        words = _command_words(replace(target, model=chosen))
        for name, value in params.items():
            _check_switch(name, value, target.negatable)
            words += styled(flag_words(facts, name, value), target.flag_style)
        shm_size = target.shm_size or (None if target.ipc_host else facts.shm["single"])
        contained = target.launcher == "docker"
        return LaunchPlan(
            engine=self.kind,
            launcher=target.launcher,
            argv=tuple(words),
            model=target.model_name or target.model,
            env=env,
            secrets=target.secrets,
            gpus=target.gpus,
            port=target.port,
            health=target.health or facts.routes["health"],
            image=target.image if contained else None,
            mounts=target.mounts if contained else (),
            shm_size=shm_size if contained else None,
            ipc_host=target.ipc_host and contained,
        )

    def parse_command(self, text: str) -> ParsedCommand:
        """Take a pasted command apart: its program part is everything before the first flag."""
        return parse_launch_command(text, engine_facts(self.kind))

    def diagnose(
        self, log: Sequence[str], exit_info: ExitInfo | None, phase: Phase | None
    ) -> Diagnosis:
        """Classify a failure by what any server may say."""
        return diagnose_log(log, exit_info, phase, self.kind, version=self._version)

    def metric_names(self) -> Mapping[str, str]:
        """Nothing is known of its metrics."""
        return {}


def styled(words: Sequence[str], style: FlagStyle) -> list[str]:
    """A flag and its values as the server takes them: `--flag value`, `--flag=value` (one word per
    value) or `-flag value`.
    """
    head, *values = words
    if style == "-flag value":
        return ["-" + head.lstrip("-"), *values]
    if style == "--flag=value" and values:
        return [f"{head}={value}" for value in values]
    return list(words)


def _command_words(target: LaunchTarget) -> list[str]:
    """The command with the model filled in and places for the address. Raises InputError."""
    words = [word.replace("{model}", target.model) for word in target.command or ()]
    for place in (HOST, PORT):
        within = next((word for word in words if place in word and word != place), None)
        if within is not None:
            raise InputError(
                message=f"`{place}` in the command must be a word of its own",
                seen=within,
                hint=f"write the flag and {place} as two words",
            )
    return words if PORT in words else [*words, "--host", HOST, "--port", PORT]


def _check_switch(name: str, value: Json, negatable: Sequence[str]) -> None:
    if isinstance(value, bool) and as_switch(value) is False and name not in negatable:
        raise InputError(
            message=f"`{name}` cannot be switched off: no negative form is known",
            seen=f"{name}: off, for engine kind generic",
            hint="leave it out (null), name it in `engine.negatable` if the server knows "
            f"--no-{name}, or give the server's own flag for off as a knob",
        )
