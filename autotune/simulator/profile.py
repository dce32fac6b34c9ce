"""Hardware and model profiles: every number that the simulated engine knows, read from data.

A profile is a YAML file in `profiles/` (or a path given by the user). Its text says where its
numbers come from; `measured: false` marks invented ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.errors import InputError

GIB = float(1 << 30)
_FOLDER = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCoefficients:
    """The six numbers of the step time; all seconds (per token, per attention pair, ...)."""

    a_s: float
    m_s: float
    b_s: float
    c_s: float
    d_s: float
    f_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Multipliers on step coefficients; 1 leaves a coefficient as it is."""

    a: float = 1.0
    m: float = 1.0
    b: float = 1.0
    c: float = 1.0
    d: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """One way of holding the weights: bytes on the GPU and what it does to the step time. `loss`:
    the relative rise in perplexity.
    """

    size_bytes: float
    loss: float = 0.0
    factors: Factors = field(default_factory=Factors)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """One KV cache type: bytes per token over all layers, and what it does to the step time.
    `loss`: the relative rise in perplexity.
    """

    bytes_per_token: float
    loss: float = 0.0
    factors: Factors = field(default_factory=Factors)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What besides weights and KV cache takes GPU memory; bytes, or shares where named so.

    The `unplanned_*` part is what an engine's profile run does not see: it must fit outside the
    memory fraction, at graph capture and at the largest step that real load reaches.
    """

    idle_used: float
    context: float
    activation_per_token: float
    activation_base: float
    logits_per_seq: float
    graph_base: float
    graph_per_seq: float
    unplanned_base: float
    unplanned_share_at_capture: float
    unplanned_share_at_load: float
    unplanned_load_per_seq: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A simulated machine with one model on it. Times in seconds, sizes in bytes."""

    name: str
    title: str
    measured: bool
    attention_heads: int
    max_model_len: int
    vocab_size: int
    gpu_name: str
    gpu_count: int
    gpu_memory: float
    step: StepCoefficients
    request_overhead_s: float
    request_overhead_per_token_s: float
    weights: Mapping[str, Weights]
    kv_cache: Mapping[str, KvFormat]
    memory: MemoryFacts
    default_max_num_batched_tokens: int
    default_max_num_seqs: int
    default_gpu_memory_utilization: float
    default_block_size: int
    sync_host_s: float
    eager_floor_s: float
    tensor_parallel_efficiency: float
    attention_backends: Mapping[str, Factors]
    startup_s: float

    def loss(self, quantization: str, kv_cache_dtype: str) -> float:
        """The rise in perplexity under a weight and a KV format; unknown ones have none."""
        weights, cache = self.weights.get(quantization), self.kv_cache.get(kv_cache_dtype)
        by_weights = 0.0 if weights is None else weights.loss
        by_cache = 0.0 if cache is None else cache.loss
        return (1 + by_weights) * (1 + by_cache) - 1


def profile_names() -> tuple[str, ...]:
    """The names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_profile(name: str) -> Profile:
    """Read a shipped profile by name, or one of the user's by path (`*.yaml`).

    Raises InputError if there is none of that name, or if a key is missing or unknown.
    """
    if not name.endswith((".yaml", ".yml")) and name in profile_names():
        return _shipped(name)
    path = Path(name) if name.endswith((".yaml", ".yml")) else _FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise InputError(
            message=f"no simulator profile named {name}",
            seen=f"known profiles: {', '.join(profile_names())}",
            hint="name one of them, or give the path of a .yaml file",
        )
    return _read(path)


@lru_cache
def _shipped(name: str) -> Profile:
    return _read(_FOLDER / f"{name}.yaml")


def _read(path: Path) -> Profile:
    import yaml

    try:
        return profile_from_data(path.stem, yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            message=f"simulator profile {path} cannot be read",
            seen=f"{type(error).__name__}: {error}",
        ) from error


def profile_from_data(name: str, data: Mapping[str, Any]) -> Profile:
    """A profile from its parsed YAML. Raises KeyError or TypeError on missing or unknown keys."""
    model, gpu, request, defaults = (data[k] for k in ("model", "gpu", "request", "defaults"))
    assumed = data["assumed"]
    return Profile(
        name=name,
        title=data["title"],
        measured=bool(data["measured"]),
        attention_heads=model["attention_heads"],
        max_model_len=model["max_model_len"],
        vocab_size=model["vocab_size"],
        gpu_name=gpu["name"],
        gpu_count=gpu["count"],
        gpu_memory=gpu["memory_gib"] * GIB,
        step=_step(**data["step"]),
        request_overhead_s=request["r0_ms"] / 1e3,
        request_overhead_per_token_s=request["r1_us_per_prompt_token"] / 1e6,
        weights={key: _weights(**value) for key, value in data["weights"].items()},
        kv_cache={key: _kv_format(**value) for key, value in data["kv_cache"].items()},
        memory=_memory(**data["memory"]),
        default_max_num_batched_tokens=defaults["max_num_batched_tokens"],
        default_max_num_seqs=defaults["max_num_seqs"],
        default_gpu_memory_utilization=defaults["gpu_memory_utilization"],
        default_block_size=defaults["block_size"],
        sync_host_s=assumed["sync_host_ms"] / 1e3,
        eager_floor_s=assumed["eager_floor_ms"] / 1e3,
        tensor_parallel_efficiency=assumed["tensor_parallel_efficiency"],
        attention_backends={k: Factors(**v) for k, v in assumed["attention_backends"].items()},
        startup_s=float(data["startup_s"]),
    )


def _step(
    *,
    a_ms: float,
    m_ms: float,
    b_us_per_token: float,
    c_ns_per_pair: float,
    d_ns_per_context_token: float,
    f_ms: float,
) -> StepCoefficients:
    return StepCoefficients(
        a_s=a_ms / 1e3,
        m_s=m_ms / 1e3,
        b_s=b_us_per_token / 1e6,
        c_s=c_ns_per_pair / 1e9,
        d_s=d_ns_per_context_token / 1e9,
        f_s=f_ms / 1e3,
    )


def _weights(*, gib: float, loss: float = 0.0, **factors: float) -> Weights:
    return Weights(size_bytes=gib * GIB, loss=loss, factors=Factors(**factors))


def _kv_format(*, bytes_per_token: float, loss: float = 0.0, **factors: float) -> KvFormat:
    return KvFormat(bytes_per_token=bytes_per_token, loss=loss, factors=Factors(**factors))


def _memory(
    *,
    idle_used_gib: float,
    context_gib: float,
    activation_bytes_per_token: float,
    activation_base_gib: float,
    logits_bytes_per_seq: float,
    graph_base_gib: float,
    graph_mib_per_seq: float,
    unplanned: Mapping[str, float],
) -> MemoryFacts:
    return MemoryFacts(
        idle_used=idle_used_gib * GIB,
        context=context_gib * GIB,
        activation_per_token=activation_bytes_per_token,
        activation_base=activation_base_gib * GIB,
        logits_per_seq=logits_bytes_per_seq,
        graph_base=graph_base_gib * GIB,
        graph_per_seq=graph_mib_per_seq * (1 << 20),
        unplanned_base=unplanned["base_gib"] * GIB,
        unplanned_share_at_capture=unplanned["activation_share_at_capture"],
        unplanned_share_at_load=unplanned["activation_share_at_load"],
        unplanned_load_per_seq=unplanned["load_mib_per_seq"] * (1 << 20),
    )
