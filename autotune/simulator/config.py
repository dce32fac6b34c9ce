"""The effective settings of a simulated engine: what was asked, completed by defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.simulator.profile import Profile

MAX_CAPTURED_SEQS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings that change what the simulated engine does. Tokens, sequences and shares."""

    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float
    block_size: int
    kv_cache_dtype: str = "auto"
    quantization: str = "auto"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    enforce_eager: bool = False
    async_scheduling: bool = True
    tensor_parallel_size: int = 1
    attention_backend: str = "FLASH_ATTN"
    stream_interval: int = 1
    gpu_count: int = 1

    @property
    def captured_seqs(self) -> int:
        """The largest batch that CUDA graphs are captured for; 0 when eager."""
        if self.enforce_eager:
            return 0
        return min(2 * self.max_num_seqs, MAX_CAPTURED_SEQS, self.max_num_batched_tokens)


def resolve_config(asked: Mapping[str, Any], profile: Profile) -> EngineConfig:
    """Complete the asked settings (names with underscores, None or absent where not given).

    Defaults follow vLLM 0.26: budget and sequence limit by GPU size, the default sequence limit
    capped by the budget, the default budget raised to the model length when prefill is not chunked,
    both doubled by `performance_mode=throughput`.
    """
    given = {key: value for key, value in asked.items() if value is not None}
    doubled = 2 if given.get("performance_mode") == "throughput" else 1
    length = given.get("max_model_len", profile.max_model_len)
    chunked = given.get("enable_chunked_prefill", True)
    budget = given.get("max_num_batched_tokens")
    if budget is None:
        budget = profile.default_max_num_batched_tokens * doubled
        if not chunked:
            budget = max(budget, length)
        if "max_num_seqs" in given:
            budget = min(budget, given["max_num_seqs"] * length)
    seqs = given.get("max_num_seqs", min(profile.default_max_num_seqs * doubled, budget))
    eager = bool(given.get("enforce_eager", False)) or given.get("optimization_level") == 0
    backend = given.get("attention_backend", "auto")
    return EngineConfig(
        max_model_len=length,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        gpu_memory_utilization=given.get(
            "gpu_memory_utilization", profile.default_gpu_memory_utilization
        ),
        block_size=given.get("block_size", profile.default_block_size),
        kv_cache_dtype=given.get("kv_cache_dtype", "auto"),
        quantization=given.get("quantization", "auto"),
        enable_prefix_caching=given.get("enable_prefix_caching", True),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=given.get("long_prefill_token_threshold", 0),
        enforce_eager=eager,
        async_scheduling=given.get("async_scheduling", True),
        tensor_parallel_size=given.get("tensor_parallel_size", 1),
        attention_backend="FLASH_ATTN" if backend == "auto" else backend,
        stream_interval=given.get("stream_interval", 1),
        gpu_count=given.get("sim_gpus", profile.gpu_count),
    )
