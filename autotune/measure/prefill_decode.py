"""The prefill/decode diagnosis of a trial: where the time went, with the evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from autotune.canonical import Json
from autotune.measure.metrics import e2e, ttft
from autotune.replay.records import RequestRecord

Bound = Literal[
    "prefill", "decode", "mixed", "queue", "kv_cache", "sequence_cap", "client", "unknown"
]
KNOBS: Mapping[str, Mapping[Bound, tuple[str, ...]]] = {
    "vllm": {
        "prefill": ("max-num-batched-tokens", "enable-prefix-caching", "tensor-parallel-size"),
        "decode": ("max-num-seqs", "max-num-batched-tokens", "quantization", "speculative-config"),
        "queue": ("max-num-batched-tokens", "max-num-seqs"),
        "kv_cache": ("gpu-memory-utilization", "kv-cache-dtype", "max-num-seqs", "max-model-len"),
        "sequence_cap": ("max-num-seqs",),
    },
    "sglang": {
        "prefill": ("chunked-prefill-size", "schedule-policy", "tp-size"),
        "decode": ("max-running-requests", "chunked-prefill-size", "quantization"),
        "queue": ("chunked-prefill-size", "max-running-requests"),
        "kv_cache": ("mem-fraction-static", "kv-cache-dtype", "max-running-requests"),
        "sequence_cap": ("max-running-requests",),
    },
}
"""Engine -> what bounds a candidate -> the flags that bear on it, the likeliest first."""
FLAGS_OF = {"simulated": "vllm", "simulated-sglang": "sglang"}
"""Engines that take another one's flags."""

PREFILL_SHARE = 0.7
DECODE_SHARE = 0.3
KV_FULL = 0.95
QUEUE_SHARE = 0.5


def diagnose_load(
    records: Sequence[RequestRecord],
    telemetry: Mapping[str, float | None],
    *,
    max_num_seqs: float | None = None,
    engine: str | None = None,
    spoiled: Sequence[str] = (),
) -> dict[str, Json]:
    """What bounds this candidate: `{"bound": ..., "ttft_share": x|null, "evidence": [...],
    "knobs": [...]}`, the flags that bear on it where `engine` has known ones.

    `telemetry`: the keys of `telemetry.Telemetry.summary`. `max_num_seqs`: the engine's cap on
    running sequences where known. `spoiled`: why the client itself was the limit, if it was; then
    that is the answer, whatever the server looked like. A KV cache that is full goes before a
    sequence cap, both before a queue without a known reason; only then the share of TTFT in e2e
    decides (above 0.7: prefill, below 0.3: decode). `bound` is `unknown` where no request
    succeeded.
    """
    share = ttft_share(records)
    evidence: list[str] = []
    bound: Bound = "unknown"
    if share is not None:
        evidence.append(f"the wait for the first token is {share:.0%} of the whole answer")
        bound = (
            "prefill" if share > PREFILL_SHARE else "decode" if share < DECODE_SHARE else "mixed"
        )
    if _queued(records, telemetry, evidence):
        bound = "queue"
    if _capped(telemetry, max_num_seqs, evidence):
        bound = "sequence_cap"
    if _kv_full(telemetry, evidence):
        bound = "kv_cache"
    if spoiled:
        bound = "client"
        evidence[:0] = spoiled
    knobs = KNOBS.get(FLAGS_OF.get(engine or "", engine or ""), {}).get(bound, ())
    return {"bound": bound, "ttft_share": share, "evidence": evidence, "knobs": list(knobs)}


def ttft_share(records: Sequence[RequestRecord]) -> float | None:
    """Sum of TTFT over sum of e2e, measured successes only; None without any."""
    pairs = [
        (ttft(record), e2e(record))
        for record in records
        if record.measured and record.failure is None
    ]
    known = [(first, whole) for first, whole in pairs if first is not None and whole is not None]
    total = math.fsum(whole for _, whole in known)
    return math.fsum(first for first, _ in known) / total if total > 0 else None


def _queued(
    records: Sequence[RequestRecord], telemetry: Mapping[str, float | None], evidence: list[str]
) -> bool:
    queue = telemetry.get("queue_p95")
    waits = sorted(
        wait
        for wait in (ttft(record) for record in records if record.measured and not record.failure)
        if wait is not None
    )
    if queue is None or not waits:
        return False
    typical = waits[len(waits) // 2]
    if queue <= QUEUE_SHARE * typical:
        return False
    evidence.append(
        f"the engine's own queue holds requests for {1000 * queue:.3g} ms (p95), "
        f"the median wait for the first token is {1000 * typical:.3g} ms"
    )
    return True


def _capped(
    telemetry: Mapping[str, float | None], max_num_seqs: float | None, evidence: list[str]
) -> bool:
    running, waiting = telemetry.get("running_max"), telemetry.get("waiting_max")
    if max_num_seqs is None or running is None or not waiting or running < max_num_seqs:
        return False
    evidence.append(
        f"{running:.0f} sequences ran at once, which is the cap, while up to {waiting:.0f} waited"
    )
    return True


def _kv_full(telemetry: Mapping[str, float | None], evidence: list[str]) -> bool:
    preemptions, usage = telemetry.get("preemptions"), telemetry.get("kv_usage_max")
    if preemptions:
        evidence.append(f"{preemptions:.0f} requests were preempted for lack of KV cache")
    full = usage is not None and usage >= KV_FULL
    if full:
        evidence.append(f"the KV cache was {usage:.0%} full")
    return bool(preemptions) or full
