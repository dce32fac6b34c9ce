"""The command line of the simulated server: vLLM's spellings, argparse's errors (exit 2)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from autotune.simulator import sglang_arguments

SERVE = {"vllm": "serve", "sglang": "serve-sglang"}
"""Engine whose flags and metrics are spoken -> the command."""
_ON_OFF = argparse.BooleanOptionalAction
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
JSON_FLAGS = ("compilation-config", "speculative-config", "kv-transfer-config", "attention-config")
KV_CACHE_DTYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc",
                   "fp8_ds_mla", "nvfp4")  # fmt: skip
BACKENDS = ("auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")
PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")
UNMODELLED = ("speculative_config", "compilation_config", "kv_transfer_config", "attention_config",
              "watermark", "prefill_schedule_interval", "kv_offloading_size",
              "max_cudagraph_capture_size", "pipeline_parallel_size",
              "data_parallel_size")  # fmt: skip
_NESTED = re.compile(rf"(--(?:{'|'.join(JSON_FLAGS)})|-cc|-sc)\.([\w.-]+)(?:=(.*))?$")
"""Flags that are accepted, named in a warning, and change nothing."""


class _Parser(argparse.ArgumentParser):
    """Takes `--max_num_seqs` for `--max-num-seqs` and `-cc.mode=3` or `-O3` as vLLM does, if it is
    `flexible`.
    """

    def __init__(self, *args: Any, flexible: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._flexible = flexible

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = _normalised(args or ()) if self._flexible else list(args or ())
        return super().parse_known_args(words, namespace)


def _normalised(words: Sequence[str]) -> list[str]:
    result: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if re.fullmatch(r"-O[0-3]", word):
            result += ["-O", word[2:]]
        elif flag.startswith("--"):
            result.append(flag.replace("_", "-") + equals + value)
        else:
            result.append(word)
    return _with_nested_values(result)


def _with_nested_values(words: list[str]) -> list[str]:
    """`--compilation-config.mode 3` becomes `--compilation-config {"mode": 3}`."""
    result: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        match = _NESTED.match(word)
        if match is None:
            result.append(word)
        else:
            value = match[3]
            if value is None and index + 1 < len(words):
                index += 1
                value = words[index]
            result += [match[1], json.dumps({match[2]: value})]
        index += 1
    return result


def human_int(text: str) -> int:
    """An integer with an optional suffix: `8k` is 8000, `8K` 8192. Raises ArgumentTypeError."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG]?)", text.strip())
    if match is None or ("." in match[1] and match[2] not in {"k", "m", "g"}):
        raise argparse.ArgumentTypeError(f"Invalid integer value: {text!r}")
    return int(float(match[1]) * _SUFFIX.get(match[2], 1))


def human_int_or_auto(text: str) -> int:
    """As `human_int`; `auto` is -1."""
    return -1 if text.strip().lower() == "auto" else human_int(text)


def _positive(text: str) -> int:
    value = human_int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to JSON") from error


