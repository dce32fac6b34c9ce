"""What a server is: the protocol that every engine follows, and the values that cross it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

from autotune.canonical import Json
from autotune.engines.plan import LaunchPlan, Mount
from autotune.space.candidate import Candidate

Fault = Literal["candidate", "study", "environment", "tool", "unknown"]
Phase = Literal["arguments", "startup", "load", "stop"]
FlagStyle = Literal["--flag value", "--flag=value", "-flag value"]
"""How a server of kind generic is given its flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitInfo:
    """How a server ended. `code` follows `subprocess` (negative: killed by that signal); for a
    container it is the container's exit code. `oom_killed` is Docker's word; `by_us` tells that the
    end was our own doing. All None where not known.
    """

    code: int | None = None
    oom_killed: bool = False
    by_us: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a server failed, in the words of the `diagnose --json` contract.

    `remedy` is a code such as `raise_memory`, `lower_memory`, `drop_flag`, `wait_retry` or None.
    `evidence` holds the decisive log lines, secrets and prompts masked. `facts` holds what could be
    extracted (`needed_gib`, `max_model_len_fits`, `flag`).
    """

    fault: Fault
    phase: Phase
    reason: str
    remedy: str | None
    message: str
    evidence: tuple[str, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "evidence": list(self.evidence), "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTarget:
    """What is fixed for every launch of a study: where and on what the engine runs.

    `args` are the fixed flags (name without dashes -> value), `command` how the engine is started
    (None: the engine's own default), `env`/`secrets` as in `LaunchPlan`.
    """

    model: str
    launcher: Literal["process", "docker", "attach"]
    args: Mapping[str, Json] = field(default_factory=dict)
    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    gpus: tuple[str, ...] | None = None
    shm_size: str | None = None
    ipc_host: bool = False
    port: int | None = None
    url: str | None = None
    health: str | None = None
    """Route that answers once the server may be asked; None: the engine's own."""
    model_name: str | None = None
    """What requests call the model; None: its own name."""
    flag_style: FlagStyle = "--flag value"
    negatable: tuple[str, ...] = ()
    """Switches of a server of kind generic that have a `--no-` form."""
    knob_env: Mapping[str, str] = field(default_factory=dict)
    """Knob name -> environment variable, for knobs that are set by environment."""
    knob_flags: Mapping[str, str] = field(default_factory=dict)
    """Knob name -> flag without dashes, where the two differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCommand:
    """A launch command as pasted by a user, taken apart.

    `command` is the program part (`vllm serve`), `params` flag -> value (switches as bool),
    `env` the leading or `-e` assignments, `image` the container image if it was a `docker run`.
    """

    command: tuple[str, ...]
    model: str | None
    params: Mapping[str, Json]
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None


class Engine(Protocol):
    """A kind of inference server. Pure: nothing here starts, stops or asks a server."""

    kind: str
    simulated: bool

    def plan(self, candidate: Candidate, target: LaunchTarget) -> LaunchPlan:
        """The plan that starts this candidate on this target. Raises InputError for a value that
        has no form as a flag (a switch without a negative form, say).
        """
        ...

    def parse_command(self, text: str) -> ParsedCommand:
        """Take a pasted launch command or launch script apart. Raises InputError."""
        ...

    def diagnose(
        self, log: Sequence[str], exit_info: ExitInfo | None, phase: Phase | None
    ) -> Diagnosis:
        """Classify a failure from the log lines and the way it ended. `phase` None: infer it."""
        ...

    def metric_names(self) -> Mapping[str, str]:
        """Our name (`kv_usage`, `preemptions`, `prefix_hits`, `prefix_queries`, `running`,
        `waiting`, `prompt_tokens`, `generation_tokens`, `queue_time`) -> Prometheus name.
        """
        ...
