"""What vLLM refuses before and while it starts, in vLLM's words.

Texts follow vLLM 0.26 to 0.32, so that the same signatures recognise the simulated failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.simulator.config import EngineConfig
from autotune.simulator.memory import (
    MemoryPlan,
    OutOfMemory,
    fits_max_model_len,
    startup_out_of_memory,
)
from autotune.simulator.profile import GIB, Profile

PREQUANTIZED = ("awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "modelopt")
_MEMORY_PAGE = "See the page on conserving memory of the engine's documentation for more details."


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A configuration that is refused. `config` names the pydantic model (`SchedulerConfig`)."""

    config: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFailure:
    """The engine core cannot start. `kind` is the exception's name, `where` vLLM's source line,
    `phase` the last start-up phase that was reached.
    """

    phase: str
    kind: str
    text: str
    where: str


def check_config(config: EngineConfig, profile: Profile, env: Mapping[str, str]) -> Refusal | None:
    """The first rule that the settings break, in the order in which vLLM builds its parts."""
    return (
        _check_model(config, profile, env)
        or _check_cache(config, profile)
        or _check_parallel(config)
        or _check_scheduler(config)
        or _check_whole(config, profile)
    )


def _check_model(config: EngineConfig, profile: Profile, env: Mapping[str, str]) -> Refusal | None:
    derived = profile.max_model_len
    allowed = env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    if config.max_model_len > derived and not allowed:
        return Refusal(
            config="ModelConfig",
            reason=f"User-specified max_model_len ({config.max_model_len}) is greater than the "
            f"derived max_model_len (max_position_embeddings={derived} or model_max_length=None in "
            "model's config.json). To allow overriding this maximum, set the env var "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with "
            "extreme caution.",
        )
    known = config.quantization in profile.weights
    if not known and config.quantization not in PREQUANTIZED:
        names = ", ".join(repr(name) for name in (*profile.weights, *PREQUANTIZED))
        return Refusal(
            config="ModelConfig",
            reason=f"Unknown quantization method: {config.quantization}. Must be one of [{names}].",
        )
    return None


def _check_cache(config: EngineConfig, profile: Profile) -> Refusal | None:
    if not 0 < config.gpu_memory_utilization <= 1:
        return Refusal(
            config="CacheConfig",
            reason="gpu_memory_utilization must be greater than 0 and less than or equal to 1, "
            f"got {config.gpu_memory_utilization}.",
        )
    return None


def _check_parallel(config: EngineConfig) -> Refusal | None:
    if config.tensor_parallel_size <= config.gpu_count:
        return None
    return Refusal(
        config="ParallelConfig",
        reason=f"World size ({config.tensor_parallel_size}) is larger than the number of "
        f"available GPUs ({config.gpu_count}) in this node. If this is intentional and you are "
        "using: - ray, set '--distributed-executor-backend ray'. - multiprocessing, set "
        "'--nnodes' appropriately.",
    )


def _check_scheduler(config: EngineConfig) -> Refusal | None:
    budget, seqs, length = (
        config.max_num_batched_tokens,
        config.max_num_seqs,
        config.max_model_len,
    )
    reason = None
    if budget < 1 or length < 1:
        reason = (
            f"max_num_batched_tokens ({budget}) and max_model_len ({length}) must be greater than "
            "or equal to 1."
        )
    elif budget < length and not config.enable_chunked_prefill:
        reason = (
            f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({length}). This "
            "effectively limits the maximum sequence length to max_num_batched_tokens and makes "
            "vLLM reject longer sequences. Please increase max_num_batched_tokens or decrease "
            "max_model_len."
        )
    elif budget < seqs:
        reason = (
            f"max_num_batched_tokens ({budget}) must be greater than or equal to max_num_seqs "
            f"({seqs})."
        )
    elif config.long_prefill_token_threshold > length:
        reason = (
            f"long_prefill_token_threshold ({config.long_prefill_token_threshold}) cannot be "
            f"greater than the max_model_len ({length})."
        )
    return Refusal(config="SchedulerConfig", reason=reason) if reason else None


def _check_whole(config: EngineConfig, profile: Profile) -> Refusal | None:
    heads, tp = profile.attention_heads, config.tensor_parallel_size
    if heads % tp:
        return Refusal(
            config="VllmConfig",
            reason=f"Total number of attention heads ({heads}) must be divisible by tensor "
            f"parallel size ({tp}).",
        )
    if config.quantization not in profile.weights:
        return Refusal(
            config="VllmConfig", reason=f"Cannot find the config file for {config.quantization}"
        )
    return None


