"""What an engine's start-up log says of memory, as numbers. The lines are in `facts/*.yaml`; of a
line that tells several parts of one number, the sum counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from autotune.engines.facts import engine_facts

_SMALLEST = ("kv_gib", "kv_tokens", "concurrency")
"""Of several ranks the one with least decides; of anything else the one that takes most."""


def read_memory(lines: Iterable[str], engine: str) -> dict[str, float]:
    """Name -> GiB or tokens of one GPU: `weights_gib`, `kv_gib`, `kv_tokens`, `graphs_gib`,
    `activation_gib`, `concurrency`; only what the log says. {} for an engine that is not known.
    """
    patterns = [
        (name, pattern)
        for name, found in engine_facts(engine).memory_log.items()
        for pattern in found
    ]
    numbers: dict[str, list[float]] = {}
    for line in lines:
        for name, pattern in patterns:
            match = pattern.search(line)
            if match is not None:
                parts = [float(text.replace(",", "")) for text in match.groups() if text]
                numbers.setdefault(name, []).append(sum(parts))
    return {
        name: min(found) if name in _SMALLEST else max(found) for name, found in numbers.items()
    }
