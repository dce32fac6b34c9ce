"""The numbers of start-up logs, and estimates corrected by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.memory import GIB, Calibration, MemoryEstimate
from autotune.engines.memory_log import read_memory

NEW = """\
(EngineCore pid=9) INFO 11-29 Model loading took 14.25 GiB memory and 3.91 seconds
(EngineCore pid=9) INFO 11-29 Available KV cache memory: 108.52 GiB
(EngineCore pid=9) INFO 11-29 GPU KV cache size: 2,032,096 tokens
(EngineCore pid=9) INFO 11-29 Maximum concurrency for 32,768 tokens per request: 62.01x
(EngineCore pid=9) INFO 11-29 Graph capturing finished in 7 secs, took 0.62 GiB
"""
GUESS = MemoryEstimate(
    budget_bytes=128 * GIB,
    weights_bytes=14 * GIB,
    overhead_bytes=2 * GIB,
    kv_bytes_per_token=56 * 1024,
    asked_tokens=32768,
)


def test_the_lines_of_a_start_are_numbers() -> None:
    assert read_memory(NEW.splitlines(), "vllm") == {
        "weights_gib": 14.25,
        "kv_gib": 108.52,
        "kv_tokens": 2_032_096,
        "concurrency": 62.01,
        "graphs_gib": 0.62,
    }


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("GPU KV cache size: 46,592 tokens, Maximum concurrency for 2,048 tokens per request: 22x",
         "kv_tokens", 46592),
        ("INFO CPU KV cache size: 21,888 tokens", "kv_tokens", 21888),
        ("Actual usage is 7.48 GiB for weight, 1.09 GiB for peak activation, 0.1 GiB for others",
         "activation_gib", 1.09),
        ("INFO Available KV cache memory: -3.27 GiB", "kv_gib", -3.27),
        ("INFO CUDA graph pool memory: 0.71 GiB (actual), 0.9 GiB (estimated)", "graphs_gib", 0.71),
    ],
)  # fmt: skip
def test_other_versions_say_it_otherwise(line: str, name: str, value: float) -> None:
    assert read_memory([line], "vllm")[name] == value


def test_of_several_ranks_the_one_with_least_room_decides() -> None:
    lines = [
        "(Worker_TP0 pid=1) Available KV cache memory: 30.10 GiB",
        "(Worker_TP1 pid=2) Available KV cache memory: 29.85 GiB",
        "(Worker_TP0 pid=1) Model loading took 7.10 GiB and 3 seconds",
        "(Worker_TP1 pid=2) Model loading took 7.30 GiB and 3 seconds",
    ]
    assert read_memory(lines, "vllm") == {"kv_gib": 29.85, "weights_gib": 7.3}


def test_logs_of_failed_starts_and_of_unknown_engines_hold_what_they_hold() -> None:
    folder = Path(__file__).parents[1] / "cases" / "engine_logs"
    for log in sorted(folder.glob("*.log")):
        numbers = read_memory(log.read_text("utf-8", "replace").splitlines(), "vllm")
        assert all(isinstance(value, float) for value in numbers.values())
    assert read_memory(NEW.splitlines(), "generic") == {}


def test_a_launch_corrects_later_estimates() -> None:
    learned = Calibration().after(GUESS, read_memory(NEW.splitlines(), "vllm"))
    better = learned.corrected(GUESS)
    assert better.weights_bytes == pytest.approx(14.25 * GIB)
    assert better.kv_bytes == pytest.approx(108.52 * GIB)
    assert better.kv_tokens == pytest.approx(2_032_096, rel=1e-6)
    assert better.margin < GUESS.margin
    assert learned.believable


def test_of_several_launches_the_lowest_factors_stay() -> None:
    roomy = {"weights_gib": 14.0, "kv_gib": 112.0, "kv_tokens": 112 * GIB / (56 * 1024)}
    tight = {**roomy, "kv_gib": 100.0, "kv_tokens": 100 * GIB / (56 * 1024)}
    both = Calibration().after(GUESS, tight).after(GUESS, roomy)
    assert both.overhead == pytest.approx(1.0)
    assert both.launches == 2


@pytest.mark.parametrize("log", [{}, {"weights_gib": 14.0}, {"kv_gib": -3.0, "kv_tokens": 10.0}])
def test_a_start_that_never_had_a_cache_teaches_nothing(log: dict[str, float]) -> None:
    assert Calibration().after(GUESS, log) == Calibration()
    assert Calibration().corrected(GUESS) == GUESS


def test_formulas_that_do_not_fit_the_model_are_not_believed() -> None:
    odd = {"weights_gib": 14.0, "kv_gib": 100.0, "kv_tokens": 1000.0}
    assert not Calibration().after(GUESS, odd).believable


@given(st.lists(st.text()))
def test_no_log_makes_the_reader_fall_over(lines: list[str]) -> None:
    assert all(isinstance(value, float) for value in read_memory(lines, "vllm").values())
