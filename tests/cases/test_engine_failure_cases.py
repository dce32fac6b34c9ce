"""Why an engine failed, told from its log: the kinds of fault of public reports, in other words and
other places than there, and logs of a real vLLM 0.32 (CPU build)."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engines.diagnosis import diagnose_log
from autotune.engines.engine import Diagnosis, ExitInfo, Phase

REAL = Path(__file__).parent / "engine_logs" / "real"

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total "
    "capacity of 39.39 GiB of which 77.00 MiB is free."
)
SERVING = [
    "(APIServer pid=9) INFO:     Started server process [9]",
    "(APIServer pid=9) INFO:     Application startup complete.",
]
LOADED = [
    "(EngineCore pid=71) INFO 07-14 09:00:01 [gpu_model_runner.py:4] Starting to load model m...",
    "(EngineCore pid=71) INFO 07-14 09:00:31 [gpu_model_runner.py:5] Model loading took 14.2 GiB",
]


def diagnose(
    *lines: str,
    code: int | None = 1,
    phase: Phase | None = None,
    engine: str = "vllm",
    oom_killed: bool = False,
    by_us: bool = False,
) -> Diagnosis:
    return diagnose_log(
        lines, ExitInfo(code=code, oom_killed=oom_killed, by_us=by_us), phase, engine
    )


@pytest.mark.parametrize(
    ("name", "code", "fault", "phase", "reason"),
    [
        ("unknown-flag", 2, "study", "arguments", "unknown_flag"),
        ("removed-flag", 2, "study", "arguments", "unknown_flag"),
        ("bad-choice", 2, "candidate", "arguments", "bad_value"),
        ("batched-tokens-below-sequences", 1, "candidate", "arguments", "config_refused"),
        ("batched-tokens-below-length", 1, "candidate", "arguments", "config_refused"),
        ("model-length-too-long", 1, "candidate", "arguments", "model_length_too_long"),
        ("heads-not-divisible", 1, "candidate", "arguments", "heads_not_divisible"),
        ("model-folder-missing", 1, "study", "startup", "model_not_found"),
        ("model-not-cached-offline", 1, "environment", "startup", "hub_unavailable"),
        ("port-in-use", 1, "environment", "startup", "port_in_use"),
        ("kv-cache-too-small", 1, "candidate", "startup", "kv_cache_too_small"),
        ("kv-cache-none-left", 1, "candidate", "startup", "kv_cache_no_memory"),
        ("kv-cache-too-big", 1, "candidate", "startup", "kv_cache_too_big"),
        ("engine-core-killed", 0, "unknown", "load", "engine_died"),
    ],
)
def test_a_real_failing_launch_is_classified(
    name: str, code: int, fault: str, phase: str, reason: str
) -> None:
    lines = (REAL / f"{name}.log").read_text().splitlines()
    found = diagnose(*lines, code=code)
    assert (found.fault, found.phase, found.reason) == (fault, phase, reason)
    assert 1 <= len(found.evidence) <= 5
    assert all(len(line) <= 300 for line in found.evidence)
    # The log alone, as `autotune diagnose LOG` gets it, tells the same.
    assert diagnose_log(lines, None, None, "vllm").reason == reason


def test_a_real_cache_that_is_too_small_tells_what_would_fit() -> None:
    found = diagnose(*(REAL / "kv-cache-too-small.log").read_text().splitlines())
    assert found.facts["max_model_len_fits"] == 640
    assert found.facts["needed_gib"] == 0.04
    assert found.facts["available_gib"] == 0.02
    assert found.facts["memory_direction"] == "raise"
    assert "lower max-model-len to 640" in found.message


def test_the_cause_is_found_above_the_line_that_points_to_it() -> None:
    found = diagnose(
        *LOADED,
        "(EngineCore pid=71) ERROR 07-14 09:00:40 [core.py:9] Traceback (most recent call last):",
        '(EngineCore pid=71) ERROR 07-14 09:00:40 [core.py:9]   File "vllm/x.py", line 1, in check',
        "(EngineCore pid=71) ERROR 07-14 09:00:40 [core.py:9] ValueError: No available memory for "
        "the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        *["(APIServer pid=9)   File uvicorn, line 3" for _ in range(80)],
        "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above.",
    )
    assert (found.fault, found.phase) == ("candidate", "startup")
    assert (found.reason, found.remedy) == ("kv_cache_no_memory", "raise_memory")
    assert "See root cause" not in found.evidence[0]


def test_running_out_while_capturing_graphs_means_lower() -> None:
    by_progress = diagnose(
        *LOADED,
        "(EngineCore pid=71) INFO 07-14 09:01:00 [w.py:6] Available KV cache memory: 20.1 GiB",
        "Capturing CUDA graphs (decode, FULL):  12%|#  | 4/35",
        f"(EngineCore pid=71) ERROR 07-14 09:01:09 [core.py:7] {OOM}",
    )
    by_traceback = diagnose(
        '(EngineCore pid=71) ERROR 07-14 09:01:09 [c.py:7]   File "r.py", line 3, in capture_model',
        f"(EngineCore pid=71) ERROR 07-14 09:01:09 [core.py:7] {OOM}",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    )
    for found in (by_progress, by_traceback):
        assert (found.fault, found.phase) == ("candidate", "startup")
        assert (found.reason, found.remedy) == ("oom_graph_capture", "lower_memory")
        assert found.facts["needed"] == "512.00 MiB"


def test_the_same_knob_can_ask_for_more_and_for_less() -> None:
    more = diagnose(
        "[2026-07-14 11:00:00 TP1] Load weight end. avail mem=1.0 GB, mem usage=70 GB",
        "[2026-07-14 11:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "[2026-07-14 11:00:01] Received sigquit from a child process. It usually means the",
        engine="sglang",
        code=-9,
    )
    less = diagnose(
        "[2026-07-14 11:00:00 TP1] Capture cuda graph begin. This can take several minutes.",
        "[2026-07-14 11:00:09 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        f"  {OOM}",
        "[2026-07-14 11:00:09] Received sigquit from a child process. It usually means the",
        engine="sglang",
        code=137,
    )
    assert (more.fault, more.remedy) == ("candidate", "raise_memory")
    assert (less.fault, less.remedy, less.phase) == ("candidate", "lower_memory", "startup")


def test_an_unknown_flag_is_named_with_its_successor() -> None:
    found = diagnose(
        "usage: vllm serve [model_tag] [options]",
        "vllm serve: error: unrecognized arguments: --swap-space 8 --num-scheduler-steps 4",
        code=2,
    )
    assert (found.fault, found.phase, found.remedy) == ("study", "arguments", "drop_flag")
    assert found.facts["flag"] == "--swap-space"
    assert "--swap-space" in found.message
    assert "kv-offloading-size" in found.message


def test_a_doubled_serve_is_told_apart_from_an_unknown_flag() -> None:
    found = diagnose("vllm: error: unrecognized arguments: serve", code=2)
    assert (found.fault, found.reason) == ("study", "command_doubled")


def test_a_forbidden_combination_is_quoted_with_its_numbers() -> None:
    found = diagnose(
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for X",
        "(APIServer pid=1)   Value error, max_num_batched_tokens (1024) is smaller than "
        "max_model_len (16384). This effectively limits ... [type=value_error, input_value=A]",
    )
    assert (found.fault, found.phase, found.reason) == ("candidate", "arguments", "config_refused")
    assert "1024" in found.message
    assert "16384" in found.message


def test_running_out_under_load_is_not_a_start_up_failure() -> None:
    whole = diagnose(*LOADED, *SERVING, f"ERROR 07-14 10:00:00 [core.py:7] {OOM}", code=0)
    tail = diagnose(
        "ERROR 07-14 10:00:00 [core.py:718] EngineCore encountered a fatal error.",
        f"ERROR 07-14 10:00:00 [core.py:718] {OOM}",
    )
    told = diagnose(f"RuntimeError: Worker failed with error '{OOM}'", phase="load")
    for found in (whole, tail, told):
        assert (found.fault, found.phase) == ("candidate", "load")
        assert (found.reason, found.remedy) == ("oom_under_load", "lower_memory")


@pytest.mark.parametrize(
    "trouble",
    [
        "WARNING 07-14 05:00:00 HTTP Error 429 thrown for https://hub.example/m. Too Many Requests",
        "ERROR 07-14 05:00:00 HTTPSConnectionPool(host='hub.example', port=443): Read timed out.",
        "requests.exceptions.ConnectionError: Temporary failure in name resolution",
    ],
)
def test_a_hub_in_trouble_is_no_wrong_model_name(trouble: str) -> None:
    found = diagnose(
        trouble,
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, Invalid repository ID or local directory specified: 'acme/other-7b'.",
    )
    assert (found.fault, found.phase) == ("environment", "startup")
    assert (found.reason, found.remedy) == ("hub_unavailable", "wait_retry")
    assert "acme" not in found.message


def test_a_hub_in_trouble_that_was_got_over_is_no_cause() -> None:
    found = diagnose(
        "WARNING 07-14 05:00:00 429 Too Many Requests for url: hub.example/m. Retrying in 1s",
        *LOADED,
        f"ERROR 07-14 05:09:00 [core.py:7] {OOM}",
    )
    assert found.reason == "oom_startup"
    retried = diagnose(
        "WARNING 07-14 05:00:00 429 Too Many Requests for url: hub.example/m. Retrying in 1s",
        "  Value error, max_num_batched_tokens (32) must be greater than or equal to "
        "max_num_seqs (64). [type=value_error]",
    )
    assert retried.reason == "config_refused"


def test_three_ways_to_be_killed_are_three_reasons() -> None:
    shards = "Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:09<00:13]"
    by_state = diagnose(shards, code=137, oom_killed=True)
    by_signal = diagnose(shards, code=-9)
    by_us = diagnose(shards, code=137, by_us=True)
    assert (by_state.reason, by_state.fault) == ("host_out_of_memory", "environment")
    assert (by_signal.reason, by_signal.fault) == ("killed_signal_9", "environment")
    assert "perhaps the host" in by_signal.message
    assert by_us.reason == "killed_time_limit"
    assert "our own time limit" in by_us.message


def test_heads_that_cannot_be_split_are_the_candidates_fault() -> None:
    found = diagnose(
        "(APIServer pid=1)   Value error, Total number of attention heads (40) must be divisible "
        "by tensor parallel size (3). [type=value_error]"
    )
    assert (found.fault, found.phase) == ("candidate", "arguments")
    assert found.facts["tensor_parallel"] == 3


def test_more_gpus_than_there_are_is_told() -> None:
    found = diagnose(
        "  Value error, World size (8) is larger than the number of available GPUs (4) in this "
        "node. If this is intentional and you are using: - ray, set ... [type=value_error]"
    )
    assert found.reason == "too_many_gpus_asked"
    assert (found.facts["asked"], found.facts["present"]) == (8, 4)


def test_memory_that_another_process_holds_is_the_machines_fault() -> None:
    found = diagnose(
        "ValueError: Free memory on device cuda:0 (3.21/79.10 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU "
        "memory used by other processes."
    )
    assert (found.fault, found.reason) == ("environment", "gpu_memory_taken")
    assert found.facts["free_gib"] == 3.21
    assert found.facts["wanted_gib"] == 71.19


def test_asking_a_free_gpu_for_more_than_it_has_is_the_candidates_fault() -> None:
    found = diagnose(
        "ValueError: Free memory on device cuda:0 (78.50/79.10 GiB) on startup is less than "
        "desired GPU memory utilization (0.995, 78.71 GiB). Decrease GPU memory utilization."
    )
    assert (found.fault, found.reason) == ("candidate", "memory_fraction_too_high")
    assert (found.remedy, found.facts["memory_direction"]) == ("lower_memory", "lower")


def test_talk_of_memory_is_no_cause() -> None:
    found = diagnose(
        "INFO 07-14 08:00:00 [w.py:1] Free memory on device (cuda:0) (70/79 GiB) on startup.",
        "WARNING 07-14 08:00:00 [c.py:2] large batches may end in torch.OutOfMemoryError: see docs",
        "WARNING 07-14 08:00:01 [t.py:2] skipping: CUDA out of memory. Tried to allocate 1 GiB",
        "  except torch.OutOfMemoryError: pass",
        "INFO 07-14 08:00:02 [logger.py:49] Received request cmpl-3: prompt: 'what does CUDA out "
        "of memory. Tried to allocate mean?', params: SamplingParams(n=1)",
        "/usr/lib/x.py:2: UserWarning: leaked, perhaps CUDA out of memory. Tried to allocate",
        "  Value error, block_size must be a multiple of 16. [type=value_error]",
    )
    assert found.reason == "config_refused"


def test_an_out_of_memory_that_start_up_survived_is_no_cause() -> None:
    found = diagnose(
        *LOADED,
        "Capturing CUDA graphs (decode, FULL):  12%|#  | 4/35",
        f"ERROR 07-14 08:00:01 [autotune.py:2] {OOM}",
        *SERVING,
        "ERROR 07-14 08:10:01 [core.py:2] RuntimeError: CUDA error: an illegal memory access",
    )
    assert (found.reason, found.phase) == ("gpu_fault", "load")


def test_keys_in_a_banner_are_not_repeated() -> None:
    found = diagnose(
        "INFO 07-14 06:00:00 [api_utils.py:273] non-default args: {'api_key': "
        "['sk-MADEUP-0123456789abcdef'], 'hf_token': 'hf_MADEUPabcdefghijklmnop', 'model': 'm'}",
        "ERROR 07-14 06:00:09 error: something failed with --api-key sk-MADEUP-0123456789abcdef",
    )
    assert "MADEUP" not in str(found.to_json())
    banner_only = diagnose(
        "INFO 07-14 06:00:00 [api_utils.py:273] non-default args: {'api_key': 'sk-MADEUP-99999999'}"
    )
    assert "api_key" in banner_only.evidence[0]
    assert "MADEUP" not in str(banner_only.to_json())


def test_a_crash_dump_is_classified_without_its_prompts() -> None:
    found = diagnose(
        "(EngineCore pid=5) ERROR 07-14 06:20:50 [dump_input.py:76] Dumping input data for V1 LLM "
        "engine: NewRequestData(req_id=cmpl-7,prompt_token_ids=[411, 8271, 95, 20911],)",
        "(EngineCore pid=5) ERROR 07-14 06:20:50 [core.py:7] EngineCore encountered a fatal error.",
        "INFO 07-14 06:20:50 [log.py:49] Received request cmpl-7: prompt: 'MY-PRIVATE-WORDS', n",
        "INFO 07-14 06:20:51 [async_llm.py:345] Request cmpl-7 failed (engine dead).",
        code=0,
    )
    assert (found.phase, found.reason) == ("load", "engine_died")
    shown = str(found.to_json())
    assert "MY-PRIVATE-WORDS" not in shown
    assert "8271" not in shown


def test_never_being_ready_is_a_reason_of_its_own() -> None:
    waiting = ["INFO 07-14 01:00:00 Waiting for 1 core engine proc(s) to start"] * 5
    assert diagnose(*waiting, code=-15, by_us=True, phase="startup").reason == "not_ready_in_time"
    assert diagnose_log(waiting, None, "startup", "vllm").reason == "not_ready_in_time"


def test_an_unexplained_end_is_called_unknown_and_keeps_the_last_words() -> None:
    found = diagnose("starting", "fatal: the flux capacitor failed", code=70)
    assert (found.fault, found.reason) == ("unknown", "unknown")
    assert found.evidence == ("fatal: the flux capacitor failed",)
    assert "70" in found.message


def test_an_exception_says_more_than_the_death_it_leads_to() -> None:
    found = diagnose(
        *SERVING,
        "(Worker_TP0 rank=0 pid=7) ERROR 07-14 10:00:00 [w.py:1] RuntimeError: the gate is shut",
        "(EngineCore_DP0 pid=5) ERROR 07-14 10:00:00 [c.py] EngineCore encountered a fatal error.",
        "(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore met an issue.",
        "KeyError: '/psm_530bfd23'",
        code=0,
    )
    assert (found.fault, found.phase, found.reason) == ("unknown", "load", "engine_error")
    assert "the gate is shut" in found.message
    silent = diagnose(
        "[2026-07-14 11:00:00] Received sigquit from a child process.", code=137, engine="sglang"
    )
    assert (silent.fault, silent.reason) == ("unknown", "engine_died")


def test_a_repository_that_the_hub_does_not_know_is_the_studys_fault() -> None:
    found = diagnose(
        "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-a)",
        "Repository Not Found for url: hub.example/acme/typo.",
    )
    assert (found.fault, found.reason) == ("study", "model_not_found")


def test_an_engine_that_exits_zero_under_load_has_died() -> None:
    found = diagnose(*SERVING, code=0, phase="load")
    assert (found.fault, found.phase, found.reason) == ("unknown", "load", "engine_died")


@pytest.mark.parametrize(
    ("line", "reason", "fault"),
    [
        (
            'could not select device driver "" with capabilities: [[gpu]]',
            "docker_no_gpu_runtime",
            "environment",
        ),
        ("Error: No such image: acme/engine:v1", "docker_image_missing", "environment"),
        (
            "Bind for 127.0.0.1:8000 failed: port is already allocated",
            "docker_port_taken",
            "environment",
        ),
        ("RuntimeError: Failed to infer device type", "no_gpu", "environment"),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
            "driver_too_old",
            "environment",
        ),
        ("OSError: [Errno 28] No space left on device: '/cache/x'", "disk_full", "environment"),
        (
            "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
            "hub_access_denied",
            "environment",
        ),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1", "nccl_error", "environment"),
        ("ValueError: Cannot find the config file for awq", "quantization_refused", "candidate"),
        ("AssertionError: page size must divide the chunk", "config_refused", "candidate"),
    ],
)
def test_one_line_can_be_enough(line: str, reason: str, fault: str) -> None:
    found = diagnose(line)
    assert (found.reason, found.fault) == (reason, fault)
    assert found.message
    assert not found.message.endswith(".")