def check_kv_format(config: EngineConfig, profile: Profile) -> StartupFailure | None:
    """Why the GPU cannot hold this type of KV cache, or None."""
    if config.kv_cache_dtype in profile.kv_cache:
        return None
    return StartupFailure(
        phase="device",
        kind="ValueError",
        text="No valid attention backend found for cuda with AttentionSelectorConfig("
        f"kv_cache_dtype={config.kv_cache_dtype}, block_size={config.block_size}). Reasons: "
        f"{{{config.attention_backend}: [kv_cache_dtype not supported]}}.",
        where="platforms/cuda.py, in get_attn_backend_cls",
    )


def check_start(
    plan: MemoryPlan, config: EngineConfig, profile: Profile, *, backend_asked: bool = False
) -> StartupFailure | None:
    """Why the engine core cannot start with this memory, or None.

    `backend_asked`: the attention backend was named by the user, so it is not replaced silently.
    """
    if backend_asked and config.block_size % 16:
        return StartupFailure(
            phase="device",
            kind="ValueError",
            text=f"Selected backend AttentionBackendEnum.{config.attention_backend} is not valid "
            "for this configuration. Reason: ['block_size not supported']",
            where="platforms/cuda.py",
        )
    if plan.requested > plan.free_at_start:
        return StartupFailure(
            phase="device",
            kind="ValueError",
            text=f"Free memory on device cuda:0 ({_gib(plan.free_at_start)}/{_gib(plan.total)} "
            "GiB) on startup is less than desired GPU memory utilization "
            f"({config.gpu_memory_utilization}, {_gib(plan.requested)} GiB). Decrease GPU memory "
            "utilization or reduce GPU memory used by other processes.",
            where="v1/worker/utils.py",
        )
    out = startup_out_of_memory(plan, config, profile)
    if out is not None and out.stage in {"load", "profile"}:
        return _out_of_memory_failure(out, plan, config)
    return _check_kv(plan, config) or (_out_of_memory_failure(out, plan, config) if out else None)


def _check_kv(plan: MemoryPlan, config: EngineConfig) -> StartupFailure | None:
    where = "v1/core/kv_cache_utils.py"
    if plan.num_blocks == 0:
        return StartupFailure(
            phase="kv",
            kind="ValueError",
            text="No available memory for the cache blocks. Try increasing "
            f"`gpu_memory_utilization` when initializing the engine. {_MEMORY_PAGE}",
            where=where,
        )
    fits = fits_max_model_len(plan, config)
    if fits >= config.max_model_len:
        return None
    needed = config.max_model_len * plan.kv_bytes_per_token
    return StartupFailure(
        phase="kv",
        kind="ValueError",
        text="To serve at least one request with the model's max seq len "
        f"({config.max_model_len}), ({_gib(needed)} GiB KV cache is needed, which is larger than "
        f"the available KV cache memory ({_gib(plan.kv_available)} GiB). Based on the available "
        f"memory, the estimated maximum model length is {fits}. Try increasing "
        "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine. "
        f"{_MEMORY_PAGE}",
        where=where,
    )


def _out_of_memory_failure(
    out: OutOfMemory, plan: MemoryPlan, config: EngineConfig
) -> StartupFailure:
    where = {
        "load": "v1/worker/gpu_model_runner.py, in load_model",
        "profile": "v1/worker/gpu_model_runner.py, in profile_run",
        "capture": "v1/worker/gpu_model_runner.py, in capture_model",
        "sampler": "v1/worker/gpu_model_runner.py, in _dummy_sampler_run",
    }[out.stage]
    if out.stage == "sampler":
        return StartupFailure(
            phase="sampler",
            kind="RuntimeError",
            text="CUDA out of memory occurred when warming up sampler with "
            f"{config.max_num_seqs} dummy requests. Please try lowering `max_num_seqs` or "
            "`gpu_memory_utilization` when initializing the engine.",
            where=where,
        )
    return StartupFailure(
        phase=out.stage,
        kind="torch.OutOfMemoryError",
        text=out_of_memory_text(out, plan.total),
        where=where,
    )


def out_of_memory_text(out: OutOfMemory, total: float) -> str:
    """PyTorch's sentence for an allocation that failed; sizes in bytes."""
    return (
        f"CUDA out of memory. Tried to allocate {_size(out.asked)}. GPU 0 has a total capacity of "
        f"{_gib(total)} GiB of which {_size(out.free)} is free."
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def _size(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / (1 << 20):.2f} MiB"
