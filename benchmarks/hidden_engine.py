"""The truth that searches are judged by: engines whose step times differ in form and in every
coefficient from the model that the product calibrates, on three invented machines.

How it was made (before any search was run on it, and not changed since): machine figures are
rounded data-sheet arithmetic for an 8B model (weights 16 bit, 8 KV heads of 128, 32 layers) on
GPUs of 80, 48 and 24 GB at 50 to 60 % of peak FLOP and 80 to 90 % of bandwidth. Against the
product's `simulator/step_time.py` the form differs in this:

- compute and memory traffic overlap by a smooth maximum (p-norm of 4), and reading the KV cache is
  part of the traffic, not a term of its own;
- attention of prefill grows with pairs to the power of 0.97;
- prefill runs in tiles of 128 tokens, and a chunk costs as if it were 160 tokens longer;
- each sequence in a step costs host time; pure decode steps are padded to the next captured graph
  size, and those above the largest one pay for running without a graph;
- two of the machines compose a step when the one before it has ended (no look-ahead).

Knobs have effects that the product's simulator does not know at all (block size, attention backend
in both directions, graph capture size, performance mode) or knows with other factors (fp8, host
cost without asynchronous scheduling). Scheduler, KV cache and memory budget follow the product's
simulator, with other figures; what does not start says so in the engine's words. Two combinations
that work there are refused here. Each launch has 2 % noise (`hidden_noise.py`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hidden_noise import Blur

from autotune.clock import VirtualClock
from autotune.engines.plan import LaunchPlan
from autotune.simulator.cli import read, start
from autotune.simulator.config import EngineConfig
from autotune.simulator.core import Noise
from autotune.simulator.log import ServerLog
from autotune.simulator.memory import MemoryPlan, OutOfMemory, plan_memory
from autotune.simulator.profile import GIB, Profile, profile_from_data
from autotune.simulator.startup import log_death
from autotune.simulator.step_time import StepWork
from autotune.simulator.traffic import Traffic
from autotune.simulator.virtual import VirtualRun, simulate
from autotune.study.virtual_machine import VirtualLaunch

COLD_S, WARM_S, REFUSED_S = 90.0, 60.0, 12.0
"""Seconds of a start: with new graphs to compile, without, and of one refused at once."""
KV_BYTES = 131072
TILE, CHUNK_COST = 128, 160
NORM, PAIR_POWER = 4.0, 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Seconds: `host` per step, `sequence` per sequence in it, `weights` for reading the weights,
    `token` of compute per token, `pairs` per attention pair to `PAIR_POWER`, `context` per token of
    KV cache read, `ungraphed` for a decode step above the captured sizes. `ahead`: look-ahead.
    """

    memory_gib: float
    host: float
    sequence: float
    weights: float
    token: float
    pairs: float
    context: float
    ungraphed: float
    ahead: bool
    budget: int
    seqs: int


MACHINES: Mapping[str, Machine] = {
    "80 GB": Machine(
        memory_gib=79.2, host=1.3e-3, sequence=11e-6, weights=5.3e-3, token=29e-6, pairs=1.75e-9,
        context=44e-9, ungraphed=2.4e-3, ahead=False, budget=8192, seqs=1024,
    ),
    "48 GB": Machine(
        memory_gib=47.4, host=1.7e-3, sequence=16e-6, weights=20.5e-3, token=86e-6, pairs=4.9e-9,
        context=172e-9, ungraphed=3.1e-3, ahead=True, budget=2048, seqs=256,
    ),
    "24 GB": Machine(
        memory_gib=23.6, host=1.9e-3, sequence=14e-6, weights=18.0e-3, token=165e-6, pairs=9.4e-9,
        context=141e-9, ungraphed=2.9e-3, ahead=False, budget=2048, seqs=256,
    ),
}  # fmt: skip
BACKENDS: Mapping[str, tuple[float, float, float]] = {
    "FLASH_ATTN": (1.0, 1.0, 0.0),
    "FLASHINFER": (1.07, 0.86, 0.25e-3),
    "TRITON_ATTN": (1.28, 1.12, -0.15e-3),
}
"""Attention backend -> factors on attention and on reading the KV cache, seconds added per step."""
BLOCKS = {16: (1.0, 0.0), 32: (0.96, 0.05e-3), 64: (0.94, 0.2e-3)}
"""Block size -> factor on reading the KV cache, seconds added per step."""


