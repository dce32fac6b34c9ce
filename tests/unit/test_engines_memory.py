"""The memory estimate, against figures that are known for public models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.memory import GIB, MemoryEstimate, estimate, size_of

LLAMA_8B: dict[str, Any] = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip


def model(tmp_path: Path, config: dict[str, Any], weights_bytes: int) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(weights_bytes)  # sparse: takes no room
    return tmp_path


def of(folder: Path, gpu_gib: float = 80, **params: Any) -> MemoryEstimate:
    flags = {name.replace("_", "-"): value for name, value in params.items()}
    found = estimate(folder, flags, gpu_gib * GIB)
    assert found is not None
    return found


def test_grouped_query_attention_costs_what_is_published(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA_8B, 16 * GIB)
    assert of(folder).kv_bytes_per_token == 128 * 1024
    assert of(folder, tensor_parallel_size=4).kv_bytes_per_token == 32 * 1024
    assert of(folder, tensor_parallel_size=16).kv_bytes_per_token == 16 * 1024
    assert of(folder, kv_cache_dtype="fp8").kv_bytes_per_token == 64 * 1024


def test_latent_attention_is_the_same_on_every_gpu(tmp_path: Path) -> None:
    config = LLAMA_8B | {
        "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    }  # fmt: skip
    folder = model(tmp_path, config, 16 * GIB)
    assert of(folder).kv_bytes_per_token == pytest.approx(68.6 * 1024, rel=0.01)
    assert of(folder, tensor_parallel_size=8).kv_bytes_per_token == of(folder).kv_bytes_per_token


def test_weights_beyond_the_gpu_cannot_fit_until_they_are_spread(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA_8B, 140 * GIB)
    assert of(folder).cannot_fit
    assert of(folder).kv_tokens == 0
    assert not of(folder, tensor_parallel_size=4).cannot_fit


def test_a_long_model_length_cannot_fit_a_small_gpu(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA_8B, 15 * GIB)
    assert not of(folder, gpu_gib=24).cannot_fit
    assert of(folder, gpu_gib=24, max_model_len=131072).cannot_fit
    assert not of(folder, gpu_gib=24, max_model_len="auto").cannot_fit
    fixed = of(folder, gpu_gib=24, kv_cache_memory_bytes="1G", max_model_len=131072)
    assert fixed.kv_bytes == pytest.approx(GIB)


def test_a_little_too_much_is_left_to_a_launch(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA_8B, 15 * GIB)
    base = of(folder, gpu_gib=24)
    length = base.kv_tokens + int(0.05 * base.budget_bytes / base.kv_bytes_per_token)
    tight = of(folder, gpu_gib=24, max_model_len=length)
    assert tight.deficit_bytes > 0
    assert not tight.cannot_fit


def test_what_cannot_be_told_is_not_guessed(tmp_path: Path) -> None:
    assert estimate(tmp_path, {}, GIB) is None
    hybrid = LLAMA_8B | {"layer_types": ["linear_attention", "full_attention"]}
    assert estimate(model(tmp_path, hybrid, GIB), {}, 80 * GIB) is None
    folder = model(tmp_path, LLAMA_8B, GIB)
    assert estimate(folder, {"quantization": "some-new-way"}, 80 * GIB) is None
    assert estimate(folder, {"cpu-offload-gb": 4}, 80 * GIB) is None


def test_sizes_are_read_as_the_engine_reads_them() -> None:
    assert [size_of(text) for text in (4096, "8k", "8K", "1.5m", "auto", None)] == [
        4096, 8000, 8192, 1.5e6, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        ({}, 2_151_968),
        ({"max_num_batched_tokens": 512}, 2_170_048),
        ({"max_num_batched_tokens": 2048}, 2_166_448),
        ({"max_num_batched_tokens": 32768}, 2_094_032),
        ({"max_num_seqs": 16}, 2_151_968),
        ({"quantization": "fp8", "kv_cache_dtype": "fp8"}, 4_531_984),
    ],
)
def test_the_cache_that_a_real_gpu_had_is_estimated_within_one_percent(
    tmp_path: Path, flags: dict[str, Any], tokens: int
) -> None:
    """`GPU KV cache size` of vLLM on one H200, a model of Qwen2.5-7B's shapes with a small
    vocabulary (12.34 GiB of weights), memory fraction 0.92.
    """
    config = {
        "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 18944, "vocab_size": 4096,
        "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
    }  # fmt: skip
    folder = model(tmp_path, config, int(12.34 * GIB))
    usable = 150_109_880_320  # what CUDA calls the total: the driver's own part is gone
    found = of(folder, usable / GIB, max_model_len=32768, **flags)
    assert found.kv_tokens == pytest.approx(tokens, rel=0.01)
