"""`compose.yaml`: the measured container as a Compose service."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.deploy.facts import DeployFacts
from autotune.deploy.quoting import kubernetes_name, shell_name, yaml_string
from autotune.deploy.sentences import commented, header
from autotune.deploy.timing import grace_explained, grace_s, startup_explained, startup_limit_s
from autotune.deploy.words import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    container_argv,
    pinned_image,
    plain_environment,
    secrets_of,
)
from autotune.engines.plan import CONTAINER_PORT, LaunchPlan

_PROBE = "import urllib.request as u; u.urlopen('http://127.0.0.1:{port}{path}', timeout=5)"


def render(plan: LaunchPlan, facts: DeployFacts) -> str:
    """A file for `docker compose up`. Raises InputError for a process plan."""
    image, argv = pinned_image(plan, facts), container_argv(plan)
    probe = ["CMD", "python3", "-c", _PROBE.format(port=CONTAINER_PORT, path=plan.health)]
    named = [m.source for m in plan.mounts if not m.source.startswith("/")]
    published = f"${{HOST:-{DEFAULT_HOST}}}:${{PORT:-{DEFAULT_PORT}}}:{CONTAINER_PORT}"
    lines = [
        f"name: {kubernetes_name(facts.study)}",
        "services:",
        "  engine:",
        f"    image: {_text(image)}",
        "    init: true",
        f"    entrypoint: [{_text(argv[0])}]",
        "    command:",
        *_items(argv[1:], 6),
        f'    ports: ["{published}"]',
        *_environment(plan),
        *_volumes(plan),
        *_memory(plan),
        *_gpus(plan),
        "    restart: unless-stopped  # an engine may end with exit code 0 after its worker died",
        f"    stop_grace_period: {grace_s(facts)}s  # {grace_explained(facts)}",
        "    healthcheck:",
        "      test:",
        *_items(probe, 8),
        f"      start_period: {startup_limit_s(facts)}s  # {startup_explained(facts)}",
        "      interval: 10s",
        "      timeout: 6s",
        "      retries: 3",
    ]
    if named:
        lines += ["volumes:", *(f"  {_text(name)}: {{}}" for name in dict.fromkeys(named))]
    differs = "published address and port (HOST, PORT)"
    return commented(header(plan, facts, differs)) + "\n" + "".join(f"{line}\n" for line in lines)


def _text(text: str) -> str:
    """A string that Compose takes literally: `$` doubled."""
    return yaml_string(text.replace("$", "$$"))


def _items(texts: Iterable[str], indent: int) -> list[str]:
    return [f"{' ' * indent}- {_text(text)}" for text in texts]


def _environment(plan: LaunchPlan) -> list[str]:
    lines = [f"      {_text(k)}: {_text(v)}" for k, v in plain_environment(plan).items()]
    for target, source in secrets_of(plan).items():
        name = shell_name(source)
        lines.append(f'      {_text(target)}: "${{{name}:?set {name}}}"')
    return ["    environment:", *lines] if lines else []


def _volumes(plan: LaunchPlan) -> list[str]:
    lines = []
    for mount in plan.mounts:
        kind = "bind" if mount.source.startswith("/") else "volume"
        lines += [
            f"      - type: {kind}",
            f"        source: {_text(mount.source)}",
            f"        target: {_text(mount.target)}",
            f"        read_only: {str(mount.read_only).lower()}",
        ]
    return ["    volumes:", *lines] if lines else []


def _memory(plan: LaunchPlan) -> list[str]:
    if plan.ipc_host:
        return ["    ipc: host"]
    return [f"    shm_size: {_text(plan.shm_size)}"] if plan.shm_size is not None else []


def _gpus(plan: LaunchPlan) -> list[str]:
    if plan.gpus == ():
        return []
    ids = ", ".join(yaml_string(gpu) for gpu in plan.gpus or ())
    return [
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices:",
        "            - driver: nvidia",
        f"              device_ids: [{ids}]" if ids else "              count: all",
        "              capabilities: [gpu]",
    ]
