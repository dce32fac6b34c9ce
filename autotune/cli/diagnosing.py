"""`diagnose`: why an engine failed, from its log."""

from __future__ import annotations

from pathlib import Path

from autotune.cli.console import result, result_json
from autotune.engines.catalog import engine_for
from autotune.engines.engine import ExitInfo, Phase
from autotune.errors import InputError


def diagnose(
    log: Path, engine: str, exit_code: int | None, phase: Phase | None, *, as_json: bool
) -> int:
    """Classify a log and print it. Returns 0: having found a fault is no failure."""
    try:
        text = log.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise InputError(message=f"cannot read {log}", seen=error.strerror) from error
    exit_info = None if exit_code is None else ExitInfo(code=exit_code)
    found = engine_for(engine).diagnose(text.splitlines(), exit_info, phase)
    if as_json:
        result_json(found.to_json())
        return 0
    lines = [found.message, ""]
    lines += [f"  fault    {found.fault}", f"  phase    {found.phase}"]
    lines += [f"  reason   {found.reason}", f"  remedy   {found.remedy or 'none known'}"]
    lines += [f"  log      {line}" for line in found.evidence]
    result("\n".join(lines))
    return 0
