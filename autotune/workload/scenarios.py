"""The synthetic workloads that ship with autotune, as the arguments that make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.errors import InputError
from autotune.spec.nearest import nearest
from autotune.workload.synthesis import Arrivals, Lengths, Part, synthesize
from autotune.workload.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named mix of traffic. `rate` in requests/s."""

    title: str
    parts: tuple[Part, ...]
    rate: float
    duration_s: float
    seed: int
    arrivals: Arrivals = "poisson"
    burstiness: float = 1.0
    block_size: int = 64


SCENARIOS: Mapping[str, Scenario] = {
    "quickstart": Scenario(
        title="30 s of short chat mixed with long questions over shared documents",
        parts=(
            Part(
                weight=0.65,
                inputs=Lengths(median=260, low=100, high=900),
                outputs=Lengths(median=32, low=8, high=60, spread=0.4),
                groups=3,
                shared_tokens=64,
            ),
            Part(
                weight=0.35,
                inputs=Lengths(median=2100, low=1400, high=3000, spread=0.2),
                outputs=Lengths(median=16, low=8, high=40, spread=0.4),
                groups=6,
                shared_tokens=1024,
            ),
        ),
        rate=14.0,
        duration_s=30.0,
        seed=11,
    ),
    "chat-short": Scenario(
        title="short chat turns below one of a few system prompts",
        parts=(
            Part(
                inputs=Lengths(median=320, low=64, high=1500, spread=0.7),
                outputs=Lengths(median=120, low=8, high=500, spread=0.7),
                groups=4,
                shared_tokens=128,
            ),
        ),
        rate=4.0,
        duration_s=90.0,
        seed=21,
    ),
    "rag-long": Scenario(
        title="long prompts: popular documents in front, an own question behind, short answers",
        parts=(
            Part(
                inputs=Lengths(median=6000, low=2500, high=12000, spread=0.35),
                outputs=Lengths(median=90, low=16, high=300, spread=0.5),
                groups=12,
                shared_tokens=2304,
            ),
        ),
        rate=2.0,
        duration_s=120.0,
        seed=31,
        arrivals="gamma",
        burstiness=0.5,
        block_size=256,
    ),
    "cpu-tiny": Scenario(
        title="40 s of tiny prompts for a 135M model on two CPU cores",
        parts=(
            Part(
                inputs=Lengths(median=150, low=32, high=400, spread=0.6),
                outputs=Lengths(median=14, low=8, high=24, spread=0.3),
                groups=2,
                shared_tokens=64,
            ),
        ),
        rate=1.0,
        duration_s=40.0,
        seed=41,
        block_size=32,
    ),
}


def make(name: str, *, seed: int | None = None, rate: float | None = None) -> Trace:
    """The trace of a scenario, with its own seed and rate unless told otherwise.

    Raises InputError for an unknown name.
    """
    if name not in SCENARIOS:
        near = nearest(name, SCENARIOS)
        raise InputError(
            message=f"unknown scenario `{name}`",
            seen=f"known scenarios: {', '.join(sorted(SCENARIOS))}",
            hint=f"did you mean `{near[0]}`?" if near else None,
        )
    scenario = SCENARIOS[name]
    trace = synthesize(
        scenario.parts,
        rate=scenario.rate if rate is None else rate,
        duration_s=scenario.duration_s,
        seed=scenario.seed if seed is None else seed,
        arrivals=scenario.arrivals,
        burstiness=scenario.burstiness,
        block_size=scenario.block_size,
    )
    return replace(trace, meta={**trace.meta, "scenario": name, "title": scenario.title})
