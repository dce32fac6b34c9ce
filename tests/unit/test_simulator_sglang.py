"""The simulated SGLang: its flags, what it refuses, what its log says, what it counts."""

from __future__ import annotations

import io
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.engines.catalog import engine_for
from autotune.engines.engine import ExitInfo
from autotune.engines.memory_log import read_memory
from autotune.simulator.cli import log_for, read, start
from autotune.simulator.config import EngineConfig
from autotune.simulator.log import SglangLog
from autotune.simulator.profile import load_profile
from autotune.simulator.sglang_arguments import ACCEPTED, MODELLED, VERSION, si_int


def launched(*words: str) -> tuple[EngineConfig | None, str, SglangLog]:
    """What the settings come to, the log, and the log's writer."""
    text, clock = io.StringIO(), VirtualClock()
    argv = ["serve-sglang", "--model-path", "m", *words]
    log = log_for(argv, text, clock)
    assert isinstance(log, SglangLog)
    asked = read(argv, log)
    assert asked is not None
    args, model, profile = asked
    return start(args, model, profile, {}, log, clock), text.getvalue(), log


def test_its_flags_mean_what_they_mean_to_sglang() -> None:
    config, _, _ = launched(
        "--chunked-prefill-size", "4096", "--max-running-requests", "64", "--page-size", "32",
        "--disable-radix-cache", "--disable-cuda-graph", "--context-length", "4Ki",
        "--kv-cache-dtype", "fp8_e4m3", "--disable-overlap-schedule",
    )  # fmt: skip
    assert config is not None
    assert (config.max_num_batched_tokens, config.max_num_seqs) == (4096, 64)
    assert (config.block_size, config.max_model_len) == (32, 4096)
    assert not config.enable_prefix_caching
    assert config.enforce_eager
    assert not config.async_scheduling


def test_a_small_chunk_still_leaves_room_for_every_decoding_sequence() -> None:
    config, _, _ = launched("--chunked-prefill-size", "16", "--max-running-requests", "64")
    assert config is not None
    assert config.max_num_batched_tokens == 65


def test_no_chunks_at_all_are_the_whole_prompt_at_once() -> None:
    config, _, _ = launched("--chunked-prefill-size", "-1")
    assert config is not None
    assert not config.enable_chunked_prefill
    assert config.max_num_batched_tokens >= config.max_model_len


@pytest.mark.parametrize("share", [0.85, 0.9])
def test_the_static_share_is_for_weights_and_cache_alone(share: float) -> None:
    config, text, _ = launched("--mem-fraction-static", str(share))
    assert config is not None
    profile = load_profile("quickstart")
    seen = read_memory(text.splitlines(), "simulated-sglang")
    taken = seen["weights_gib"] + seen["kv_gib"]
    assert taken == pytest.approx(share * profile.gpu_memory / 2**30, abs=0.02)


@pytest.mark.parametrize(
    ("words", "reason", "by_child"),
    [
        (["--mem-fraction-static", "0.5"], "kv_cache_no_memory", True),
        (["--mem-fraction-static", "0.98"], "oom_graph_capture", True),
        (["--tp-size", "3"], "too_many_gpus_asked", False),
        (["--context-length", "9000"], "model_length_too_long", False),
        (["--chunked-prefill-size", "100", "--page-size", "16"], "config_refused", False),
        (["--enable-hierarchical-cache", "--disable-radix-cache"], "config_refused", False),
        (["--quantization", "awq"], "quantization_refused", False),
        (["--sim-gpus", "3", "--tp-size", "3"], "heads_not_divisible", False),
    ],
)
def test_its_refusals_are_told_apart(words: list[str], reason: str, by_child: bool) -> None:
    config, text, log = launched(*words)
    assert config is None
    assert log.child_failed is by_child
    ended = ExitInfo(code=-9 if by_child else 1)
    found = engine_for("simulated-sglang").diagnose(text.splitlines(), ended, None)
    assert (found.fault, found.reason) == ("candidate", reason)


def test_what_is_not_modelled_is_named() -> None:
    _, text, _ = launched("--schedule-policy", "lpm", "--random-seed", "3")
    assert "--schedule-policy is accepted but not modelled" in text
    assert "--random-seed is accepted" not in text


def test_it_knows_no_flag_that_sglang_does_not_know() -> None:
    from autotune.engines.flag_table import read_table

    table = read_table("sglang", VERSION)
    assert {*MODELLED, *ACCEPTED} <= table.flags.keys()
    with pytest.raises(SystemExit) as ended:
        launched("--max_running_requests", "3")
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("text", "value"), [("8192", 8192), ("8k", 8000), ("8Ki", 8192), ("1.5M", 1_500_000)]
)
def test_sizes_are_read_as_sglang_reads_them(text: str, value: int) -> None:
    assert si_int(text) == value


def test_its_lines_are_marked_as_simulated() -> None:
    _, text, _ = launched("--sim-startup", "0")
    lines = [line for line in text.splitlines() if line.startswith("[")]
    assert len(lines) > 5
    assert all(line.endswith("(simulated)") for line in lines)


def exposed(page: str) -> dict[str, Any]:
    from prometheus_client.parser import text_string_to_metric_families

    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_its_metrics_have_every_name_that_is_read() -> None:
    from autotune.simulator.core import EngineCore, Noise
    from autotune.simulator.metrics import EngineMetrics

    config, _, _ = launched()
    assert config is not None
    core = EngineCore(config, load_profile("quickstart"), Noise(share=0.0, seed=1))
    seen = exposed(EngineMetrics().sglang_exposition(core, config, "m"))
    wanted = engine_for("simulated-sglang").metric_names().values()
    assert {name for name in wanted if name not in seen and f"{name}_count" not in seen} == set()
