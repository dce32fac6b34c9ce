"""A launch plan is a value: everything that starting a server needs, and nothing that acts.

Engines make plans, launchers start them, `deploy` renders the very same plans as scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from autotune.canonical import Json

HOST = "{host}"
PORT = "{port}"
"""Placeholders, each a whole word of `LaunchPlan.argv`: the two things known only at launch."""

CONTAINER_PORT = 8000
CONTAINER_HOST = "0.0.0.0"  # noqa: S104 - inside the container; published on loopback only


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host folder seen by a container. `source` is a host path or a named volume."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """How one server of a deployment is started.

    `argv` is the whole word list (program first) with `{host}` and `{port}` as placeholder words.
    `env` holds plain values; `secrets` maps a variable of the server to the *name* of the variable
    of our own environment that holds its value. `model` is the name requests must use. `gpus`:
    None leaves the choice to the launcher (docker: all), () means no GPU.
    """

    member: str = "server"
    engine: str
    launcher: str
    argv: tuple[str, ...]
    model: str
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    gpus: tuple[str, ...] | None = None
    shm_size: str | None = None
    ipc_host: bool = False
    port: int | None = None
    url: str | None = None
    health: str = "/health"
    """Route that answers once the server may be asked."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        object.__setattr__(self, "secrets", MappingProxyType(dict(self.secrets)))

    def argv_for(self, host: str, port: int) -> tuple[str, ...]:
        """The words with the address filled in."""
        filled = {HOST: host, PORT: str(port)}
        return tuple(filled.get(word, word) for word in self.argv)

    def to_json(self) -> dict[str, Json]:
        """The plan as JSON; holds no secret, only names."""
        data: dict[str, Json] = {f.name: getattr(self, f.name) for f in fields(self)}
        data["argv"] = list(self.argv)
        data["env"] = dict(self.env)
        data["secrets"] = dict(self.secrets)
        data["mounts"] = [
            {"source": m.source, "target": m.target, "read_only": m.read_only} for m in self.mounts
        ]
        data["gpus"] = None if self.gpus is None else list(self.gpus)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> LaunchPlan:
        """The inverse of `to_json`; unknown keys of newer versions are ignored."""
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["argv"] = tuple(values["argv"])
        values["mounts"] = tuple(Mount(**mount) for mount in values.get("mounts", ()))
        if values.get("gpus") is not None:
            values["gpus"] = tuple(values["gpus"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A named set of plans that are started together; most studies have one member."""

    members: tuple[LaunchPlan, ...]

    @property
    def front(self) -> LaunchPlan:
        """The member that requests are sent to (the last one)."""
        return self.members[-1]

    def to_json(self) -> dict[str, Json]:
        return {"members": [plan.to_json() for plan in self.members]}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Deployment:
        return cls(members=tuple(LaunchPlan.from_json(member) for member in data["members"]))
