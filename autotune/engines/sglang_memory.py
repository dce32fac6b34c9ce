"""SGLang's memory budget: what it chooses by itself, and whether a model fits.

`mem-fraction-static` is the share of the GPU for weights and KV cache; activations, graphs and the
rest of the engine live outside it (`arg_groups/memory_hook.py` of 0.5.23, `server_args.py` before).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.canonical import Json
from autotune.engines.memory import (
    GIB,
    MemoryEstimate,
    kv_bytes_per_token,
    model_config,
    size_of,
    weights_bytes,
    whole,
)

MIB = 2**20
_CONTEXT_BYTES = 0.3 * GIB
# GPU memory (MiB) below which: prefill chunk, decode batch in graphs with up to 3 GPUs, with more
_TIERS = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
)
_LARGEST = (16384, 512, 512)


def default_chunk(gpu_bytes: float) -> int:
    """`chunked-prefill-size` in tokens where it is not given."""
    return _tier(gpu_bytes)[0]


def default_fraction(params: Mapping[str, Json], gpu_bytes: float) -> float:
    """`mem-fraction-static` where it is not given: what is left after 512 MiB, 1.5 MiB per token of
    a chunk, 1 GiB per 8 GPUs and 2 MiB per sequence in graphs, at least 10 GiB on a GPU above 60.
    """
    chunk, small, large = _tier(gpu_bytes)
    tensor = whole(params, "tp-size")
    asked = int(size_of(params.get("chunked-prefill-size")) or chunk)
    if asked < 0:
        asked = int(size_of(params.get("max-prefill-tokens")) or 16384)
    batch = size_of(params.get("cuda-graph-max-bs-decode", params.get("cuda-graph-max-bs")))
    graphs = 0.0 if params.get("disable-cuda-graph") is True else 2 * (
        batch or (small if tensor < 4 else large)
    )  # fmt: skip
    gpus = tensor * whole(params, "pp-size")
    reserved = 512 + 1.5 * max(asked, 2048) + gpus / 8 * 1024 + graphs
    total = gpu_bytes / MIB
    if total > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((total - reserved) / total, 3)


def estimate(
    model_dir: Path, params: Mapping[str, Json], gpu_bytes: float
) -> MemoryEstimate | None:
    """The estimate for one GPU of `gpu_bytes` with these SGLang flags (canonical names).

    SGLang starts with any pool that holds something, and refuses longer requests later: so what
    must fit is the weights. None where it cannot be told, as for vLLM.
    """
    config = model_config(model_dir)
    if config is None or float(params.get("cpu-offload-gb") or 0) > 0:
        return None
    tensor, pipeline = whole(params, "tp-size"), whole(params, "pp-size")
    weights = weights_bytes(model_dir, config, params)
    per_token = kv_bytes_per_token(config, params, tensor, pipeline)
    if weights is None or per_token is None:
        return None
    share = params.get("mem-fraction-static")
    fraction = float(share) if share is not None else default_fraction(params, gpu_bytes)
    return MemoryEstimate(
        budget_bytes=fraction * gpu_bytes,
        weights_bytes=weights / (tensor * pipeline),
        overhead_bytes=fraction * _CONTEXT_BYTES,
        kv_bytes_per_token=per_token,
        asked_tokens=None,
    )


def _tier(gpu_bytes: float) -> tuple[int, int, int]:
    found = ((chunk, few, many) for below, chunk, few, many in _TIERS if gpu_bytes < below * MIB)
    return next(found, _LARGEST)
