"""The synthetic workloads by name, as the arguments that make them; all of them are shipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.errors import InputError
from autotune.spec.nearest import nearest
from autotune.workload.scripted import (
    AGENT_TURNS,
    BURST,
    CALM,
    PERIOD_S,
    STEPS,
    TIERS,
    TURNS_PER_STREAM,
    Unit,
    agent_dialogue,
    burst,
    concurrency_step,
    near_limit,
    prefix_pair,
    rag_question,
    scripted,
    tier_prompt,
)
from autotune.workload.synthesis import Arrivals, Lengths, Part, Process, synthesize
from autotune.workload.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named mix of traffic. `rate` in requests/s; `burstiness` is the shape of gamma arrivals."""

    title: str
    parts: tuple[Part, ...]
    rate: float
    duration_s: float
    seed: int
    arrivals: Arrivals = "poisson"
    burstiness: float = 0.5
    block_size: int = 64
    per_unit = 1.0

    def trace(self, process: Process, *, seed: int, duration_s: float | None) -> Trace:
        """The requests, by another process, seed or duration if wanted."""
        return synthesize(
            self.parts,
            process=process,
            duration_s=self.duration_s if duration_s is None else duration_s,
            seed=seed,
            block_size=self.block_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Named traffic of `count` units, each of `per_unit` requests in the mean. `rate` counts
    requests/s; arrivals are those of whole units.
    """

    title: str
    unit: Unit
    count: int
    rate: float
    seed: int
    per_unit: float = 1.0
    arrivals: Arrivals = "poisson"
    burstiness: float = 0.5
    block_size: int = 256

    def trace(self, process: Process, *, seed: int, duration_s: float | None) -> Trace:
        """The requests; a stated duration outranks the number of units."""
        return scripted(
            self.unit,
            process=process,
            count=self.count if duration_s is None else None,
            duration_s=duration_s,
            seed=seed,
            block_size=self.block_size,
        )


_STEP_S = 30.0
_PER_STEP = TURNS_PER_STREAM * sum(STEPS) / len(STEPS)

SCENARIOS: Mapping[str, Scenario | Script] = {
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
    "chat-and-documents": Scenario(
        title="short chat mixed with a sixth of long documents, nothing shared between documents",
        parts=(
            Part(
                weight=0.84,
                inputs=Lengths(median=300, low=64, high=1500, spread=0.7),
                outputs=Lengths(median=120, low=8, high=500, spread=0.7),
                groups=3,
                shared_tokens=128,
            ),
            Part(
                weight=0.16,
                inputs=Lengths(median=12000, low=6000, high=28000, spread=0.4),
                outputs=Lengths(median=250, low=50, high=800, spread=0.5),
            ),
        ),
        rate=2.0,
        duration_s=90.0,
        seed=51,
        block_size=128,
    ),
    "prompt-tiers": Script(
        title="prompts of 8K, 16K, 32K and 64K tokens in turn, ten of each, nothing shared",
        unit=tier_prompt,
        count=10 * len(TIERS),
        rate=0.2,
        seed=61,
        arrivals="constant",
        block_size=512,
    ),
    "shared-prefix-pairs": Script(
        title="pairs of prompts: 20K tokens shared by the two, 1K of its own each",
        unit=prefix_pair,
        count=20,
        per_unit=2,
        rate=0.4,
        seed=71,
    ),
    "agent-dialogue": Script(
        title="agents at work: sessions of 20 turns, shared tools, each turn extends the last",
        unit=agent_dialogue,
        count=6,
        per_unit=AGENT_TURNS,
        rate=1.0,
        seed=81,
    ),
    "rag-documents": Script(
        title="RAG: instructions, 2 to 8 documents of 1K tokens from a corpus of 40, a question",
        unit=rag_question,
        count=180,
        rate=1.5,
        seed=91,
    ),
    "near-limit": Script(
        title="prompt and answer fill 98 to 100 % of a 32K context",
        unit=near_limit,
        count=30,
        rate=0.2,
        seed=101,
        block_size=512,
    ),
    "concurrency-steps": Script(
        title="1, 2, 4, then 8 streams at once, each asking again as soon as it is answered",
        unit=concurrency_step,
        count=len(STEPS),
        per_unit=_PER_STEP,
        rate=_PER_STEP / _STEP_S,
        seed=111,
        arrivals="constant",
    ),
    "bursts": Script(
        title="chat in bursts of 20 requests within half a second, every 15 s, little between",
        unit=burst,
        count=6,
        per_unit=BURST + CALM,
        rate=(BURST + CALM) / PERIOD_S,
        seed=121,
        arrivals="constant",
        block_size=64,
    ),
}


def make(
    name: str,
    *,
    seed: int | None = None,
    rate: float | None = None,
    duration_s: float | None = None,
    arrivals: Arrivals | None = None,
    recorded: Sequence[float] = (),
) -> Trace:
    """The trace of a scenario, with its own seed, rate, length and arrivals unless told otherwise.

    `rate` in requests/s; `recorded` arrivals, in seconds and in order, are those of requests, or of
    whole units (pairs, dialogues, bursts), and keep their own rate unless `rate` is given.

    Raises InputError for an unknown name and for numbers that make no traffic.
    """
    if name not in SCENARIOS:
        near = nearest(name, SCENARIOS)
        raise InputError(
            message=f"unknown scenario `{name}`",
            seen=f"known scenarios: {', '.join(sorted(SCENARIOS))}",
            hint=f"did you mean `{near[0]}`?" if near else None,
        )
    for what, value in (("rate", rate), ("duration", duration_s)):
        if value is not None and value <= 0:
            raise InputError(message=f"the {what} must be above 0", seen=f"{value:g}")
    scenario = SCENARIOS[name]
    kind = arrivals or ("recorded" if recorded else scenario.arrivals)
    if kind == "recorded" and not recorded:
        raise InputError(
            message="recorded arrivals need a recording",
            hint="name a workload with arrivals: `--arrivals-from FILE`",
        )
    asked = scenario.rate if rate is None and kind != "recorded" else rate
    process = Process(
        kind=kind,
        rate=None if asked is None else asked / scenario.per_unit,
        burstiness=scenario.burstiness,
        recorded=tuple(recorded),
    )
    seed = scenario.seed if seed is None else seed
    trace = scenario.trace(process, seed=seed, duration_s=duration_s)
    meta = {"source": "synthetic", "seed": seed, "rate": asked, "arrivals": kind}
    return replace(trace, meta={**meta, "scenario": name, "title": scenario.title})
