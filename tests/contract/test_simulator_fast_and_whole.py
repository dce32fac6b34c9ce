"""The fast simulation gives the same first and last tokens as the whole scheduler.

Where KV memory is not short the two agree to a nanosecond. Where it is, the fast one counts tokens
instead of blocks: percentiles over a loaded window agree to 15 %.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.simulator.config import EngineConfig, resolve_config
from autotune.simulator.fast import run
from autotune.simulator.load import Job, Limits, Load, Pace
from autotune.simulator.memory import plan_memory
from autotune.simulator.profile import load_profile
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.step_time import step_time
from autotune.simulator.virtual import VirtualArrival, VirtualRun, simulate

JOBS = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.integers(1, 6000),
        st.sampled_from([1, 2, 7, 60]),
    ),
    min_size=1,
    max_size=25,
)
FLAGS = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.sampled_from([256, 1024, 8192]),
        "max_num_seqs": st.sampled_from([1, 3, 64]),
        "async_scheduling": st.booleans(),
        "long_prefill_token_threshold": st.sampled_from([0, 100, 1000]),
        "enforce_eager": st.booleans(),
    }
)


def both(jobs: list[Job], flags: dict[str, Any], profile_name: str) -> tuple[VirtualRun, Any]:
    """The same requests through the whole simulation and the fast one."""
    profile = load_profile(profile_name)
    config: EngineConfig = resolve_config({"enable_prefix_caching": False, **flags}, profile)
    arrivals = [
        VirtualArrival(
            at_s=job.at_s,
            request=SimRequest(
                id=str(i),
                prompt=range(10_000 * i, 10_000 * i + job.prompt),
                output_tokens=job.output,
            ),
            after=None if job.after is None else str(job.after),
            gap_s=job.gap_s,
        )
        for i, job in enumerate(jobs)
    ]
    whole = simulate(arrivals, config, profile)
    time = step_time(config, profile)
    limits = Limits(
        budget=config.max_num_batched_tokens,
        seqs=config.max_num_seqs,
        chunked=config.enable_chunked_prefill,
        threshold=config.long_prefill_token_threshold,
        lookahead=config.async_scheduling,
        kv_tokens=plan_memory(config, profile).num_blocks * config.block_size,
    )
    pace = Pace(
        step=time.coefficients,
        r0_s=profile.request_overhead_s,
        r1_s=profile.request_overhead_per_token_s,
        floor_s=time.floor_s,
    )
    return whole, run(Load(jobs=tuple(jobs)), limits, pace)


@settings(max_examples=60, deadline=None)
@given(rows=JOBS, flags=FLAGS)
def test_with_ample_memory_every_token_comes_at_the_same_moment(
    rows: list[tuple[float, int, int]], flags: dict[str, Any]
) -> None:
    jobs = [Job(at_s=at_s, prompt=prompt, output=output) for at_s, prompt, output in rows]
    whole, fast = both(jobs, flags, "h200-qwen2.5-7b")
    assert fast.first == pytest.approx([t.first_token_s for t in whole.times], abs=1e-9)
    assert fast.last == pytest.approx([t.last_token_s for t in whole.times], abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(rows=JOBS, gaps=st.lists(st.floats(0.0, 1.0), min_size=25, max_size=25))
def test_a_turn_that_waits_for_an_answer_comes_at_the_same_moment(
    rows: list[tuple[float, int, int]], gaps: list[float]
) -> None:
    jobs = [
        Job(
            at_s=at_s if i % 3 == 0 else 0.0,
            prompt=prompt,
            output=output,
            after=None if i % 3 == 0 else i - 1,
            gap_s=gaps[i],
        )
        for i, (at_s, prompt, output) in enumerate(rows)
    ]
    whole, fast = both(jobs, {"max_num_batched_tokens": 1024}, "h200-qwen2.5-7b")
    assert fast.due == pytest.approx([t.sent_s for t in whole.times], abs=1e-9)
    assert fast.last == pytest.approx([t.last_token_s for t in whole.times], abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_with_short_memory_percentiles_are_nearly_the_same(seed: int) -> None:
    rng = random.Random(seed)
    jobs, at_s = [], 0.0
    for _ in range(140):
        at_s += rng.expovariate(8.0)
        prompt = min(5000, int(rng.lognormvariate(6.6, 0.7)) + 10)
        output = min(300, int(rng.lognormvariate(4.3, 0.6)) + 5)
        jobs.append(Job(at_s=at_s, prompt=prompt, output=output))
    flags = {"max_num_batched_tokens": 1024, "gpu_memory_utilization": 0.93}
    whole, fast = both(jobs, flags, "quickstart")
    assert whole.kv_usage_max > 0.9
    assert fast.memory_blocked
    slow = [t.ttft_s for t in whole.times if t.ttft_s is not None]
    quick = [first - due for first, due in zip(fast.first, fast.due, strict=True)]
    for part in (9, 18):
        expected = statistics.quantiles(slow, n=20)[part]
        assert statistics.quantiles(quick, n=20)[part] == pytest.approx(expected, rel=0.15)
