"""Any server with the OpenAI-compatible API: its command is the user's, its flags unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autotune.canonical import Json
from autotune.engines.command_line import parse_launch_command
from autotune.engines.diagnosis import diagnose_log
from autotune.engines.engine import Diagnosis, ExitInfo, LaunchTarget, ParsedCommand, Phase
from autotune.engines.facts import engine_facts
from autotune.engines.flags import as_switch, check_flags, flag_words
from autotune.engines.plan import HOST, PORT, LaunchPlan
from autotune.engines.vllm import attached_plan, merged_params
from autotune.errors import InputError
from autotune.space.candidate import Candidate


class GenericEngine:
    """A server started by the user's own command.

    Flags are written `--name value`. `negatable` names the switches that have a `--no-name` form;
    any other switch cannot be turned off. `{host}`, `{port}` and `{model}` in the command are
    filled in; where the command has no `{port}`, `--host` and `--port` are added.
    """

    kind: str = "generic"
    simulated: bool = False

    def __init__(self, version: str | None = None, *, negatable: Iterable[str] = ()) -> None:
        self._version = version
        self._negatable = frozenset(negatable)

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
        words = [word.replace("{model}", target.model) for word in target.command]
        if PORT not in words:
            words += ["--host", HOST, "--port", PORT]
        for name, value in params.items():
            self._check_switch(name, value)
            words += flag_words(facts, name, value)
        shm_size = target.shm_size or (None if target.ipc_host else facts.shm["single"])
        contained = target.launcher == "docker"
        return LaunchPlan(
            engine=self.kind,
            launcher=target.launcher,
            argv=tuple(words),
            model=target.model,
            env=env,
            secrets=target.secrets,
            gpus=target.gpus,
            port=target.port,
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

    def _check_switch(self, name: str, value: Json) -> None:
        if isinstance(value, bool) and as_switch(value) is False and name not in self._negatable:
            raise InputError(
                message=f"`{name}` cannot be switched off: no negative form is known",
                seen=f"{name}: off, for engine kind generic",
                hint="leave it out (null), or give the server's own flag for off as a knob",
            )
