"""The word lists that launch a plan, before any file format quotes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from autotune.deploy.facts import DeployFacts
from autotune.deploy.quoting import kubernetes_name, shell_name
from autotune.deploy.timing import grace_s
from autotune.engines.plan import CONTAINER_HOST, CONTAINER_PORT, HOST, PORT, LaunchPlan, Mount
from autotune.errors import InputError

Kind = Literal["text", "host", "port", "publish", "container"]
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
# At the end of a name only: TOKENIZERS_PARALLELISM is no secret.
_SECRET = re.compile(r"(?i)(token|secret|password|passwd|api_?key|access_key|credentials?)$")


class Word(NamedTuple):
    """One word of a command. Kinds besides `text` hold what the person who starts it may choose:
    the address, the port, both as docker publishes them, the container's name.
    """

    text: str
    kind: Kind = "text"


def require_launch(plan: LaunchPlan) -> None:
    """Raises InputError for a plan that starts nothing (an attached server)."""
    if plan.launcher == "attach" or not plan.argv:
        raise InputError(
            message="there is no launch to write down: the study measured a running server",
            seen=f"the server at {plan.url} was started by somebody else",
        )


def is_container(plan: LaunchPlan) -> bool:
    """Whether the plan was measured in a container."""
    return plan.launcher == "docker"


def require_image(plan: LaunchPlan, what: str) -> str:
    """The image of a container plan. Raises InputError for a plan that runs as a process."""
    require_launch(plan)
    if not is_container(plan) or plan.image is None:
        raise InputError(
            message=f"{what} needs a container image",
            seen=f"the study launched {plan.engine} as a process on the host",
            hint="use `--format bash` or `--format systemd`, or tune with the docker launcher",
        )
    return plan.image


def pinned_image(plan: LaunchPlan, facts: DeployFacts) -> str:
    """`repository@sha256:...` where the registry's digest is known, else the image as launched."""
    image = require_image(plan, "a container file")
    if facts.image_digest is None or "@" in image:
        return image
    head, _, last = image.rpartition("/")
    repository = last.partition(":")[0]
    return f"{head}/{repository}@{facts.image_digest}" if head else (
        f"{repository}@{facts.image_digest}"
    )  # fmt: skip


def container_argv(plan: LaunchPlan) -> tuple[str, ...]:
    """The words inside the container, where the server listens on the container's own address."""
    return plan.argv_for(CONTAINER_HOST, CONTAINER_PORT)


def container_name(facts: DeployFacts) -> str:
    """The default name of the container."""
    suffix = "-baseline" if facts.role == "baseline" else ""
    return f"autotune-{kubernetes_name(facts.study)}{suffix}"


def process_words(plan: LaunchPlan) -> list[Word]:
    """The words of a process launch."""
    kinds: dict[str, Kind] = {HOST: "host", PORT: "port"}
    return [Word(word, kinds.get(word, "text")) for word in plan.argv]


def docker_words(plan: LaunchPlan, facts: DeployFacts) -> list[Word]:
    """`docker run` in the foreground: removed at its end, published on one address only."""
    image = pinned_image(plan, facts)
    argv = container_argv(plan)
    words = [Word(word) for word in ("docker", "run", "--rm", "--init")]
    words += [Word("--name"), Word(container_name(facts), "container")]
    words += [Word("--stop-timeout"), Word(str(grace_s(facts)))]
    words += [Word("-p"), Word(str(CONTAINER_PORT), "publish")]
    words += [Word(text) for text in _container_options(plan)]
    words += [Word("--entrypoint"), Word(argv[0]), Word(image)]
    return words + [Word(text) for text in argv[1:]]


def launch_words(plan: LaunchPlan, facts: DeployFacts) -> list[Word]:
    """The words that start a plan on this machine. Raises InputError for an attached server."""
    require_launch(plan)
    return docker_words(plan, facts) if is_container(plan) else process_words(plan)


def secrets_of(plan: LaunchPlan) -> dict[str, str]:
    """Server's variable -> name of ours that holds it. A plain value whose name says that it is a
    secret is taken from outside as well, so that no file holds it.
    """
    hidden = {name: name for name in plan.env if _SECRET.search(name)}
    return {**hidden, **plan.secrets}


def plain_environment(plan: LaunchPlan) -> dict[str, str]:
    """The variables whose values may stand in a file."""
    return {name: value for name, value in plan.env.items() if not _SECRET.search(name)}


def process_environment(plan: LaunchPlan) -> dict[str, str]:
    """Variables that a process launch sets, GPU choice included; no secrets."""
    env = plain_environment(plan)
    if plan.gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpus)
    return env


def _container_options(plan: LaunchPlan) -> Iterator[str]:
    if plan.gpus is None:
        yield from ("--gpus", "all")
    elif plan.gpus:
        yield from ("--gpus", f'"device={",".join(plan.gpus)}"')
    if plan.ipc_host:
        yield from ("--ipc", "host")
    elif plan.shm_size is not None:
        yield from ("--shm-size", plan.shm_size)
    for mount in plan.mounts:
        yield from ("--mount", _mount(mount))
    for name, value in plain_environment(plan).items():
        yield from ("-e", f"{shell_name(name)}={value}")
    for name in secrets_of(plan):
        yield from ("-e", shell_name(name))


def _mount(mount: Mount) -> str:
    """A mount as `--mount` takes it; unlike `-v` it refuses a host folder that does not exist."""
    kind = "bind" if mount.source.startswith("/") else "volume"
    fields = [f"type={kind}", f"source={mount.source}", f"target={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join(_csv_field(field) for field in fields)


def _csv_field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\n\r]', text) else text
