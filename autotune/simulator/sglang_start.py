"""Starting the simulated SGLang: its refusals, its start-up log, and the failures that end it.

Texts follow SGLang 0.5.23. A failure after the arguments is a child's: the server then kills
itself.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from autotune.clock import Clock
from autotune.engines.sglang_memory import default_chunk
from autotune.simulator import sglang_arguments as arguments
from autotune.simulator.config import EngineConfig, resolve_config
from autotune.simulator.log import SglangLog
from autotune.simulator.memory import MemoryPlan, OutOfMemory, plan_memory, startup_out_of_memory
from autotune.simulator.profile import GIB, Profile
from autotune.simulator.startup import Phases
from autotune.simulator.validation import out_of_memory_text

_KV_TYPES = {"fp8_e5m2": "fp8", "bf16": "bfloat16"}
_SEES = "This can take up to several minutes."


def start(
    args: argparse.Namespace, profile: Profile, log: SglangLog, clock: Clock, total_s: float
) -> EngineConfig | None:
    """Check the settings and start the engine up. None if it ended there; the log says why."""
    asked = arguments.asked_of(args)
    asked["kv_cache_dtype"] = _KV_TYPES.get(asked["kv_cache_dtype"], asked["kv_cache_dtype"])
    config = _with_fraction(args, resolve_config(asked, profile), profile)
    refusal = _refusal(args, config, profile)
    if refusal is not None:
        log.traceback(refusal, 'File "sglang/srt/server_args.py", in resolve_once')
        return None
    log.say("server_args", f"server_args=ServerArgs({_given(args)})")
    _warn(args, log)
    plan = plan_memory(config, profile)
    failure = startup_out_of_memory(plan, config, profile)
    return config if _run(config, plan, failure, profile, log, clock, total_s) else None


def log_death(log: SglangLog, out: OutOfMemory, profile: Profile) -> None:
    """What SGLang says when it runs out of memory under load."""
    text = f"torch.OutOfMemoryError: {out_of_memory_text(out, profile.gpu_memory)}"
    log.child_fails(text, "forward_extend")


def _with_fraction(
    args: argparse.Namespace, config: EngineConfig, profile: Profile
) -> EngineConfig:
    """The share of the GPU that the engine takes in all; by default as much as the profile's."""
    if config.quantization not in profile.weights or config.kv_cache_dtype not in profile.kv_cache:
        return config
    if args.mem_fraction_static is None:
        return config
    share = arguments.whole_fraction(args.mem_fraction_static, config, profile)
    return replace(config, gpu_memory_utilization=share)


def _refusal(args: argparse.Namespace, config: EngineConfig, profile: Profile) -> str | None:
    """The first rule that the settings break, as the exception's line."""
    chunk = args.chunked_prefill_size or default_chunk(profile.gpu_memory)
    tp, heads = config.tensor_parallel_size, profile.attention_heads
    share = args.mem_fraction_static
    if chunk > 0 and args.page_size and chunk % args.page_size:
        return "AssertionError: chunked_prefill_size must be divisible by page_size"
    if args.schedule_conservativeness is not None and args.schedule_conservativeness < 0:
        return "AssertionError: schedule_conservativeness must be non-negative"
    if args.enable_hierarchical_cache and args.disable_radix_cache:
        return (
            "ValueError: The arguments enable-hierarchical-cache and disable-radix-cache are "
            "mutually exclusive and cannot be used at the same time."
        )
    if config.max_model_len > profile.max_model_len:
        return (
            f"ValueError: User-specified context_length ({config.max_model_len}) is greater than "
            f"the derived context_length ({profile.max_model_len})."
        )
    if tp > config.gpu_count:
        return "RuntimeError: CUDA error: invalid device ordinal"
    if heads % tp:
        return f"AssertionError: {heads} is not divisible by {tp}"
    if share is not None and not 0 < share < 1:
        return f"ValueError: mem_fraction_static must be between 0 and 1, got {share}."
    if config.quantization not in profile.weights:
        return f"ValueError: Cannot find the config file for {config.quantization}"
    if config.kv_cache_dtype not in profile.kv_cache:
        return f"ValueError: Unsupported kv_cache_dtype: {args.kv_cache_dtype}."
    return None


def _given(args: argparse.Namespace) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in arguments.non_default(args).items())


def _warn(args: argparse.Namespace, log: SglangLog) -> None:
    for name in arguments.ACCEPTED:
        given = getattr(args, name.replace("-", "_"), None)
        if given is not None and name not in arguments.SILENT:
            log.caution("simulator", f"--{name} is accepted but not modelled: it has no effect")


def _run(
    config: EngineConfig, plan: MemoryPlan, failure: OutOfMemory | None, profile: Profile,
    log: SglangLog, clock: Clock, total_s: float,
) -> bool:  # fmt: skip
    """Wait and log through all phases; False if a failure ended the start."""
    phases = Phases.of(total_s, config)
    # SGLang profiles nothing: what does not fit beside the pool shows when graphs are captured
    stage = None if failure is None else "load" if failure.stage == "load" else "capture"
    text = "" if failure is None else out_of_memory_text(failure, plan.total)
    free = plan.total - plan.context
    log.rank(f"Load weight begin. avail mem={free / GIB:.2f} GB")
    clock.sleep(phases.weights)
    if stage == "load":
        log.child_fails(f"torch.OutOfMemoryError: {text}", "load_model")
        return False
    log.rank(
        f"Load weight end. elapsed={phases.weights:.2f} s, type=SimulatedForCausalLM, "
        f"avail mem={(free - plan.weights) / GIB:.2f} GB, mem usage={plan.weights / GIB:.2f} GB."
    )
    clock.sleep(phases.kv)
    tokens = plan.num_blocks * config.block_size
    if tokens == 0:
        words = "Not enough memory. Please try to increase --mem-fraction-static."
        log.child_fails(f"RuntimeError: {words}", "init_memory_pool")
        return False
    half = tokens * plan.kv_bytes_per_token / 2 / GIB
    log.rank(
        f"KV Cache is allocated. dtype: {config.kv_cache_dtype}, #tokens: {tokens}, "
        f"K size: {half:.2f} GB, V size: {half:.2f} GB"
    )
    left = (plan.total - plan.requested + plan.activation + plan.graphs) / GIB
    log.rank(f"Memory pool end. avail mem={max(left, 0.0):.2f} GB")
    if not _capture(config, plan, stage, text, phases, log, clock):
        return False
    log.rank(
        f"max_total_num_tokens={tokens}, chunked_prefill_size={_chunk(config)}, "
        f"max_prefill_tokens=16384, max_running_requests={config.max_num_seqs}, "
        f"context_len={config.max_model_len}, available_gpu_mem={max(left, 0.0):.2f} GB"
    )
    return True


def _capture(
    config: EngineConfig, plan: MemoryPlan, stage: str | None, text: str, phases: Phases,
    log: SglangLog, clock: Clock,
) -> bool:  # fmt: skip
    if not config.enforce_eager:
        log.rank(f"Capture target decode CUDA graph begin. {_SEES}")
        clock.sleep(phases.compile + phases.graphs)
    if stage == "capture":
        log.child_fails(f"Exception: Capture cuda graph failed: {text}", "capture")
        return False
    if not config.enforce_eager:
        log.rank(
            f"Capture target decode CUDA graph end. elapsed={phases.graphs:.2f} s, "
            f"mem usage={plan.graphs / GIB:.2f} GB."
        )
    return True


def _chunk(config: EngineConfig) -> int:
    return config.max_num_batched_tokens if config.enable_chunked_prefill else -1
