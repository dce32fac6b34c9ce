"""Whether a model fits, told before a launch: weights, KV cache and overheads from local files.

Formulas: with grouped-query attention the KV cache takes, per token, 2 x layers x KV heads of a GPU
x head size x bytes per element; with multi-head latent attention layers x (latent rank + rotary
size) x bytes, the same on every GPU. The budget follows vLLM: a share of the GPU, less weights,
activations, graphs and context. Overheads are taken at the low end, so that a refusal is certain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.canonical import Json

GIB = 2**30
_CONTEXT_BYTES = 0.5 * GIB
_GRAPH_BYTES = 0.3 * GIB
_BIG_GPU_BYTES = 70 * GIB
_MARGIN, _CORRECTED_MARGIN = 0.1, 0.05
_BELIEVABLE = 4.0
_DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_ONLINE_8_BIT = ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8")
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What one GPU would hold, in bytes and tokens. `asked_tokens`: the model length that one
    request may use; None where the engine chooses it to fit.
    """

    budget_bytes: float
    weights_bytes: float
    overhead_bytes: float
    kv_bytes_per_token: float
    asked_tokens: int | None
    margin: float = _MARGIN
    """Doubt, as a share of the budget."""

    @property
    def kv_bytes(self) -> float:
        """What is left for the KV cache; negative if the weights alone are too much."""
        return self.budget_bytes - self.weights_bytes - self.overhead_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds, 0 if there is none."""
        return max(0, int(self.kv_bytes / self.kv_bytes_per_token))

    @property
    def deficit_bytes(self) -> float:
        """How much is missing to hold one request of full length; 0 or less if it fits."""
        needed = (self.asked_tokens or 1) * self.kv_bytes_per_token
        return needed - self.kv_bytes

    @property
    def cannot_fit(self) -> bool:
        """Whether the deficit is beyond the doubt of this estimate."""
        return self.deficit_bytes > self.margin * self.budget_bytes

    def to_json(self) -> dict[str, Json]:
        """The estimate for files and tables, in GiB and tokens."""
        return {
            "budget_gib": round(self.budget_bytes / GIB, 2),
            "weights_gib": round(self.weights_bytes / GIB, 2),
            "overhead_gib": round(self.overhead_bytes / GIB, 2),
            "kv_gib": round(self.kv_bytes / GIB, 2),
            "kv_tokens": self.kv_tokens,
            "asked_tokens": self.asked_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How far real launches were from their estimates, as factors; 1 until there was one.

    Each is the lowest of all launches, so that a refusal stays certain. Not `believable`: the
    weights or the cache were off by more than four times, so that the formulas do not fit this
    model at all.
    """

    weights: float = 1.0
    overhead: float = 1.0
    per_token: float = 1.0
    launches: int = 0

    @property
    def believable(self) -> bool:
        low = 1 / _BELIEVABLE
        return all(low <= factor <= _BELIEVABLE for factor in (self.weights, self.per_token))

    def after(self, guess: MemoryEstimate, log: Mapping[str, float]) -> Calibration:
        """With one more launch: its uncorrected estimate and the numbers of its log
        (`memory_log.read_memory`). A log without the size of the cache teaches nothing.
        """
        cache, tokens = log.get("kv_gib"), log.get("kv_tokens")
        loaded = log.get("weights_gib", guess.weights_bytes / GIB) * GIB
        if not cache or cache < 0 or not tokens:
            return self
        overhead = guess.budget_bytes - loaded - cache * GIB
        weights = loaded / guess.weights_bytes
        beside = max(0.0, overhead) / guess.overhead_bytes
        per_token = cache * GIB / tokens / guess.kv_bytes_per_token
        if self.launches:
            weights, beside = min(weights, self.weights), min(beside, self.overhead)
            per_token = min(per_token, self.per_token)
        return Calibration(
            weights=weights, overhead=beside, per_token=per_token, launches=self.launches + 1
        )

    def corrected(self, guess: MemoryEstimate) -> MemoryEstimate:
        """An estimate with what launches taught."""
        if not self.launches:
            return guess
        return replace(
            guess,
            weights_bytes=guess.weights_bytes * self.weights,
            overhead_bytes=guess.overhead_bytes * self.overhead,
            kv_bytes_per_token=guess.kv_bytes_per_token * self.per_token,
            margin=_CORRECTED_MARGIN,
        )


