"""Names that conditions may use besides knobs and fixed flags, each with what it means.

Fixed flags stand under their own names (`max-model-len`). A fact that is not known in a study is
left out: what depends on it is undecided.
"""

from __future__ import annotations

FACTS: dict[str, str] = {
    "engine.kind": "vllm, sglang, simulated, simulated-sglang or generic",
    "engine.version": "version of the engine, a text compared as a version",
    "gpu.count": "GPUs that the study may use; 0 without any",
    "gpu.name": "name of the first GPU",
    "gpu.compute_capability": "CUDA compute capability of the first GPU, such as 8.9",
    "gpu.memory_gib": "memory of the first GPU, GiB",
    "model.architecture": "class name in the model's config, such as Qwen2ForCausalLM",
    "model.dtype": "data type in the model's config, such as bfloat16",
    "model.experts": "experts per layer; 0 for a dense model",
    "model.head_dim": "size of an attention head",
    "model.heads": "attention heads",
    "model.hidden_size": "width of the model",
    "model.kv_heads": "key-value heads",
    "model.layers": "transformer layers",
    "model.max_length": "longest context the model was made for, tokens",
    "model.mla": "whether attention is multi-head latent",
    "model.quantized": "whether the checkpoint is quantised already",
    "workload.requests": "requests replayed",
    "workload.rate_mean": "requests per second, mean",
    "workload.rate_peak": "requests in the busiest second",
    "workload.input_p50": "prompt tokens, median",
    "workload.input_p95": "prompt tokens, 95th percentile",
    "workload.input_p99": "prompt tokens, 99th percentile",
    "workload.input_max": "prompt tokens, longest",
    "workload.output_p50": "answer tokens, median",
    "workload.output_p95": "answer tokens, 95th percentile",
    "workload.output_max": "answer tokens, longest",
    "workload.total_max": "prompt plus answer tokens, longest request",
    "workload.prefix_reuse": "share of prompt tokens that repeat an earlier prompt's start",
    "workload.sessions": "conversations; 0 for independent requests",
}
"""Fact name -> meaning."""

FACT_PREFIXES = ("engine.", "gpu.", "model.", "workload.")
