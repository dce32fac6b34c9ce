"""What the fast simulation takes and gives: requests, an engine's limits, its pace, and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.simulator.profile import StepCoefficients

AMPLE = 1 << 40
"""A KV cache, or a number of seats, that is never used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request. `at_s`: due, seconds; a job `after` another (its place) is due when that one has
    ended plus `gap_s`, not before `at_s`. `chain`: ids of its prompt's leading pieces of
    `Load.piece_tokens` tokens, equal where prompts are equal. Only the `measured` are waited for.
    """

    at_s: float
    prompt: int
    output: int
    after: int | None = None
    gap_s: float = 0.0
    chain: tuple[int, ...] = ()
    measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of the engine. `primed`: pieces that are in the prefix cache at the start.
    `rate`: jobs come so many times as fast as their times say; gaps stay.
    """

    jobs: tuple[Job, ...]
    piece_tokens: int = 512
    primed: tuple[int, ...] = ()
    rate: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The engine's settings as far as they decide what a step computes. `lookahead`: a step is
    composed when the one before it starts. `mixed`: prompts and decoding share steps; otherwise
    decoding stands still while there is a prompt to compute.
    """

    budget: int
    seqs: int
    chunked: bool = True
    threshold: int = 0
    prefix_caching: bool = True
    lookahead: bool = True
    mixed: bool = True
    kv_tokens: int = AMPLE
    block_size: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things take: the step's coefficients (seconds), the least step, and what a request
    costs before the scheduler sees it (`r1_s` per prompt token, one request after the other).
    `chunk_s`: what each prompt with a share in a step costs beside its tokens.
    """

    step: StepCoefficients
    r0_s: float = 0.0
    r1_s: float = 0.0
    floor_s: float = 0.0
    chunk_s: float = 0.0


@dataclass(slots=True)
class Times:
    """Seconds from the start per job, in the order given; infinite for what never happened.

    `most_seated`, `most_tokens`: the most requests and KV tokens that were there, or asked for, at
    once. Where neither limit `blocked` anybody, all limits from these on give the same times.
    `ranked` keeps latencies in order, once somebody has asked for them.
    """

    due: list[float]
    scheduled: list[float]
    first: list[float]
    last: list[float]
    cached: list[int]
    end_s: float = 0.0
    most_seated: int = 0
    most_tokens: int = 0
    preemptions: int = 0
    seats_blocked: bool = False
    memory_blocked: bool = False
    ranked: dict[str, list[float]] = field(default_factory=dict)


def simultaneous(prompt: int, output: int, count: int) -> Load:
    """`count` equal requests at once, from an idle engine: a probe."""
    return Load(jobs=tuple([Job(at_s=0.0, prompt=prompt, output=output)] * count))


def jobs_at(moments: Sequence[float], prompts: Sequence[int], outputs: Sequence[int]) -> Load:
    """Independent requests that share nothing."""
    return Load(
        jobs=tuple(
            Job(at_s=at_s, prompt=prompt, output=output)
            for at_s, prompt, output in zip(moments, prompts, outputs, strict=True)
        )
    )
