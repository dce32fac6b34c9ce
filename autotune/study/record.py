"""One trial as it stands in `trials/NNNN/outcome.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal, cast

from autotune.canonical import Json
from autotune.engines.engine import Diagnosis, Fault, Phase
from autotune.space.candidate import Candidate

State = Literal["measured", "infeasible", "unmeasurable", "interrupted"]
Role = Literal["baseline", "search", "confirm", "check"]


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A finished trial; the only form in which trials are kept, shown and reported.

    `role`: trial 0 is the baseline; `confirm` trials repeat the baseline or a finalist after the
    search and carry `pair` (0, 1, ...), so that equal pairs are compared with each other; a `check`
    launches the baseline once more to tell a bad machine from bad candidates.
    `values`: objective text -> value (measured only). `constraints`: constraint text -> normalised
    violation (<= 0 holds). `limits`: constraint text -> absolute limit. `seconds`: phase -> seconds
    (`launching`, `warming`, `replaying`, `scoring`, `checking answers`, `stopping`, `total`).
    `fault`, `reason`, `phase`, `remedy`, `message`, `evidence` say why a trial has no values.
    `started_at` is ISO 8601 UTC.
    """

    number: int
    role: Role
    state: State
    params: Mapping[str, Json]
    values: Mapping[str, float] = field(default_factory=dict)
    constraints: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    feasible: bool = False
    pair: int | None = None
    fault: str | None = None
    reason: str | None = None
    phase: str | None = None
    remedy: str | None = None
    message: str | None = None
    evidence: tuple[str, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    """What a failure's log told in numbers and names (`Diagnosis.facts`)."""
    validity: str | None = None
    repeats: tuple[Mapping[str, float], ...] = ()
    """`values` of further measurements in the same launch (of the baseline, to learn the noise)."""
    started_at: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    simulated: bool = False
    why: str | None = None
    """Why the search tried it, in words; None where there is nothing to say."""
    predicted: Mapping[str, float] = field(default_factory=dict)
    """Metric key -> the value that the proposer expected, in base units."""
    cautious: Mapping[str, float] = field(default_factory=dict)
    """Constraint text -> its violation at the far end of the metric's interval, where the samples
    allow it: what the search goes by. `constraints` is about the observed values."""
    observed: Mapping[str, str] = field(default_factory=dict)
    """The other limits -> why only the observed value decides."""
    stopped_early: Mapping[str, Json] = field(default_factory=dict)
    """Why its replay was ended before its end (`outcome.EarlyEnd`), and the seconds saved."""
    memory: Mapping[str, Json] = field(default_factory=dict)
    """`estimate` (before the launch) and `log` (what the engine said), each name -> GiB or tokens
    of one GPU; only what is known."""
    quality: Mapping[str, Json] = field(default_factory=dict)
    """What the check of its answers found (`study/quality.py`, docs/quality.md); empty where none
    was due."""

    @property
    def is_repeat(self) -> bool:
        """Whether it tried nothing new: it is no part of the search and wins nothing."""
        return self.role in ("confirm", "check")

    @property
    def certain(self) -> bool:
        """Whether it keeps the limits, and not only by the observed values."""
        return self.feasible and all(by <= 0 for by in self.cautious.values())

    @property
    def search_violations(self) -> Mapping[str, float]:
        """What the search learns of the limits; of one that was stopped early only what is certain,
        under the key of its outcome.
        """
        known = {**self.constraints, **self.cautious}
        if self.stopped_early:
            known[str(self.stopped_early["key"])] = float(self.stopped_early["violation"])
        return known

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why an infeasible trial failed; None of others."""
        if self.state != "infeasible":
            return None
        return Diagnosis(
            fault=cast("Fault", self.fault or "unknown"),
            phase=cast("Phase", self.phase or "startup"),
            reason=self.reason or "",
            remedy=self.remedy,
            message=self.message or "",
            evidence=self.evidence,
            facts=self.facts,
        )

    @cached_property
    def candidate(self) -> Candidate:
        return Candidate(self.params)

    def to_json(self) -> dict[str, Json]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in data.items():
            if isinstance(value, Mapping):
                data[name] = dict(value)
        data["evidence"] = list(self.evidence)
        data["repeats"] = [dict(values) for values in self.repeats]
        return {**data, "candidate": self.candidate.fingerprint}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> TrialRecord:
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["evidence"] = tuple(values.get("evidence", ()))
        values["repeats"] = tuple(values.get("repeats", ()))
        return cls(**values)
