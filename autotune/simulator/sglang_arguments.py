"""The command line of the simulated SGLang: its spellings and values, from its own flag table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from autotune.engines.flag_table import TableFlag, read_table
from autotune.simulator.memory import plan_memory
from autotune.simulator.profile import Profile

VERSION = "0.5.23"
"""The version whose flags it has."""
MODELLED = (
    "model-path", "served-model-name", "host", "port", "api-key", "context-length",
    "mem-fraction-static", "max-running-requests", "chunked-prefill-size", "max-prefill-tokens",
    "page-size", "kv-cache-dtype", "quantization", "dtype", "tp-size", "disable-radix-cache",
    "disable-cuda-graph", "disable-overlap-schedule", "stream-interval", "attention-backend",
    "enable-metrics", "enable-cache-report", "stream-response-default-include-usage", "log-level",
    "log-level-http",
)  # fmt: skip
ACCEPTED = (
    "schedule-policy", "schedule-conservativeness", "enable-mixed-chunk", "prefill-max-requests",
    "num-continuous-decode-steps", "prefill-decode-interval", "cuda-graph-max-bs-decode",
    "cuda-graph-max-bs-prefill", "disable-prefill-cuda-graph", "enable-torch-compile",
    "torch-compile-max-bs", "enable-hierarchical-cache", "hicache-ratio", "hicache-size",
    "hicache-write-policy", "radix-eviction-policy", "speculative-algorithm",
    "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens", "ep-size",
    "dp-size", "pp-size", "attn-dp-size", "max-total-tokens", "max-queued-requests", "random-seed",
    "load-format", "tokenizer-path", "trust-remote-code", "revision", "sampling-backend",
    "skip-server-warmup", "watchdog-timeout", "decode-log-interval",
)  # fmt: skip
"""Flags that change nothing; those that should are named in a warning."""
SILENT = ("random-seed", "load-format", "tokenizer-path", "trust-remote-code", "revision",
          "skip-server-warmup", "watchdog-timeout", "decode-log-interval")  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give a parser the flags that the simulated SGLang knows."""
    table = read_table("sglang", VERSION).flags
    modelled = parser.add_argument_group("as in SGLang")
    for name in MODELLED:
        _add(modelled, table[name])
    accepted = parser.add_argument_group("accepted, without effect on the simulation")
    for name in ACCEPTED:
        _add(accepted, table[name])


def _add(group: Any, flag: TableFlag) -> None:
    if flag.type == "switch":
        group.add_argument(*flag.on, action="store_true", default=None)
        return

    def value(text: str) -> Any:
        wrong = flag.problem(text)
        if wrong is not None:
            raise argparse.ArgumentTypeError(wrong)
        return _CONVERT.get(flag.type, str)(text)

    metavar = None if not flag.choices else "{" + ",".join(flag.choices) + "}"
    group.add_argument(*flag.on, type=value, default=None, metavar=metavar)


def si_int(text: str) -> int:
    """A whole number with SI or IEC suffix: 8k is 8000, 8Ki is 8192. Raises ValueError."""
    number = text.rstrip("kKMGTi")
    return int(float(number) * _SUFFIXES[text[len(number) :]])


_SUFFIXES = {"": 1, **{letter: 1000**n for n, letter in enumerate("kMGT", 1)},
             **{f"{letter}i": 1024**n for n, letter in enumerate("KMGT", 1)}}  # fmt: skip
_CONVERT: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "si-size": si_int}


def asked_of(args: argparse.Namespace) -> dict[str, Any]:
    """What was asked, under the names of `config.resolve_config`.

    A chunk bounds a prefill step only, so the budget of a step also holds every decoding sequence.
    """
    given = vars(args)
    chunk = given["chunked_prefill_size"]
    asked: dict[str, Any] = {
        "max_model_len": given["context_length"],
        "max_num_seqs": given["max_running_requests"],
        "block_size": given["page_size"],
        "kv_cache_dtype": given["kv_cache_dtype"],
        "quantization": given["quantization"],
        "tensor_parallel_size": given["tp_size"],
        "enforce_eager": given["disable_cuda_graph"],
        "enable_prefix_caching": _not(given["disable_radix_cache"]),
        "async_scheduling": _not(given["disable_overlap_schedule"]),
        "stream_interval": given["stream_interval"],
        "sim_gpus": given["sim_gpus"],
    }
    if chunk is not None and chunk < 0:
        asked["enable_chunked_prefill"] = False
    elif chunk is not None:
        asked["max_num_batched_tokens"] = max(chunk, (given["max_running_requests"] or 0) + 1)
    return asked


def whole_fraction(fraction: float, config: Any, profile: Profile) -> float:
    """The share of the GPU that an engine takes whose weights and KV cache take `fraction`."""
    plan = plan_memory(config, profile)
    return fraction + (plan.context + plan.activation + plan.graphs) / plan.total


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def non_default(args: argparse.Namespace) -> Mapping[str, Any]:
    """The flags that were given, for the log; secrets masked."""
    given = {k: v for k, v in vars(args).items() if v is not None and k != "command"}
    return {**given, "api_key": "***"} if "api_key" in given else given
