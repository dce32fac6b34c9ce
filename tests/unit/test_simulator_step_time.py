"""The step-time model and the profiles that hold its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import InputError
from autotune.simulator.config import resolve_config
from autotune.simulator.memory import plan_memory
from autotune.simulator.profile import load_profile, profile_names
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.step_time import StepTime, StepWork, step_time
from autotune.simulator.virtual import VirtualArrival, simulate

H200 = load_profile("h200-qwen2.5-7b")


def work(tokens: int = 0, pairs: float = 0, context: int = 0, prefills: int = 0) -> StepWork:
    return StepWork(
        tokens=tokens, pairs=pairs, context=context, prefills=prefills, sequences=max(1, prefills)
    )


def test_a_step_is_the_sum_of_its_terms_with_the_weight_read_as_a_floor() -> None:
    model = step_time(resolve_config({}, H200), H200)
    k = model.coefficients
    few = model.seconds(work(tokens=4, context=4000))
    assert few == pytest.approx(2.25e-3 + 2.29e-3 + 4000 * 13.3e-9)
    many = model.seconds(work(tokens=8192, pairs=8192 * 4096.0, prefills=1))
    assert many == pytest.approx(k.a_s + 8192 * 21.2e-6 + 8192 * 4096 * 0.69e-9)


def test_a_step_that_computes_nothing_takes_no_time() -> None:
    assert step_time(resolve_config({}, H200), H200).seconds(work()) == 0.0


def test_precision_parallelism_and_modes_scale_their_own_terms() -> None:
    plain = step_time(resolve_config({}, H200), H200).coefficients
    fp8 = step_time(
        resolve_config({"quantization": "fp8", "kv_cache_dtype": "fp8"}, H200), H200
    ).coefficients
    assert fp8.b_s / plain.b_s == pytest.approx(0.67)
    assert fp8.c_s / plain.c_s == pytest.approx(0.79)
    assert fp8.d_s / plain.d_s == pytest.approx(0.68)
    assert (fp8.a_s + fp8.m_s) / (plain.a_s + plain.m_s) == pytest.approx(0.70)
    two = step_time(resolve_config({"tensor_parallel_size": 2}, H200), H200).coefficients
    assert plain.b_s / 2 < two.b_s < plain.b_s
    eager = step_time(resolve_config({"optimization_level": 0}, H200), H200)
    assert eager.seconds(work(tokens=1)) == eager.floor_s > 0.005
    sync = step_time(resolve_config({"async_scheduling": False}, H200), H200).coefficients
    assert sync.a_s > plain.a_s


def test_the_model_never_gets_faster_with_more_work() -> None:
    model = StepTime(coefficients=replace(H200.step, f_s=0.001))
    steps = [work(n, n * n / 2, n, prefills=1) for n in (1, 16, 128, 1024, 8192)]
    seconds = [model.seconds(step) for step in steps]
    assert seconds == sorted(seconds)


# Measured on an H200 with vLLM 0.26: median TTFT in ms of single prompts on an idle engine.
MEASURED_PREFILL_MS = {1024: 30.7, 2048: 54.0, 4096: 103.4, 8192: 207.0, 16384: 445.4, 31000: 993.5}


@pytest.mark.parametrize(("tokens", "measured"), MEASURED_PREFILL_MS.items())
def test_the_h200_profile_meets_measured_idle_prefill(tokens: int, measured: float) -> None:
    request = SimRequest(id="a", prompt=range(tokens), output_tokens=1)
    run = simulate([VirtualArrival(at_s=0, request=request)], resolve_config({}, H200), H200)
    ttft = run.times[0].ttft_s
    assert ttft is not None
    assert 1e3 * ttft == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize(
    ("flags", "measured_tokens"),
    [
        ({}, 2_151_968),
        ({"max_num_seqs": 16}, 2_151_968),
        ({"max_num_batched_tokens": 512}, 2_170_048),
        ({"max_num_batched_tokens": 2048}, 2_166_448),
        ({"max_num_batched_tokens": 32768}, 2_094_032),
        ({"quantization": "fp8", "kv_cache_dtype": "fp8"}, 4_531_984),
    ],
)
def test_the_h200_profile_meets_the_kv_cache_sizes_the_engine_reported(
    flags: dict[str, object], measured_tokens: int
) -> None:
    plan = plan_memory(resolve_config(flags, H200), H200)
    assert plan.num_blocks * 16 == pytest.approx(measured_tokens, rel=0.001)


def test_every_shipped_profile_loads_and_an_unknown_one_is_named() -> None:
    assert set(profile_names()) >= {"quickstart", "h200-qwen2.5-7b"}
    for name in profile_names():
        profile = load_profile(name)
        assert plan_memory(resolve_config({}, profile), profile).num_blocks > 0
    with pytest.raises(InputError, match="no simulator profile named b200"):
        load_profile("b200")
