"""What the files of a hand-over say besides the launch: where it comes from, how it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.canonical import Json

Interval = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFact:
    """One measured number beside the baseline's.

    `unit` as in `spec.vocabulary.Unit`. Intervals are 95 %, None when there is only one
    measurement; `value` None: not measured.
    """

    name: str
    unit: str
    value: float | None
    interval: Interval | None = None
    baseline: float | None = None
    baseline_interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployFacts:
    """Everything that headers, README and manifest show. Plain values; no secrets, no prompts.

    `role`: `best`, `baseline` (the way back), or `trial` for any other one. `verdict` is one
    sentence. `metrics`: headline ones first. `image_digest` is the registry's `sha256:...`, None
    for an image that exists only here. `date` is the study's, ISO 8601. `changed`: knob ->
    (baseline's value, this value). `flag_notes`: flag without dashes -> why it is set, for the
    comment beside it. `caveats`: sentences on what was not shown. `directory`: the study directory
    as users know it. Seconds and bytes as measured; None where unknown.
    """

    study: str
    trial: int
    verdict: str
    metrics: tuple[MetricFact, ...]
    engine: str
    model: str
    date: str
    tool_version: str
    role: Literal["best", "baseline", "trial"] = "best"
    engine_version: str | None = None
    image_digest: str | None = None
    model_revision: str | None = None
    gpu: str | None = None
    driver: str | None = None
    workload: str | None = None
    workload_digest: str | None = None
    directory: str | None = None
    simulated: bool = False
    confirmed: bool = True
    validity: str | None = None
    caveats: tuple[str, ...] = ()
    changed: Mapping[str, tuple[Json, Json]] = field(default_factory=dict)
    flag_notes: Mapping[str, str] = field(default_factory=dict)
    startup_seconds: float | None = None
    e2e_p99_s: float | None = None
    host_memory_peak_bytes: float | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)

    @property
    def marks(self) -> str:
        """`SIMULATED`, `UNCONFIRMED`, both or nothing; travels with every number."""
        marks = ("SIMULATED" * self.simulated, "UNCONFIRMED" * (not self.confirmed))
        return ", ".join(mark for mark in marks if mark)
