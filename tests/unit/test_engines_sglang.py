"""SGLang: plans, pasted commands, its log, its memory, what its name in blogs has become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.catalog import engine_for, probe_version
from autotune.engines.engine import ExitInfo, LaunchTarget, ParsedCommand
from autotune.engines.facts import engine_facts
from autotune.engines.flag_table import flag_table
from autotune.engines.flags import flag_problem
from autotune.engines.log_lines import startup_phase
from autotune.engines.memory import GIB
from autotune.engines.memory_log import read_memory
from autotune.engines.plan import LaunchPlan
from autotune.engines.sglang import SglangEngine
from autotune.engines.sglang_memory import default_fraction, estimate
from autotune.errors import InputError
from autotune.space.candidate import Candidate


def plan(params: dict[str, Any], version: str | None = None, **fields: Any) -> LaunchPlan:
    values: dict[str, Any] = {"model": "acme/tiny", "launcher": "process"}
    return SglangEngine(version).plan(Candidate(params), LaunchTarget(**(values | fields)))


def words(params: dict[str, Any], **fields: Any) -> list[str]:
    """What follows the address."""
    argv = plan(params, **fields).argv
    return list(argv[argv.index("{port}") + 1 :])


def test_the_module_is_started_with_the_model_by_its_flag_and_metrics_on() -> None:
    assert plan({}).argv == (
        "python3", "-m", "sglang.launch_server", "--model-path", "acme/tiny",
        "--host", "{host}", "--port", "{port}", "--enable-metrics",
    )  # fmt: skip
    assert plan({}, command=("sglang", "serve")).argv[:4] == (
        "sglang", "serve", "--model-path", "acme/tiny",
    )  # fmt: skip
    assert words({}, args={"enable-metrics": None}) == []
    assert words({}, args={"enable-metrics": "off"}) == []


def test_off_is_the_engines_own_word_for_off() -> None:
    assert words({"disable-radix-cache": True})[1:] == ["--disable-radix-cache"]
    assert words({"disable-radix-cache": False})[1:] == []
    assert words({"enable-radix-cache": False})[1:] == ["--disable-radix-cache"]
    assert words({"enable-radix-cache": "on"})[1:] == []
    assert words({"enable-overlap-schedule": "off"})[1:] == ["--disable-overlap-schedule"]
    assert words({"chunked-prefill-size": -1})[1:] == ["--chunked-prefill-size", "-1"]
    # One of the few with a negative form
    assert words({"lora-strict-loading": False})[1:] == ["--no-lora-strict-loading"]


def test_a_flag_of_another_engine_is_refused_with_its_name_here() -> None:
    with pytest.raises(InputError, match="not a flag of sglang; instead: max-running-requests"):
        plan({"max-num-seqs": 8})
    with pytest.raises(InputError, match="instead: mem-fraction-static"):
        plan({"gpu-memory-utilization": 0.9})


@pytest.mark.parametrize(
    ("engine", "flag", "instead"),
    [
        ("sglang", "disable-chunked-prefill", "chunked-prefill-size: -1"),
        ("sglang", "max-total-token-num", "max-total-tokens"),
        ("sglang", "num-scheduler-steps", "num-continuous-decode-steps"),
        ("sglang", "enable-flashinfer", "attention-backend flashinfer"),
        ("vllm", "enable-cuda-graph", "enforce-eager"),
        ("vllm", "max-total-token-num", "kv-cache-memory-bytes"),
        ("vllm", "num-scheduler-steps", "nothing"),
        ("vllm", "disable-radix-cache", "enable-prefix-caching: off"),
    ],
)
def test_what_blogs_still_recommend_is_known_and_its_modern_form_named(
    engine: str, flag: str, instead: str
) -> None:
    problem = flag_problem(engine_facts(engine), flag, "0.33.0" if engine == "vllm" else "0.5.23")
    assert problem is not None
    assert f"instead: {instead}" in problem


def test_a_renamed_flag_is_refused_only_where_it_is_gone() -> None:
    facts = engine_facts("sglang")
    assert flag_problem(facts, "cuda-graph-max-bs", "0.5.18") is None
    gone = flag_problem(facts, "cuda-graph-max-bs", "0.5.23")
    assert gone is not None
    assert "gone from sglang since 0.5.20; instead: cuda-graph-max-bs-decode" in gone
    assert flag_problem(facts, "cuda-graph-max-bs-decode", "0.5.13") is not None
    assert flag_problem(facts, "cuda-graph-max-bs-decode", "0.5.14") is None


def test_a_key_has_no_way_but_the_command_line_and_is_refused_there() -> None:
    with pytest.raises(InputError) as caught:
        plan({}, args={"api-key": "sk-MADEUP"})
    assert "put authentication in front" in str(caught.value.hint)


def test_a_container_keeps_its_caches_per_version_and_has_shared_memory() -> None:
    made = plan({"tp-size": 2}, launcher="docker", image="lmsysorg/sglang:v0.5.19-cu129")
    volumes = {mount.target: mount.source for mount in made.mounts}
    assert volumes["/root/.cache/sglang"] == "autotune-sglang-0.5.19"
    assert made.shm_size == "32g"
    assert plan({}, launcher="docker", image="lmsysorg/sglang:v0.5.23").shm_size == "4g"
    assert made.health == "/health"
    image = LaunchTarget(model="m", launcher="docker", image="lmsysorg/sglang:v0.5.23")
    assert probe_version(image, "sglang") == "0.5.23"


def parsed(text: str) -> ParsedCommand:
    return engine_for("sglang").parse_command(text)


@pytest.mark.parametrize(
    "text",
    [
        (
            "python -m sglang.launch_server --model-path acme/tiny --tp 2 --disable-radix-cache"
            " --host 0.0.0.0 --port 30000 --mem-fraction-static 0.85"
        ),
        (
            "sglang serve acme/tiny --tensor-parallel-size 2 --mem-fraction-static=0.85"
            " --disable-radix-cache"
        ),
        (
            "docker run --gpus all --shm-size 32g -p 30000:30000 --ipc=host lmsysorg/sglang:latest"
            " python3 -m sglang.launch_server --model acme/tiny --tp-size 2"
            " --mem-fraction-static 0.85 --disable-radix-cache --host 0.0.0.0"
        ),
        (
            "exec sglang serve --model-path acme/tiny \\\n  --tp-size 2 --disable-radix-cache \\\n"
            "  --mem-fraction-static 0.85 --api-key secret"
        ),
    ],
)
def test_pasted_commands_are_taken_apart(text: str) -> None:
    found = parsed(text)
    assert found.model == "acme/tiny"
    assert dict(found.params) == {
        "tp-size": 2, "mem-fraction-static": 0.85, "disable-radix-cache": True,
    }  # fmt: skip


def test_a_pasted_command_of_another_kind_is_refused_with_an_example() -> None:
    with pytest.raises(InputError) as caught:
        parsed("llama-server -m model.gguf --port 1")
    assert "python3 -m sglang.launch_server --model-path MODEL" in str(caught.value.hint)


LOG = """
[2026-03-02 03:09:50] server_args=ServerArgs(model_path='acme/tiny')
[2026-03-02 03:10:00 TP0] Load weight begin. avail mem=78.50 GB
[2026-03-02 03:10:04 TP0] Load weight end. elapsed=4.01 s, type=LlamaForCausalLM, avail mem=63.36 GB, mem usage=15.14 GB.
[2026-03-02 03:10:05 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 441230, K size: 26.93 GB, V size: 26.93 GB
[2026-03-02 03:10:05 TP0] Memory pool end. avail mem=9.41 GB
[2026-03-02 03:10:06 TP0] Capture target decode CUDA graph begin. backend=full, avail mem=9.29 GB
[2026-03-02 03:10:11 TP0] Capture target decode CUDA graph end. elapsed=5.10 s, mem usage=0.70 GB.
[2026-03-02 03:10:12 TP0] max_total_num_tokens=441230, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=8192, available_gpu_mem=8.49 GB
[2026-03-02 03:10:13] INFO:     Started server process [1]
[2026-03-02 03:10:17] The server is fired up and ready to roll!
""".strip().splitlines()  # noqa: E501


def test_the_stages_of_a_start_are_read_from_its_log() -> None:
    stages = [stage for line in LOG if (stage := startup_phase(line, "sglang")) is not None]
    assert stages == [
        "arguments", "weights", "profile", "kv_cache", "kv_cache", "graphs", "warmup", "warmup",
        "http", "serving",
    ]  # fmt: skip


def test_memory_is_read_from_its_log_keys_and_values_together() -> None:
    assert read_memory(LOG, "sglang") == {
        "weights_gib": 15.14, "kv_gib": 53.86, "kv_tokens": 441230.0, "graphs_gib": 0.7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "code", "fault", "reason"),
    [
        ("AssertionError: chunked_prefill_size must be divisible by page_size", 1,
         "candidate", "config_refused"),
        (("ValueError: User-specified context_length (99999) is greater than the derived "
         "context_length (8192)."), 1, "candidate", "model_length_too_long"),
        ("RuntimeError: CUDA error: invalid device ordinal", -9, "candidate",
         "too_many_gpus_asked"),
        (("launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match "
         "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill"), 2, "study", "unknown_flag"),
        ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1 GiB", -9,
         "candidate", "oom_startup"),
        (("RuntimeError: Loaded weights leave no GPU memory for the KV cache under "
         "mem_fraction_static=0.4"), -9, "candidate", "kv_cache_no_memory"),
    ],
)  # fmt: skip
def test_failures_are_told_by_its_own_words(line: str, code: int, fault: str, reason: str) -> None:
    log = [line, "[2026-03-02 03:10:05] Received sigquit from a child process."]
    found = SglangEngine().diagnose(log, ExitInfo(code=code), None)
    assert (found.fault, found.reason) == (fault, reason)


def test_signal_nine_alone_says_nothing_of_the_hosts_memory() -> None:
    silent = SglangEngine().diagnose(LOG[:3], ExitInfo(code=137), None)
    assert (silent.fault, silent.reason) == ("unknown", "engine_died")
    proven = SglangEngine().diagnose(LOG[:3], ExitInfo(code=137, oom_killed=True), None)
    assert proven.reason == "host_out_of_memory"


def test_the_metrics_of_old_versions_have_no_counter_of_retractions() -> None:
    assert "preemptions" not in SglangEngine("0.5.3").metric_names()
    names = SglangEngine("0.5.23").metric_names()
    assert names["preemptions"] == "sglang:num_retracted_requests_total"
    assert names["kv_usage"] == "sglang:token_usage"


@pytest.mark.parametrize(
    ("gpu_gib", "params", "fraction"),
    [
        # 512 MiB + 1.5 x chunk + 1/8 GiB + 2 x decode batch, at least 10 GiB above 60 GiB
        (24, {}, 0.72),
        (80, {}, 0.836),
        (80, {"chunked-prefill-size": 2048}, 0.875),
        (80, {"tp-size": 8, "chunked-prefill-size": 16384}, 0.669),
        (24, {"disable-cuda-graph": True}, 0.724),
    ],
)
def test_the_default_share_is_the_engines_own(
    gpu_gib: float, params: dict[str, Any], fraction: float
) -> None:
    assert default_fraction(params, gpu_gib * GIB) == pytest.approx(fraction, abs=0.001)


def test_only_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(15 * GIB)
    wide = estimate(tmp_path, {}, 80 * GIB)
    assert wide is not None
    assert not wide.cannot_fit
    assert wide.kv_tokens == pytest.approx((0.836 * 79.7 - 15) * GIB / (128 * 1024), rel=0.02)
    tight = estimate(tmp_path, {"mem-fraction-static": 0.5}, 24 * GIB)
    assert tight is not None
    assert tight.cannot_fit


def test_every_version_takes_the_flags_of_a_usual_launch() -> None:
    params = {
        "chunked-prefill-size": 4096, "max-running-requests": 64, "mem-fraction-static": 0.8,
        "schedule-policy": "lpm", "page-size": 16, "enable-mixed-chunk": True,
        "kv-cache-dtype": "fp8_e4m3", "tp-size": 2, "attention-backend": "flashinfer",
        "disable-radix-cache": False, "hicache-ratio": 2.0, "schedule-conservativeness": 0.3,
    }  # fmt: skip
    argv = plan(params).argv_for("127.0.0.1", 30000)
    for version in ("0.5.3", "0.5.13", "0.5.16", "0.5.23"):
        table = flag_table("sglang", version)
        assert table is not None
        assert table.check(argv[3:]) == ()
