"""`doctor`: is this machine fit for a study? Each finding with what to type next."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from autotune.cli import doctor_engines, doctor_machine
from autotune.cli.console import result, result_json
from autotune.cli.doctor_machine import USUAL_PORT, Finding
from autotune.launch.gpus import list_gpus
from autotune.launch.leftovers import left_containers, left_processes
from autotune.launch.ports import holder_of, is_free


def doctor(*, engine: str | None = None, command: str | None = None, as_json: bool) -> int:
    """Print all findings. Returns 0, or 4 if any is bad. Raises InputError (unknown engine)."""
    findings = examine(engine, shlex.split(command) if command else None)
    if as_json:
        result_json(
            {
                "findings": [
                    {"name": f.name, "state": f.state, "text": f.text, "hint": f.hint}
                    for f in findings
                ]
            }
        )
    else:
        result("\n".join(_lines(findings)))
    return 4 if any(finding.state == "bad" for finding in findings) else 0


def examine(engine: str | None, command: list[str] | None) -> list[Finding]:
    """All checks, in reading order. `engine` None: looked for only if a command is given."""
    gpus = list_gpus()
    asked = engine or ("vllm" if command else None)
    own = [doctor_engines.engine(asked, command)] if asked else []
    return [
        *own,
        *doctor_engines.docker_daemon(has_gpu=bool(gpus)),
        *doctor_engines.graphics(gpus),
        doctor_machine.cores(),
        doctor_machine.disk(Path.cwd()),
        *doctor_machine.caches(os.environ),
        doctor_machine.files(),
        doctor_machine.shared_memory(),
        doctor_machine.local_ports(),
        doctor_machine.usual_port(None if is_free(USUAL_PORT) else holder_of(USUAL_PORT)),
        doctor_machine.governor(),
        *doctor_engines.leftovers(left_processes(), left_containers()),
    ]


def _lines(findings: list[Finding]) -> list[str]:
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<5} {finding.name:<{width}}  {finding.text}")
        if finding.hint:
            lines.append(f"{'':<{width + 8}}{finding.hint}")
    return lines
