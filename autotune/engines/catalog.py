"""Which engines there are, and what can be asked about them without starting one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from shutil import which

from autotune.engines.engine import Engine, LaunchTarget
from autotune.engines.facts import SPEAKS, engine_facts
from autotune.engines.flags import flag_name
from autotune.engines.generic import GenericEngine
from autotune.engines.launch_params import image_version
from autotune.engines.sglang import SglangEngine
from autotune.engines.simulated import SimulatedEngine, SimulatedSglang
from autotune.engines.vllm import VllmEngine
from autotune.errors import InputError

KINDS = ("vllm", "sglang", "simulated", "simulated-sglang", "generic")

_ENGINES: Mapping[str, Callable[[str | None], Engine]] = {
    "vllm": VllmEngine,
    "sglang": SglangEngine,
    "simulated": SimulatedEngine,
    "simulated-sglang": SimulatedSglang,
    "generic": GenericEngine,
}
_PROBE_SECONDS = 20.0
_VERSION = re.compile(r"\b\d+\.\d+(?:\.\d+)?[\w.+]*")
# Importing the engine to ask for its version takes many seconds; its metadata takes none.
_ASK_METADATA = (
    "import sys\n"
    "from importlib.metadata import version, PackageNotFoundError\n"
    "for name in sys.argv[1:]:\n"
    "    try:\n"
    "        print(version(name)); break\n"
    "    except PackageNotFoundError: pass\n"
)


def engine_for(kind: str, version: str | None = None) -> Engine:
    """The engine of a kind. `version`: of the installed engine, where known.

    Raises InputError for a kind that there is not.
    """
    made = _ENGINES.get(kind)
    if made is None:
        raise InputError(
            message=f"unknown engine kind: {kind}", hint=f"known kinds: {', '.join(KINDS)}"
        )
    return made(version)


def is_simulated(kind: str) -> bool:
    """Whether a kind of engine is our own simulator."""
    return kind in SPEAKS


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


def probe_version(target: LaunchTarget, kind: str = "vllm") -> str | None:
    """The version of the engine of a kind that a target would start; None where it cannot be told.

    For an image by its tag. For a local command by the package metadata of the interpreter beside
    its program, else by `PROGRAM --version`; bounded to 40 s in all. Starts no server.
    """
    if target.launcher == "docker":
        return image_version(target.image)
    if target.launcher != "process":
        return None
    facts = engine_facts(kind)
    command = target.command or facts.command
    if not command:
        return None
    program = which(command[0])
    if program is None or "autotune.simulator" in command:
        return None
    for beside in _interpreters(Path(program)) if facts.packages else ():
        version = _ask([str(beside), "-c", _ASK_METADATA, *facts.packages])
        if version is not None:
            return version
    is_interpreter = Path(program).name.startswith("python")
    return None if is_interpreter else _ask([program, "--version"])


def _interpreters(program: Path) -> list[Path]:
    if program.name.startswith("python"):
        return [program]
    if program.name not in ("vllm", "sglang"):
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