@lru_cache
def profile_of(machine: str) -> Profile:
    """The machine as a profile: memory and requests count, its step coefficients are not used."""
    m = MACHINES[machine]
    return profile_from_data(
        machine,
        {
            "title": f"an invented 8B model on an invented GPU of {machine}",
            "measured": False,
            "model": {"attention_heads": 32, "max_model_len": 32768, "vocab_size": 32000},
            "gpu": {"name": machine, "count": 1, "memory_gib": m.memory_gib},
            "step": {"a_ms": 1, "m_ms": 1, "b_us_per_token": 1, "c_ns_per_pair": 1,
                     "d_ns_per_context_token": 1, "f_ms": 1},
            "request": {"r0_ms": 4.2, "r1_us_per_prompt_token": 0.35},
            "weights": {"auto": {"gib": 15.0}, "fp8": {"gib": 8.4}},
            "kv_cache": {"auto": {"bytes_per_token": KV_BYTES},
                         "fp8": {"bytes_per_token": KV_BYTES // 2}},
            "memory": {"idle_used_gib": 0.5, "context_gib": 0.35,
                       "activation_bytes_per_token": 155000, "activation_base_gib": 0.15,
                       "logits_bytes_per_seq": 256000, "graph_base_gib": 0.25,
                       "graph_mib_per_seq": 0.8,
                       "unplanned": {"base_gib": 0.35, "activation_share_at_capture": 0.28,
                                     "activation_share_at_load": 0.45, "load_mib_per_seq": 0.9}},
            "defaults": {"max_num_batched_tokens": m.budget, "max_num_seqs": m.seqs,
                         "gpu_memory_utilization": 0.92, "block_size": 16},
            "assumed": {"sync_host_ms": 0, "eager_floor_ms": 0, "tensor_parallel_efficiency": 1,
                        "attention_backends": {key: {} for key in BACKENDS}},
            "startup_s": COLD_S,
        },
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one launch set, as far as the hidden engine minds it."""

    config: EngineConfig
    captured: int
    interactive: bool


class HiddenSteps:
    """A `StepModel` of another form than the product's."""

    def __init__(self, machine: Machine, settings: Settings) -> None:
        config = settings.config
        attention, read, added = BACKENDS[config.attention_backend]
        block, block_added = BLOCKS[config.block_size]
        weights8 = config.quantization == "fp8"
        kv8 = config.kv_cache_dtype == "fp8"
        self._host = machine.host + added + block_added
        self._host += (0.2e-3 if weights8 else 0.0) - (0.25e-3 if settings.interactive else 0.0)
        self._host += 0.0 if config.async_scheduling else 0.9e-3
        self._sequence = machine.sequence
        self._weights = machine.weights * (0.58 if weights8 else 1.0)
        self._token = machine.token * (0.64 if weights8 else 1.0) * (1.03 if kv8 else 1.0)
        self._pairs = machine.pairs * attention * (0.88 if kv8 else 1.0)
        self._context = machine.context * read * block * (0.6 if kv8 else 1.0)
        self._captured = settings.captured
        self._exact_to = 32 if settings.interactive else 4
        self._ungraphed = machine.ungraphed

    def seconds(self, work: StepWork) -> float:
        """Duration of a step, without noise."""
        if work.prefills == 0:
            return self.pace(work.sequences)(work.context)
        rows = -(-work.tokens // TILE) * TILE + CHUNK_COST * work.prefills
        compute = self._token * rows + self._pairs * work.pairs**PAIR_POWER
        memory = self._weights + self._context * work.context
        host = self._host + self._sequence * work.sequences
        return host + (compute**NORM + memory**NORM) ** (1 / NORM)

    def pace(self, sequences: int) -> Callable[[int], float]:
        """See `StepModel.pace`."""
        graphed = sequences <= self._captured
        compute = (self._token * (self._padded(sequences) if graphed else sequences)) ** NORM
        host = self._host + self._sequence * sequences + (0.0 if graphed else self._ungraphed)
        weights, context = self._weights, self._context
        return lambda tokens: host + (compute + (weights + context * tokens) ** NORM) ** (1 / NORM)

    def _padded(self, sequences: int) -> int:
        if sequences <= self._exact_to:
            return sequences
        return -(-sequences // 8) * 8 if sequences <= 256 else -(-sequences // 32) * 32


class HiddenEngine:
    """A hidden engine that is up."""

    def __init__(self, machine: str, settings: Settings, blur: Blur) -> None:
        self.settings = settings
        self.blur = blur
        self._profile = profile_of(machine)
        self._steps = HiddenSteps(MACHINES[machine], settings)
        self._memory = memory_of(settings, self._profile)
        ahead = MACHINES[machine].ahead and settings.config.async_scheduling
        self._config = replace(settings.config, async_scheduling=ahead)

    def replay(self, traffic: Traffic) -> VirtualRun:
        """What a client sees, without `Blur.next_replay`, which its session lays on."""
        noise = Noise(share=0.0, seed=0, launch=self.blur.speed)
        return simulate(
            traffic, self._config, self._profile, noise=noise, model=self._steps,
            memory=self._memory,
        )  # fmt: skip

    def last_words(self, out: OutOfMemory) -> str:
        """See `VirtualEngine`."""
        text = io.StringIO()
        log_death(ServerLog(text, VirtualClock()), out, self._profile)
        return text.getvalue()


def memory_of(settings: Settings, profile: Profile) -> MemoryPlan:
    """The memory plan: graphs take memory by the captured size, interactive mode takes more."""
    plan = plan_memory(settings.config, profile)
    usual = settings.config.captured_seqs
    extra = (settings.captured - usual) * 0.8 * (1 << 20) + 0.3 * GIB * settings.interactive
    available = plan.kv_available - extra
    block = plan.kv_bytes_per_token * settings.config.block_size
    return replace(
        plan, kv_available=available, graphs=plan.graphs + extra,
        num_blocks=max(1, int(max(0.0, available) // block)),
    )  # fmt: skip


class HiddenMachine:
    """A `VirtualMachine` that starts hidden engines. `seed`: of the noise of its launches; None:
    there is none. `capacity`: launches are searched for their capacity.
    """

    def __init__(self, machine: str, *, seed: int | None, capacity: bool = False) -> None:
        self._machine = machine
        self._seed = seed
        self._capacity = capacity
        self._compiled: set[tuple[Any, ...]] = set()

    def launch(self, plan: LaunchPlan, trial: int) -> VirtualLaunch:
        """See `VirtualMachine`."""
        words = plan.argv_for("127.0.0.1", 8000)[plan.argv.index("serve") :]
        start = started(self._machine, words, COLD_S)
        if start.key in self._compiled:
            start = started(self._machine, words, WARM_S)
        if start.settings is None:
            return VirtualLaunch(log=start.log, seconds=start.seconds, exit_code=1)
        self._compiled.add(start.key)
        seed = None if self._seed is None else hash((self._seed, trial))
        blur = Blur(seed, capacity=self._capacity)
        engine = HiddenEngine(self._machine, start.settings, blur)
        return VirtualLaunch(log=start.log, seconds=start.seconds, engine=engine)


@dataclass(frozen=True, slots=True)
class Started:
    """A start: its log, its seconds, what it compiles for, and the settings; None: it failed."""

    log: str
    seconds: float
    key: tuple[Any, ...]
    settings: Settings | None


@lru_cache(maxsize=50_000)
def started(machine: str, words: tuple[str, ...], usual_s: float) -> Started:
    """What a start by this command line comes to, if a start takes `usual_s`."""
    text, clock = io.StringIO(), VirtualClock()
    log = ServerLog(text, clock)
    asked = read(words, log)
    assert asked is not None
    args, model, _ = asked
    key = (args.max_num_batched_tokens, args.max_num_seqs, args.quantization,
           args.max_cudagraph_capture_size, args.performance_mode)  # fmt: skip
    if (why := unsupported(vars(args))) is not None:
        log.fail("core.py:396", "EngineCore failed to start.")
        log.fail("core.py:396", f"ValueError: {why}")
        return Started(text.getvalue(), REFUSED_S, key, None)
    config = start(args, model, profile_of(machine), {}, log, clock, total_s=usual_s)
    if config is None:
        return Started(text.getvalue(), max(REFUSED_S, clock.monotonic()), key, None)
    return Started(text.getvalue(), clock.monotonic(), key, settings_of(vars(args), config))


def settings_of(args: Mapping[str, Any], config: EngineConfig) -> Settings:
    """What the hidden engine takes from the command line beside the product's own settings."""
    size = args.get("max_cudagraph_capture_size")
    return Settings(
        config=config,
        captured=config.captured_seqs if size is None else size,
        interactive=args.get("performance_mode") == "interactivity",
    )


def unsupported(args: Mapping[str, Any]) -> str | None:
    """What this engine refuses although its flags look fine, in its words."""
    backend, size = args.get("attention_backend"), args.get("block_size") or 16
    reason = None
    if backend == "TRITON_ATTN" and args.get("kv_cache_dtype") == "fp8":
        reason = "kv_cache_dtype not supported"
    if backend == "FLASHINFER" and size == 64:
        reason = "block_size not supported"
    if reason is None:
        return None
    return (
        f"Selected backend AttentionBackendEnum.{backend} is not valid for this configuration. "
        f"Reason: ['{reason}']"
    )
