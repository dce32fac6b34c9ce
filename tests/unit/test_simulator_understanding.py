"""Flags of different engines lead to the same limits; the rest are traits."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.simulator.load import AMPLE
from autotune.simulator.understanding import Machine, Understanding

BIG = Machine(gpu_gib=140.0, model_len=32768)


def vllm(**baseline: Any) -> Understanding:
    return Understanding(engine="vllm", baseline=baseline, machine=BIG)


def test_what_is_not_set_follows_the_engine_on_this_machine() -> None:
    limits = vllm().limits({})
    assert (limits.budget, limits.seqs, limits.chunked) == (8192, 1024, True)
    small = Understanding(engine="vllm", baseline={}, machine=Machine(gpu_gib=24.0)).limits({})
    assert (small.budget, small.seqs) == (2048, 256)
    cpu = Understanding(engine="vllm", baseline={}).limits({})
    assert (cpu.budget, cpu.seqs) == (2048, 128)


def test_the_default_number_of_requests_is_bounded_by_the_budget() -> None:
    assert vllm().limits({"max-num-batched-tokens": 512}).seqs == 512


def test_without_chunks_the_default_budget_holds_the_longest_request() -> None:
    limits = vllm().limits({"enable-chunked-prefill": False})
    assert (limits.chunked, limits.budget) == (False, 32768)


@pytest.mark.parametrize(("text", "number"), [("8k", 8000), ("8K", 8192), (4096, 4096)])
def test_sizes_are_read_as_the_engine_reads_them(text: Any, number: int) -> None:
    assert vllm().limits({"max-num-batched-tokens": text}).budget == number


def test_memory_is_what_the_caller_knows() -> None:
    assert vllm().limits({}).kv_tokens == AMPLE
    assert vllm().limits({}, 5000).kv_tokens == 5000


def test_sglang_says_the_same_in_other_words() -> None:
    engine = Understanding(engine="sglang", baseline={}, machine=BIG)
    limits = engine.limits(
        {"chunked-prefill-size": 4096, "max-running-requests": 32, "disable-radix-cache": True}
    )
    assert (limits.budget, limits.seqs) == (4096, 32)
    assert not limits.prefix_caching
    assert not limits.mixed
    assert engine.limits({"enable-mixed-chunk": True}).mixed
    whole = engine.limits({"chunked-prefill-size": -1})
    assert not whole.chunked
    assert whole.budget == 32768


def test_only_differences_from_today_are_traits() -> None:
    engine = vllm(**{"kv-cache-dtype": "auto", "attention-backend": "FLASHINFER"})
    assert engine.view({"kv-cache-dtype": "auto", "attention-backend": "FLASHINFER"}).traits == ()
    (trait,) = engine.view({"kv-cache-dtype": "fp8", "attention-backend": "FLASHINFER"}).traits
    assert trait.name == "kv-cache-dtype fp8"
    assert trait.expected["d"] < 1


def test_what_runs_today_is_what_a_trait_is_held_against() -> None:
    engine = vllm(**{"kv-cache-dtype": "fp8"})
    (trait,) = engine.view({"kv-cache-dtype": "auto"}).traits
    assert trait.expected["d"] > 1


def test_a_flag_that_nobody_described_is_a_trait_without_an_expectation() -> None:
    engine = vllm()
    (trait,) = engine.view({"some-new-flag": 3}).traits
    assert trait.name == "some-new-flag 3"
    assert trait.expected == {}
    assert trait.doubt > 0
    assert not engine.understands("some-new-flag")


def test_limits_and_memory_flags_are_understood_and_no_traits() -> None:
    engine = vllm()
    settings = {"max-num-seqs": 8, "gpu-memory-utilization": 0.8, "enable-prefix-caching": False}
    assert engine.view(settings).traits == ()
    assert all(engine.understands(flag) for flag in settings)


def test_an_unknown_engine_is_read_by_the_usual_names() -> None:
    limits = Understanding(engine="generic", baseline={}, machine=BIG).limits({"max-num-seqs": 4})
    assert limits.seqs == 4
