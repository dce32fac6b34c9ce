"""A measurement: the numbers of one replay, with their intervals and whether to trust them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.canonical import Json

Cause = Literal[
    "ended_early", "nothing_measured", "client_late", "client_busy", "client_ports", "not_sent",
    "wrong_length", "prompt_length", "wrong_server", "other_traffic", "too_few_samples",
    "not_stationary", "stopped_early",
]  # fmt: skip
"""Why a measurement is not simply valid, as a code for scripts."""
CLIENT_CAUSES: frozenset[Cause] = frozenset(
    {"client_late", "client_busy", "client_ports", "not_sent"}
)
"""Causes that lie with the replay client: more workers, or another try, may cure them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """`valid`: score it. `suspect`: score it, and say so. `invalid`: never score it. `causes`: a
    code (see `Cause`) for each of the `reasons`, in the same order.
    """

    verdict: Literal["valid", "suspect", "invalid"]
    reasons: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    @property
    def client_limited(self) -> bool:
        """Invalid, and the first (so: an invalidating) cause is the replay client's own."""
        return (
            self.verdict == "invalid"
            and self.causes[:1] != ()
            and (self.causes[0] in CLIENT_CAUSES)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The `measurement.json` contract.

    `metrics` maps a key with its unit (`ttft_p95_s`, `success_rate`, `output_throughput_tps`) to a
    finite number, or None when the metric is not defined for these requests. `intervals` maps the
    same keys to (low, high) 95 % order-statistic bounds; None for an end that does not exist.
    `unbounded` names percentile metrics whose failures-as-infinity value is infinite ("not met").
    `diagnosis` holds the prefill/decode diagnosis; `context` the cache state, warm-up counts, salt.
    `recorded_rate`: where this was measured at another rate, the metrics at the recorded one, if
    limits refer to them. `stopped_early`: where the replay was ended before its end, why (see
    `outcome.EarlyEnd`); the numbers are then about the requests that had ended by themselves.
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
    recorded_rate: Mapping[str, float | None] | None = None
    stopped_early: Mapping[str, Json] = field(default_factory=dict)

    @property
    def reference(self) -> Mapping[str, float | None]:
        """The metrics that limits relative to this launch refer to."""
        return self.metrics if self.recorded_rate is None else self.recorded_rate

    def to_json(self) -> dict[str, Json]:
        data: dict[str, Json] = {
            "validity": {
                "verdict": self.validity.verdict,
                "reasons": list(self.validity.reasons),
                "causes": list(self.validity.causes),
            },
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
        if self.recorded_rate is not None:
            data["recorded_rate"] = dict(self.recorded_rate)
        if self.stopped_early:
            data["stopped_early"] = dict(self.stopped_early)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Measurement:
        return cls(
            validity=Validity(
                verdict=data["validity"]["verdict"],
                reasons=tuple(data["validity"]["reasons"]),
                causes=tuple(data["validity"].get("causes", ())),
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
            recorded_rate=data.get("recorded_rate"),
            stopped_early=data.get("stopped_early", {}),
        )