def estimate(
    model_dir: Path, params: Mapping[str, Json], gpu_bytes: float
) -> MemoryEstimate | None:
    """The estimate for one GPU of `gpu_bytes` with these vLLM flags (canonical names).

    None where it cannot be told: no local folder with config.json and safetensors, layers that are
    not attention, a way of quantizing that is not known here, or weights kept outside the GPU.
    """
    config = model_config(model_dir)
    if config is None or float(params.get("cpu-offload-gb") or 0) > 0:
        return None
    tensor, pipeline = (
        whole(params, "tensor-parallel-size"),
        whole(params, "pipeline-parallel-size"),
    )
    weights = weights_bytes(model_dir, config, params)
    per_token = kv_bytes_per_token(config, params, tensor, pipeline)
    if weights is None or per_token is None:
        return None
    share = float(params.get("gpu-memory-utilization") or 0.92)
    overhead = _overhead_bytes(config, params, gpu_bytes, tensor)
    budget = share * gpu_bytes
    fixed_cache = size_of(params.get("kv-cache-memory-bytes"))
    if fixed_cache is not None:
        budget = weights / (tensor * pipeline) + overhead + fixed_cache
    asked = params.get("max-model-len", config.get("max_position_embeddings"))
    tokens = size_of(asked)
    return MemoryEstimate(
        budget_bytes=budget,
        weights_bytes=weights / (tensor * pipeline),
        overhead_bytes=overhead,
        kv_bytes_per_token=per_token,
        asked_tokens=int(tokens) if tokens is not None and tokens > 0 else None,
    )


def size_of(value: Json) -> float | None:
    """A size as vLLM reads it: 4096, "8k" (8,000), "8K" (8,192); None for `auto` and the like."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", value) if isinstance(value, str) else None
    return float(match[1]) * _SUFFIXES.get(match[2], 1) if match else None


def model_config(model_dir: Path) -> dict[str, Json] | None:
    """The `config.json` of a model folder, its text part on top; None if it cannot be read."""
    try:
        whole = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(whole, dict):
        return None
    text = whole.get("text_config")
    return {**whole, **text} if isinstance(text, dict) else whole


def whole(params: Mapping[str, Json], name: str) -> int:
    """A parameter as a whole number of at least 1, which it is where it is not given."""
    return max(1, int(params.get(name) or 1))


def weights_bytes(
    model_dir: Path, config: Mapping[str, Json], params: Mapping[str, Json]
) -> float | None:
    """Bytes of all weights by the safetensors files; None where quantizing makes them unknown."""
    files = {path.name: path.stat().st_size for path in model_dir.glob("*.safetensors")}
    # The same weights once more, in the maker's own layout.
    parts = {name: size for name, size in files.items() if not name.startswith("consolidated")}
    total = float(sum((parts or files).values()))
    quantization = params.get("quantization")
    if quantization is not None and "quantization_config" not in config:
        if quantization not in _ONLINE_8_BIT:
            return None
        total /= 2
    return total or None


def kv_bytes_per_token(
    config: Mapping[str, Json], params: Mapping[str, Json], tensor: int, pipeline: int
) -> float | None:
    """Bytes that a token takes in the KV cache of one GPU; None for layers beyond attention."""
    layers, hidden, heads = (
        config.get(name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    kinds = config.get("layer_types") or config.get("layers_block_type") or ["attention"]
    if not (layers and hidden and heads) or not all("attention" in str(kind) for kind in kinds):
        return None
    if any("linear" in str(kind) for kind in kinds):
        return None
    cache = str(params.get("kv-cache-dtype") or "auto")
    model = str(params.get("dtype") or "auto")
    model = str(config.get("dtype") or config.get("torch_dtype")) if model == "auto" else model
    size = 1 if cache.startswith(("fp8", "int8")) else _DTYPE_BYTES.get(model, 2)
    layers_here = -(-int(layers) // pipeline)
    latent = config.get("kv_lora_rank")
    if latent:
        return float(layers_here * (latent + (config.get("qk_rope_head_dim") or 0)) * size)
    kv_heads = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or hidden // heads
    return float(2 * layers_here * max(1, kv_heads // tensor) * head_size * size)


def _overhead_bytes(
    config: Mapping[str, Json], params: Mapping[str, Json], gpu_bytes: float, tensor: int
) -> float:
    big = gpu_bytes >= _BIG_GPU_BYTES
    tokens = size_of(params.get("max-num-batched-tokens")) or (8192 if big else 2048)
    seqs = min(size_of(params.get("max-num-seqs")) or (1024 if big else 256), tokens)
    hidden = float(config.get("hidden_size") or 0)
    inner = float(config.get("intermediate_size") or 4 * hidden)
    activations = tokens * (8 * hidden + 2 * inner / tensor) * 2
    logits = seqs * float(config.get("vocab_size") or 0) * 4 * 2
    graphs = 0.0 if params.get("enforce-eager") is True else _GRAPH_BYTES
    return activations + logits + graphs + _CONTEXT_BYTES
