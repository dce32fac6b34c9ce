"""What the simulated server refuses: flags, settings, memory; in vLLM's words."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest

from autotune.simulator.arguments import build_parser, human_int
from autotune.simulator.cli import main
from autotune.simulator.config import resolve_config
from autotune.simulator.memory import plan_memory
from autotune.simulator.profile import load_profile
from autotune.simulator.validation import Refusal, check_config, check_kv_format, check_start

QUICK = load_profile("quickstart")
H200 = load_profile("h200-qwen2.5-7b")


def parsed(*words: str) -> dict[str, Any]:
    return vars(build_parser().parse_args(["serve", "m", *words]))


def refused(profile: Any = QUICK, env: dict[str, str] | None = None, **flags: Any) -> Refusal:
    refusal = check_config(resolve_config(flags, profile), profile, env or {})
    assert refusal is not None
    return refusal


def start_failure(**flags: Any) -> tuple[str, str]:
    config = resolve_config(flags, QUICK)
    assert check_config(config, QUICK, {}) is None
    failure = check_start(plan_memory(config, QUICK), config, QUICK)
    assert failure is not None
    return failure.phase, failure.text


def test_flags_take_vllms_spellings() -> None:
    args = parsed(
        "--max_num_seqs=16", "--max-num-batched-tokens", "8K", "--max-model-len", "auto",
        "--no-enable-prefix-caching", "--enforce-eager", "-O3", "-tp", "2", "-q", "fp8",
        "--compilation-config", '{"mode": 3}', "--speculative-config.method", "ngram",
    )  # fmt: skip
    assert args["max_num_seqs"] == 16
    assert args["max_num_batched_tokens"] == 8192
    assert args["max_model_len"] == -1
    assert (args["enable_prefix_caching"], args["enforce_eager"]) == (False, True)
    assert (args["optimization_level"], args["tensor_parallel_size"]) == (3, 2)
    assert args["compilation_config"] == {"mode": 3}
    assert args["speculative_config"] == {"method": "ngram"}
    assert [human_int(text) for text in ("12", "1.5k", "2k", "2K")] == [12, 1500, 2000, 2048]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--enable-reasoning"], "error: unrecognized arguments: --enable-reasoning"),
        (["--kv-cache-dtype", "int3"], "argument --kv-cache-dtype: invalid choice: 'int3'"),
        (
            ["--max-num-batched-tokens", "many"],
            "argument --max-num-batched-tokens: Invalid integer",
        ),
        (["--compilation-config", "{mode"], "cannot be converted to JSON"),
        (["--max-num", "4"], "error: ambiguous option: --max-num could match"),
    ],
)
def test_bad_arguments_exit_2_with_argparses_text(words: list[str], text: str) -> None:
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), pytest.raises(SystemExit) as caught:
        build_parser().parse_args(["serve", "m", *words])
    assert caught.value.code == 2
    assert text in stderr.getvalue()


def test_an_unknown_profile_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "m", "--sim-profile", "b200"], env={}) == 2
    assert "no simulator profile named b200" in capsys.readouterr().out


def test_refused_settings_print_a_validation_error_and_exit_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "serve",
        "m",
        "--port",
        "0",
        "--max-num-batched-tokens",
        "256",
        "--max-num-seqs",
        "512",
    ]
    assert main(words, env={}) == 1
    out = capsys.readouterr().out
    assert "ValidationError: 1 validation error for SchedulerConfig" in out
    assert (
        "  Value error, max_num_batched_tokens (256) must be greater than or equal to "
        "max_num_seqs (512)." in out
    )
    assert "SIMULATED ENGINE" in out.splitlines()[0]


def test_a_secret_on_the_command_line_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "m", "--port", "0", "--api-key", "sk-hidden", "--max-num-batched-tokens", "0"]
    assert main(words, env={}) == 1
    out = capsys.readouterr().out
    assert "sk-hidden" not in out
    assert "'api_key': '***'" in out


def test_each_rule_is_refused_in_its_own_words() -> None:
    off = refused(enable_chunked_prefill=False, max_num_batched_tokens=2048)
    assert off.reason.startswith(
        "max_num_batched_tokens (2048) is smaller than max_model_len (8192)"
    )
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in refused(max_model_len=9000).reason
    assert refused(tensor_parallel_size=2).reason.startswith(
        "World size (2) is larger than the number of available GPUs (1)"
    )
    heads = refused(H200, tensor_parallel_size=8, sim_gpus=8)
    assert heads.config == "VllmConfig"
    assert "Total number of attention heads (28) must be divisible by tensor" in heads.reason
    assert "Cannot find the config file for awq" in refused(quantization="awq").reason
    assert "Unknown quantization method: q9" in refused(quantization="q9").reason
    assert (
        "cannot be greater than the max_model_len"
        in refused(long_prefill_token_threshold=10_000).reason
    )
    assert refused(gpu_memory_utilization=1.2).config == "CacheConfig"


def test_a_longer_model_length_is_allowed_when_the_environment_says_so() -> None:
    env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert check_config(resolve_config({"max_model_len": 9000}, QUICK), QUICK, env) is None


def test_unset_limits_follow_the_engines_defaults() -> None:
    assert resolve_config({}, H200).max_num_batched_tokens == 8192
    assert resolve_config({}, H200).max_num_seqs == 1024
    assert resolve_config({"max_num_batched_tokens": 512}, H200).max_num_seqs == 512
    assert resolve_config({"performance_mode": "throughput"}, H200).max_num_batched_tokens == 16384
    off = resolve_config({"enable_chunked_prefill": False}, H200)
    assert off.max_num_batched_tokens == 32768
    assert check_config(off, H200, {}) is None


def test_memory_verdicts_name_the_phase_and_the_way_out() -> None:
    phase, text = start_failure(gpu_memory_utilization=0.80)
    assert phase == "kv"
    assert text.startswith("No available memory for the cache blocks. Try increasing `gpu_memory")
    phase, text = start_failure(gpu_memory_utilization=0.88)
    assert phase == "kv"
    assert "To serve at least one request with the model's max seq len (8192)" in text
    length = int(text.split("estimated maximum model length is ")[1].split(".")[0])
    shorter = resolve_config({"gpu_memory_utilization": 0.88, "max_model_len": length}, QUICK)
    assert check_start(plan_memory(shorter, QUICK), shorter, QUICK) is None
    phase, text = start_failure(gpu_memory_utilization=0.99)
    assert phase == "device"
    assert "is less than desired GPU memory utilization" in text
    phase, text = start_failure(gpu_memory_utilization=0.97, max_num_batched_tokens=8192)
    assert phase == "capture"
    assert text.startswith("CUDA out of memory. Tried to allocate ")
    phase, text = start_failure(gpu_memory_utilization=0.97)
    assert phase == "sampler"
    assert "warming up sampler with 256 dummy requests" in text
    phase, text = start_failure(max_num_batched_tokens=65536)
    assert phase == "profile"


def test_an_explicit_backend_is_not_replaced_and_an_unknown_kv_type_finds_none() -> None:
    config = resolve_config({"attention_backend": "FLASH_ATTN", "block_size": 8}, QUICK)
    plan = plan_memory(config, QUICK)
    assert check_start(plan, config, QUICK) is None
    failure = check_start(plan, config, QUICK, backend_asked=True)
    assert failure is not None
    assert "is not valid for this configuration" in failure.text
    nvfp4 = check_kv_format(resolve_config({"kv_cache_dtype": "nvfp4"}, QUICK), QUICK)
    assert nvfp4 is not None
    assert "No valid attention backend found" in nvfp4.text


def test_a_failed_start_ends_with_the_generic_line_after_the_real_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["serve", "m", "--port", "0", "--sim-startup", "0", "--gpu-memory-utilization", "0.97"]
    assert main(words, env={}) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = next(i for i, line in enumerate(lines) if "EngineCore failed to start." in line)
    cause = next(i for i, line in enumerate(lines) if "CUDA out of memory" in line)
    assert failed < cause < len(lines) - 1
    assert "Engine core initialization failed. See root cause above." in lines[-1]


def test_accepted_but_unmodelled_flags_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "m", "--port", "0", "--sim-startup", "0", "--gpu-memory-utilization", "0.97"]
    assert main([*words, "-sc", '{"method": "ngram"}'], env={}) == 1
    assert "--speculative-config is accepted but not modelled" in capsys.readouterr().out