@lru_cache
def build_parser() -> argparse.ArgumentParser:
    """The parser of `python -m autotune.simulator`; its commands are those of `SERVE`."""
    parser = _Parser(
        prog="autotune.simulator",
        flexible=False,
        description="A simulated, OpenAI-compatible inference server with the flags of vLLM or "
        "SGLang. No GPU.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for dialect, word in SERVE.items():
        add_flags = _FLAGS[dialect]
        add_flags(
            commands.add_parser(
                word, flexible=dialect == "vllm", help=f"start the server, with {dialect}'s flags"
            )
        )
    return parser


def serve_help(dialect: str = "vllm") -> str:
    """The help text of a dialect's command, for whoever wants its flags without a process."""
    parser = _Parser(prog=f"autotune.simulator {SERVE[dialect]}", flexible=dialect == "vllm")
    add_flags = _FLAGS[dialect]
    add_flags(parser)
    return parser.format_help()


def _add_all(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("model_tag", nargs="?", metavar="MODEL", help="the model's name")
    _add_serving(serve)
    _add_model(serve)
    _add_scheduling(serve)
    _add_accepted(serve)
    _add_simulation(serve)


def _add_serving(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("serving")
    group.add_argument("--host", default="127.0.0.1", help="listening address (default: loopback)")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--model", dest="model_flag")
    group.add_argument("--served-model-name", nargs="+")
    group.add_argument("--api-key", nargs="+", help="better: the environment variable VLLM_API_KEY")
    group.add_argument("--enable-prompt-tokens-details", action=_ON_OFF)
    group.add_argument("--enable-force-include-usage", action=_ON_OFF)
    group.add_argument("--disable-uvicorn-access-log", action="store_true", default=None)
    group.add_argument("--uvicorn-log-level", default=None)


def _add_model(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("model and memory")
    group.add_argument("--max-model-len", type=human_int_or_auto, help="tokens, or auto")
    group.add_argument("--gpu-memory-utilization", type=float)
    group.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES)
    group.add_argument("--quantization", "-q")
    group.add_argument(
        "--dtype", choices=("auto", "half", "bfloat16", "float16", "float", "float32")
    )
    group.add_argument("--block-size", type=_positive)
    group.add_argument("--tensor-parallel-size", "-tp", type=_positive)
    group.add_argument("--enforce-eager", action=_ON_OFF)
    group.add_argument("-O", "--optimization-level", type=int, choices=(0, 1, 2, 3))
    group.add_argument("--attention-backend", choices=BACKENDS)


def _add_scheduling(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("scheduling")
    group.add_argument("--max-num-batched-tokens", type=human_int)
    group.add_argument("--max-num-seqs", type=_positive)
    group.add_argument("--enable-prefix-caching", action=_ON_OFF)
    group.add_argument("--enable-chunked-prefill", action=_ON_OFF)
    group.add_argument("--long-prefill-token-threshold", type=int)
    group.add_argument("--async-scheduling", action=_ON_OFF)
    group.add_argument("--stream-interval", type=_positive)
    group.add_argument("--performance-mode", choices=PERFORMANCE_MODES)


def _add_accepted(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("accepted, without effect on the simulation")
    for flag in JSON_FLAGS:
        short = {"compilation-config": ["-cc"], "speculative-config": ["-sc"]}.get(flag, [])
        group.add_argument(f"--{flag}", *short, type=_json)
    group.add_argument("--seed", type=int)
    group.add_argument("--load-format")
    group.add_argument("--download-dir")
    group.add_argument("--revision")
    group.add_argument("--tokenizer")
    group.add_argument("--generation-config")
    group.add_argument("--trust-remote-code", action=_ON_OFF)
    group.add_argument("--prefix-caching-hash-algo", choices=("sha256", "sha256_cbor", "xxhash"))
    group.add_argument("--scheduling-policy", choices=("fcfs", "priority"))
    group.add_argument("--watermark", type=float)
    group.add_argument("--prefill-schedule-interval", type=_positive)
    group.add_argument("--kv-offloading-size", type=float)
    group.add_argument("--max-cudagraph-capture-size", type=int)
    group.add_argument("--pipeline-parallel-size", "-pp", type=_positive)
    group.add_argument("--data-parallel-size", "-dp", type=_positive)


def _add_simulation(serve: argparse.ArgumentParser) -> None:
    group = serve.add_argument_group("simulation")
    group.add_argument(
        "--sim-profile", default="quickstart", help="hardware and model: name or path"
    )
    group.add_argument("--sim-gpus", type=_positive, help="number of GPUs (default: the profile's)")
    group.add_argument(
        "--sim-noise", type=float, default=0.02, help="spread of step times, a share"
    )
    group.add_argument("--sim-seed", type=int, help="seed of the noise (default: new every launch)")
    group.add_argument("--sim-startup", type=float, help="seconds that start-up takes")


def _add_sglang(serve: argparse.ArgumentParser) -> None:
    sglang_arguments.add_flags(serve)
    _add_simulation(serve)


_FLAGS = {"vllm": _add_all, "sglang": _add_sglang}


def non_default(args: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given, for the log; secrets masked."""
    skip = {"command", "sim_profile", "sim_noise"}
    given = {k: v for k, v in vars(args).items() if v is not None and k not in skip}
    if "api_key" in given:
        given["api_key"] = "***"
    return given
