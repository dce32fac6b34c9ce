"""Starting the simulated engine: phases with waits, log lines, and the failures that end it."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.clock import Clock
from autotune.simulator.config import EngineConfig
from autotune.simulator.log import ServerLog
from autotune.simulator.memory import MemoryPlan, OutOfMemory
from autotune.simulator.profile import GIB, Profile
from autotune.simulator.validation import Refusal, StartupFailure, out_of_memory_text

_RUNNER = "gpu_model_runner.py:5040"
_WORKER = "gpu_worker.py:760"
_CORE = "core.py:396"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds of each start-up phase."""

    weights: float
    compile: float
    kv: float
    graphs: float

    @classmethod
    def of(cls, total_s: float, config: EngineConfig) -> Phases:
        """Shares of the whole; eager mode neither compiles nor captures."""
        graphs = 0.0 if config.enforce_eager else 1.0
        return cls(
            weights=0.4 * total_s,
            compile=0.25 * total_s * graphs,
            kv=0.1 * total_s,
            graphs=0.25 * total_s * graphs,
        )


def log_refusal(log: ServerLog, refusal: Refusal) -> None:
    """The traceback and pydantic block that end vLLM when it refuses its settings."""
    log.plain("Traceback (most recent call last):")
    log.plain('  File "vllm/engine/arg_utils.py", in create_engine_config (simulated)')
    log.plain(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {refusal.config}\n"
        f"  Value error, {refusal.reason} [type=value_error, input_type=ArgsKwargs]"
    )


def log_death(log: ServerLog, out: OutOfMemory, profile: Profile) -> None:
    """What vLLM says when it runs out of memory under load."""
    log.fail("core.py:718", "EngineCore encountered a fatal error.")
    log.fail("core.py:718", "Traceback (most recent call last):")
    log.fail("core.py:718", '  File "vllm/v1/worker/gpu_model_runner.py", in execute_model')
    text = out_of_memory_text(out, profile.gpu_memory)
    log.fail("core.py:718", f"torch.OutOfMemoryError: {text}")
    log.fail("async_llm.py:480", "AsyncLLM output_handler failed.", process="APIServer")


def run_startup(
    *,
    model: str,
    config: EngineConfig,
    plan: MemoryPlan,
    failure: StartupFailure | None,
    profile: Profile,
    total_s: float,
    log: ServerLog,
    clock: Clock,
) -> bool:
    """Wait and log through all phases. False if `failure` ended the start."""
    phases = Phases.of(total_s, config)
    log.say(
        _CORE,
        f"Initializing a V1 LLM engine (v0.26.0+simulated) with config: model='{model}', "
        f"max_seq_len={config.max_model_len}, quantization={config.quantization}, "
        f"kv_cache_dtype={config.kv_cache_dtype}, "
        f"tensor_parallel_size={config.tensor_parallel_size}, "
        f"enforce_eager={config.enforce_eager}, device=simulated ({profile.gpu_name})",
        process="EngineCore",
    )
    if _ends(log, failure, "device"):
        return False
    _load_weights(model, plan, phases, failure, log, clock)
    if _ends(log, failure, "load"):
        return False
    if not config.enforce_eager:
        clock.sleep(phases.compile)
        log.say(
            "monitor.py:20",
            f"torch.compile took {phases.compile:.2f} s in total",
            process="EngineCore",
        )
    if _ends(log, failure, "profile"):
        return False
    _allocate_kv(config, plan, phases, failure, log, clock)
    if _ends(log, failure, "kv"):
        return False
    _capture_graphs(config, plan, phases, failure, log, clock)
    if _ends(log, failure, "capture") or _ends(log, failure, "sampler"):
        return False
    spent = phases.compile + phases.kv + phases.graphs
    log.say(
        _CORE,
        f"init engine (profile, create kv cache, warmup model) took {spent:.2f} s "
        f"(compilation: {phases.compile:.2f} s)",
        process="EngineCore",
    )
    return True


def _load_weights(
    model: str,
    plan: MemoryPlan,
    phases: Phases,
    failure: StartupFailure | None,
    log: ServerLog,
    clock: Clock,
) -> None:
    log.say(_RUNNER, f"Starting to load model {model}...", process="EngineCore")
    clock.sleep(phases.weights)
    if failure is not None and failure.phase == "load":
        return
    log.say(
        "default_loader.py:502",
        f"Loading weights took {phases.weights:.2f} seconds",
        process="EngineCore",
    )
    log.say(
        _RUNNER,
        f"Model loading took {plan.weights / GIB:.2f} GiB memory and {phases.weights:.6f} seconds",
        process="EngineCore",
    )


def _allocate_kv(
    config: EngineConfig,
    plan: MemoryPlan,
    phases: Phases,
    failure: StartupFailure | None,
    log: ServerLog,
    clock: Clock,
) -> None:
    clock.sleep(phases.kv)
    log.say(
        _WORKER,
        f"Available KV cache memory: {plan.kv_available / GIB:.2f} GiB",
        process="EngineCore",
    )
    if failure is not None and failure.phase == "kv":
        return
    tokens = plan.num_blocks * config.block_size
    log.say("kv_cache_utils.py:2328", f"GPU KV cache size: {tokens:,} tokens", process="EngineCore")
    log.say(
        "kv_cache_utils.py:2329",
        f"Maximum concurrency for {config.max_model_len:,} tokens per request: "
        f"{tokens / config.max_model_len:.2f}x",
        process="EngineCore",
    )


def _capture_graphs(
    config: EngineConfig,
    plan: MemoryPlan,
    phases: Phases,
    failure: StartupFailure | None,
    log: ServerLog,
    clock: Clock,
) -> None:
    if config.enforce_eager:
        return
    log.say(
        _RUNNER,
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE) up to "
        f"{config.captured_seqs} tokens",
        process="EngineCore",
    )
    clock.sleep(phases.graphs)
    if failure is not None and failure.phase == "capture":
        return
    log.say(
        _RUNNER,
        f"Graph capturing finished in {phases.graphs:.0f} secs, took {plan.graphs / GIB:.2f} GiB",
        process="EngineCore",
    )
    log.say(
        _WORKER,
        f"Free memory on device (cuda:0) ({plan.free_at_start / GIB:.2f}/{plan.total / GIB:.2f} "
        f"GiB) on startup. Desired GPU memory utilization is ({config.gpu_memory_utilization}, "
        f"{plan.requested / GIB:.2f} GiB). Actual usage is "
        f"{(plan.weights + plan.context) / GIB:.2f} GiB for consumed memory (weights + non-torch), "
        f"{plan.activation / GIB:.2f} GiB for peak activation, and {plan.graphs / GIB:.2f} GiB for "
        "CUDAGraph memory. Replace gpu_memory_utilization config with "
        f"`--kv-cache-memory={int(plan.kv_available)}` to fit into requested memory.",
        process="EngineCore",
    )


def _ends(log: ServerLog, failure: StartupFailure | None, phase: str) -> bool:
    if failure is None or failure.phase != phase:
        return False
    log.fail(_CORE, "EngineCore failed to start.")
    log.fail(_CORE, "Traceback (most recent call last):")
    file, _, function = failure.where.partition(", in ")
    log.fail(_CORE, f'  File "vllm/{file}", in {function or "__init__"}')
    log.fail(_CORE, f"{failure.kind}: {failure.text}")
    log.plain("Traceback (most recent call last):")
    log.plain(
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore': 1}"
    )
    return True
