"""What is known before the first launch: the names that conditions and rules may use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.canonical import Json
from autotune.launch.gpus import Gpu, among

_MODEL_KEYS = {
    "model.head_dim": ("head_dim",),
    "model.heads": ("num_attention_heads", "n_head"),
    "model.hidden_size": ("hidden_size", "n_embd"),
    "model.kv_heads": ("num_key_value_heads",),
    "model.layers": ("num_hidden_layers", "n_layer"),
    "model.max_length": ("max_position_embeddings", "n_positions"),
    "model.dtype": ("dtype", "torch_dtype"),
}
"""Fact -> its names in a model's config.json, first found wins."""


def model_facts(model: str) -> dict[str, Json]:
    """Facts of a local model folder; {} for a model that is only a name."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    facts: dict[str, Json] = {}
    for fact, names in _MODEL_KEYS.items():
        found = [inner[name] for name in names if inner.get(name) is not None]
        if found:
            facts[fact] = found[0]
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        facts["model.architecture"] = architectures[0]
    experts = [inner.get(n) for n in ("num_experts", "num_local_experts", "n_routed_experts")]
    facts["model.experts"] = next((e for e in experts if isinstance(e, int)), 0)
    facts["model.mla"] = inner.get("kv_lora_rank") is not None
    facts["model.quantized"] = "quantization_config" in config
    if "model.kv_heads" not in facts and "model.heads" in facts:
        facts["model.kv_heads"] = facts["model.heads"]
    return facts


def gpu_facts(gpus: list[Gpu], wanted: tuple[str, ...] | None) -> dict[str, Json]:
    """Facts of the GPUs that the study may use (`wanted` None: all of them)."""
    chosen = among(gpus, wanted)
    if not chosen:
        return {"gpu.count": 0}
    first = chosen[0]
    return {
        "gpu.count": len(chosen),
        "gpu.name": first.name,
        "gpu.compute_capability": first.compute_capability,
        "gpu.memory_gib": round(first.memory_usable / 1024**3, 1),
    }


def workload_facts(description: Mapping[str, Json]) -> dict[str, Json]:
    """Facts of the replayed window, from its description."""
    inputs, outputs = description["input_tokens"], description["output_tokens"]
    facts = {
        "workload.requests": description["requests"],
        "workload.rate_mean": description["rate_mean"],
        "workload.rate_peak": description["rate_peak_1s"],
        "workload.input_p50": inputs["p50"],
        "workload.input_p95": inputs["p95"],
        "workload.input_p99": inputs["p99"],
        "workload.input_max": inputs["max"],
        "workload.output_p50": outputs["p50"],
        "workload.output_p95": outputs["p95"],
        "workload.output_max": outputs["max"],
        "workload.total_max": description["total_tokens_max"],
        "workload.prefix_reuse": description["prefix_reuse"],
        "workload.sessions": description["sessions"] or 0,
    }
    return {name: value for name, value in facts.items() if value is not None}


def sequence_cap(argv: Sequence[str]) -> int | None:
    """The cap on running sequences that a launch line sets; None where it leaves the default."""
    found: int | None = None
    for word, following in zip(argv, (*argv[1:], ""), strict=False):
        name, _, value = word.partition("=")
        text = value or following
        if name in ("--max-num-seqs", "--max-running-requests") and text.isdigit():
            found = int(text)
    return found
