"""A measurement: the numbers of one replay, with their intervals and whether to trust them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.canonical import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """`valid`: score it. `suspect`: score it, and say so. `invalid`: never score it."""

    verdict: Literal["valid", "suspect", "invalid"]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The `measurement.json` contract.

    `metrics` maps a key with its unit (`ttft_p95_s`, `success_rate`, `output_throughput_tps`) to a
    finite number, or None when the metric is not defined for these requests. `intervals` maps the
    same keys to (low, high) 95 % order-statistic bounds; None for an end that does not exist.
    `unbounded` names percentile metrics whose failures-as-infinity value is infinite ("not met").
    `diagnosis` holds the prefill/decode diagnosis; `context` the cache state, warm-up counts, salt.
    """

    validity: Validity
    planned: int
    ok: int
    failed: int
    failed_by_reason: Mapping[str, int]
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, tuple[float | None, float | None]]
    client: Mapping[str, Json]
    unbounded: tuple[str, ...] = ()
    diagnosis: Mapping[str, Json] = field(default_factory=dict)
    context: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {
            "validity": {"verdict": self.validity.verdict, "reasons": list(self.validity.reasons)},
            "requests": {
                "planned": self.planned,
                "ok": self.ok,
                "failed": self.failed,
                "failed_by_reason": dict(self.failed_by_reason),
            },
            "metrics": dict(self.metrics),
            "intervals": {key: list(pair) for key, pair in self.intervals.items()},
            "client": dict(self.client),
            "unbounded": list(self.unbounded),
            "diagnosis": dict(self.diagnosis),
            "context": dict(self.context),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Measurement:
        return cls(
            validity=Validity(
                verdict=data["validity"]["verdict"], reasons=tuple(data["validity"]["reasons"])
            ),
            planned=data["requests"]["planned"],
            ok=data["requests"]["ok"],
            failed=data["requests"]["failed"],
            failed_by_reason=data["requests"]["failed_by_reason"],
            metrics=data["metrics"],
            intervals={key: (low, high) for key, (low, high) in data["intervals"].items()},
            client=data["client"],
            unbounded=tuple(data.get("unbounded", ())),
            diagnosis=data.get("diagnosis", {}),
            context=data.get("context", {}),
        )
