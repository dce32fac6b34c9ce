"""Where the simulated GPU's memory goes, and when it does not suffice.

Follows vLLM's budget: the memory fraction holds weights, context, the profiled activation peak, the
graph estimate and the KV cache; what profiling did not see must fit in the rest of the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.simulator.config import EngineConfig
from autotune.simulator.profile import GIB, Profile

Stage = Literal["load", "profile", "sampler", "capture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Sizes in bytes on each GPU. `headroom` is what load may take beyond the memory fraction."""

    total: float
    free_at_start: float
    requested: float
    weights: float
    context: float
    activation: float
    graphs: float
    kv_available: float
    kv_bytes_per_token: float
    num_blocks: int
    headroom: float
    load_per_token: float
    load_per_seq: float

    def load_deficit(self, tokens: int, sequences: int) -> float:
        """Bytes missing for a step of so many tokens and sequences; zero or less: it fits."""
        return self.load_per_token * tokens + self.load_per_seq * sequences - self.headroom


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The GPU ran out: at which stage, how much was asked for and how much was free (bytes)."""

    stage: Stage
    asked: float
    free: float


def plan_memory(config: EngineConfig, profile: Profile) -> MemoryPlan:
    """Lay out the memory. `kv_available` may be negative and `num_blocks` 0; nothing is refused."""
    facts = profile.memory
    tp = config.tensor_parallel_size
    kv_token = profile.kv_cache[config.kv_cache_dtype].bytes_per_token / tp
    weights = profile.weights[config.quantization].size_bytes / tp
    activation = max(
        facts.activation_base + facts.activation_per_token * config.max_num_batched_tokens,
        facts.logits_per_seq * config.max_num_seqs,
    )
    captured = config.captured_seqs
    graphs = facts.graph_base + facts.graph_per_seq * captured if captured else 0.0
    requested = profile.gpu_memory * config.gpu_memory_utilization
    available = requested - weights - facts.context - activation - graphs
    blocks = int(max(0.0, available) // (kv_token * config.block_size))
    outside = profile.gpu_memory - requested
    return MemoryPlan(
        total=profile.gpu_memory,
        free_at_start=profile.gpu_memory - facts.idle_used,
        requested=requested,
        weights=weights,
        context=facts.context,
        activation=activation,
        graphs=graphs,
        kv_available=available,
        kv_bytes_per_token=kv_token,
        num_blocks=blocks,
        headroom=outside - facts.unplanned_base,
        load_per_token=facts.activation_per_token * facts.unplanned_share_at_load,
        load_per_seq=facts.unplanned_load_per_seq,
    )


def fits_max_model_len(plan: MemoryPlan, config: EngineConfig) -> int:
    """The longest request in tokens that the KV cache can hold, in whole blocks."""
    return plan.num_blocks * config.block_size


def startup_out_of_memory(
    plan: MemoryPlan, config: EngineConfig, profile: Profile
) -> OutOfMemory | None:
    """The first stage of start-up at which the GPU runs out, or None."""
    facts = profile.memory
    after_weights = plan.total - plan.context - plan.weights
    if after_weights < 0:
        return OutOfMemory(
            stage="load", asked=0.25 * GIB, free=max(0.0, after_weights + 0.25 * GIB)
        )
    if after_weights < plan.activation:
        return OutOfMemory(stage="profile", asked=plan.activation, free=after_weights)
    capture = (
        facts.activation_per_token
        * config.max_num_batched_tokens
        * facts.unplanned_share_at_capture
    )
    if not config.enforce_eager and capture > plan.headroom:
        return OutOfMemory(stage="capture", asked=capture, free=max(0.0, plan.headroom))
    sampler = plan.load_per_seq * config.max_num_seqs
    if sampler > plan.headroom:
        return OutOfMemory(stage="sampler", asked=sampler, free=max(0.0, plan.headroom))
    return None
