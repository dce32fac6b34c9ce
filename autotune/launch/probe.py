"""Asks an engine for its own flags: its `--help`, run once per program or image and remembered.

No server is started: the program prints its help and ends. A reading that fails is never a reason
to stop, only one to trust the version table instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

from autotune import __version__
from autotune.canonical import Json, digest
from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import EngineFacts
from autotune.engines.help_text import EngineHelp, parse_help

HELP_TIMEOUT_S = 90.0
"""A real engine imports for five to twenty seconds before it can name its flags."""
LABEL_PROBE = "autotune.probe"
_SCHEMA = 1
_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpReading:
    """An engine's flags (None: not to be had, `note` says why) and where they were read, in words:
    "`vllm serve --help=all` of the image vllm/vllm-openai:v0.26.0".
    """

    help: EngineHelp | None
    where: str
    note: str | None = None


def read_help(
    target: LaunchTarget,
    facts: EngineFacts,
    version: str | None,
    *,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = HELP_TIMEOUT_S,
) -> HelpReading | None:
    """The flags of the engine that this target starts; None for an engine whose help is unknown or
    a server that runs already. Takes seconds the first time, then a file in the user's cache
    answers until the program, the image or the version changes. Raises nothing.
    """
    if not facts.help or target.launcher == "attach":
        return None
    environment = dict(os.environ if environ is None else environ)
    command = target.command or facts.command
    ask = _image(target) if target.launcher == "docker" else _program(command, target)
    words = " ".join([Path(command[0]).name, *command[1:], *facts.help[0]])
    if isinstance(ask, str):
        return HelpReading(help=None, where=words, note=f"{words} was not asked: {ask}")
    where = f"`{words}` of {ask.what}"
    key = digest([_SCHEMA, ask.key, list(command), [list(h) for h in facts.help], version])
    path = _cache_folder(environment) / f"{key}.json"
    known = _remembered(path)
    if known is not None:
        return HelpReading(help=known, where=where)
    problem = ""
    for extra in facts.help:
        text, problem = ask.run([*command, *extra], environment, timeout_s)
        found = parse_help(text)
        if all(found.find(name) is not None for name in facts.help_proof):
            _remember(path, found, where)
            return HelpReading(help=found, where=where)
        if problem == _late(timeout_s):
            break
        problem = problem or "what it printed does not list its flags"
    return HelpReading(
        help=None,
        where=where,
        note=f"flags were not checked against the engine itself: {where}: {problem}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    what: str
    key: Sequence[Json]
    env: Mapping[str, str]

    def run(
        self, words: Sequence[str], environ: Mapping[str, str], timeout_s: float
    ) -> tuple[str, str]:
        """(what it printed, what went wrong); in a session of its own, so that all of it ends."""
        try:
            process = subprocess.Popen(
                list(words),
                env={**environ, **self.env, "COLUMNS": "100", "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            return "", error.strerror or str(error)
        try:
            text, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return "", _late(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        code = process.returncode
        return (text, "") if code == 0 else ("", f"it ended with code {code}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    what: str
    key: Sequence[Json]
    target: LaunchTarget

    def run(
        self, words: Sequence[str], environ: Mapping[str, str], timeout_s: float
    ) -> tuple[str, str]:
        """As for a program, in a container without GPU and network that is removed afterwards."""
        import docker
        from docker.errors import DockerException
        from requests.exceptions import RequestException

        del environ
        try:
            client = docker.from_env(timeout=int(timeout_s) + 10)
        except (DockerException, RequestException, OSError) as error:
            return "", str(error)[:200]
        container: Any = None
        try:
            container = client.containers.create(**self._options(words))
            container.start()
            code = container.wait(timeout=timeout_s)["StatusCode"]
            text = container.logs(stdout=True, stderr=False).decode("utf-8", "replace")
        except (DockerException, RequestException, OSError) as error:
            late = "timed out" in str(error).lower()
            return "", _late(timeout_s) if late else str(error)[:200]
        finally:
            if container is not None:
                with contextlib.suppress(DockerException, RequestException, OSError):
                    container.remove(v=True, force=True)
            client.close()
        return (text, "") if code == 0 else ("", f"it ended with code {code}")

    def _options(self, words: Sequence[str]) -> dict[str, Any]:
        from docker.types import Mount

        return {
            "image": self.target.image,
            "entrypoint": [words[0]],
            "command": list(words[1:]),
            "name": f"autotune-help-{secrets.token_hex(4)}",
            "labels": {LABEL_PROBE: "help", "autotune.tool": __version__},
            "environment": {**self.target.env, "COLUMNS": "100", "NO_COLOR": "1"},
            "mounts": [
                Mount(
                    target=mount.target,
                    source=mount.source,
                    type="bind" if mount.source.startswith("/") else "volume",
                    read_only=True,
                )
                for mount in self.target.mounts
            ],
            "network_mode": "none",
            "init": True,
        }


def _late(timeout_s: float) -> str:
    return f"no answer within {timeout_s:g} s"


def _program(command: Sequence[str], target: LaunchTarget) -> _Program | str:
    """The local program, or why it cannot be asked."""
    found = which(command[0], path=target.env.get("PATH"))
    if found is None:
        return f"program not found: {command[0]}"
    path = Path(found)
    try:
        # The link itself too: a virtual environment's python leads out of the environment
        real, here, status = path.resolve(), path.absolute(), path.stat()
    except OSError as error:
        return error.strerror or str(error)
    key = [str(here), str(real), status.st_mtime_ns, status.st_size]
    return _Program(what=str(here), key=key, env=target.env)


def _image(target: LaunchTarget) -> _Image | str:
    """The image by its id, or why it cannot be asked."""
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client = docker.from_env(timeout=10)
        try:
            identity = str(client.images.get(target.image).id)
        finally:
            client.close()
    except (DockerException, RequestException, OSError) as error:
        return str(error)[:200]
    mounts = [[mount.source, mount.target] for mount in target.mounts]
    what = f"the image {target.image} ({identity[:19]})"
    return _Image(what=what, key=[identity, mounts], target=target)


def _cache_folder(environ: Mapping[str, str]) -> Path:
    """Where readings are kept, by the XDG base directory rules."""
    base = environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base.startswith("/") else Path(environ.get("HOME", "/tmp")) / ".cache"  # noqa: S108
    return root / "autotune" / "engine-help"


def _remembered(path: Path) -> EngineHelp | None:
    try:
        return EngineHelp.from_json(json.loads(path.read_text(encoding="utf-8"))["flags"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(path: Path, found: EngineHelp, where: str) -> None:
    """Keep a reading; a cache that cannot be written is no loss."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        text = json.dumps({"where": where, "tool": __version__, "flags": found.to_json()})
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
        old = sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-_KEPT]
        for stale in old:
            stale.unlink(missing_ok=True)
