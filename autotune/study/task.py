"""What one trial shall do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.space.candidate import Candidate
from autotune.study.record import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What one trial shall do. Plain values, so that another process could do it.

    `held_out`: replay the held-out window instead of the search window. `baseline`: metrics that
    relative limits refer to (None: this trial is its own reference). `deadline_s`: seconds from
    its start until its replay must be over. `start_s`: seconds that its start is expected to take.
    `to_beat`: the first objective's value of the best trial so far, in its base unit; a replay that
    cannot reach it any more may be ended early (None: run to the end). `seen`: the first
    objective's value that these settings had in an earlier launch. `slot`: which of the host's
    shares (GPUs, cores) it runs on. `repeats`: further measurements in the same launch, each in a
    cache state of its own, to learn how much they differ without a cause. `why`, `predicted`: the
    proposer's reason, and metric key -> the value in base units that it expects.
    """

    number: int
    role: Role
    candidate: Candidate
    pair: int | None = None
    held_out: bool = False
    baseline: Mapping[str, float | None] | None = None
    deadline_s: float | None = None
    start_s: float | None = None
    to_beat: float | None = None
    seen: float | None = None
    slot: int = 0
    repeats: int = 0
    why: str | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
