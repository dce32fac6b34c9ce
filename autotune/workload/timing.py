"""Arrivals chosen by the user: for recordings without times, or in place of the recorded ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.workload.synthesis import Process
from autotune.workload.trace import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A process and the seed of its draws."""

    process: Process
    seed: int = 0

    @property
    def note(self) -> str:
        """What was done, in words."""
        process = self.process
        shape = f", burstiness {process.burstiness:g}" if process.kind == "gamma" else ""
        return (
            f"arrivals are not recorded ones: {process.kind}, {process.rate:g} per second{shape}, "
            f"seed {self.seed}; later turns follow the answers before them"
        )


def arriving(requests: Sequence[Request], arrivals: Arrivals) -> list[Request]:
    """The requests at the times of the process, in their order.

    An arrival is an independent request or the first turn of a session; a later turn keeps its
    distance from the first one, at least the pauses between.
    """
    times = arrivals.process.times(random.Random(f"arrivals {arrivals.seed}"))
    firsts: dict[str, tuple[float, float]] = {}
    pauses: dict[str, float] = {}
    placed = []
    for request in requests:
        session = request.session
        if session is None:
            placed.append(replace(request, at_s=next(times)))
            continue
        if session not in firsts:
            firsts[session] = (next(times), request.at_s)
        begun, recorded = firsts[session]
        pauses[session] = pauses.get(session, 0.0) + (request.gap_s or 0.0)
        after = max(request.at_s - recorded, pauses[session])
        placed.append(replace(request, at_s=begun + after))
    return placed
