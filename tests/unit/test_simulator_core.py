"""The engine in time, and its replay in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.simulator.config import resolve_config
from autotune.simulator.core import EngineCore, Noise
from autotune.simulator.profile import load_profile
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.virtual import VirtualArrival, VirtualRun, simulate

QUICK = load_profile("quickstart")
CONFIG = resolve_config({}, QUICK)


def arrival(at_s: float, name: str, prompt: int, output: int, first: int = 0) -> VirtualArrival:
    request = SimRequest(id=name, prompt=range(first, first + prompt), output_tokens=output)
    return VirtualArrival(at_s=at_s, request=request)


def mixed(count: int = 40) -> list[VirtualArrival]:
    return [
        arrival(0.05 * i, str(i), 100 + 331 * i % 1900, 4 + i % 20, first=4000 * i)
        for i in range(count)
    ]


def overhead_s(prompt: int) -> float:
    return QUICK.request_overhead_s + QUICK.request_overhead_per_token_s * prompt


def test_a_lone_request_waits_for_its_overhead_and_its_steps() -> None:
    k = QUICK.step
    run = simulate([arrival(1.0, "a", 1000, 3)], CONFIG, QUICK)
    times = run.times[0]
    prefill = k.a_s + k.b_s * 1000 + k.c_s * 1000 * 500 + k.f_s
    assert times.first_token_s == pytest.approx(1.0 + overhead_s(1000) + prefill)
    decode = k.a_s + k.m_s + k.d_s * 1001
    assert times.token_s[1] - times.token_s[0] == pytest.approx(decode)
    assert (len(times.token_s), times.last_token_s) == (3, times.token_s[-1])


def test_with_steps_composed_ahead_an_arrival_waits_for_the_running_and_the_next_step() -> None:
    first = arrival(0.0, "a", 500, 200)
    second = arrival(1.0, "b", 50, 1, first=9000)
    ahead = simulate([first, second], CONFIG, QUICK)
    plain = simulate([first, second], replace(CONFIG, async_scheduling=False), QUICK)
    steps = [t for t in ahead.times[0].token_s if t > 1.0 + overhead_s(50)]
    started = ahead.times[1].queued_s
    assert started is not None
    assert 1.0 + started == pytest.approx(steps[1])
    steps = [t for t in plain.times[0].token_s if t > 1.0 + overhead_s(50)]
    started = plain.times[1].queued_s
    assert started is not None
    assert 1.0 + started == pytest.approx(steps[0])


def test_the_same_seed_gives_the_same_run_and_another_one_does_not() -> None:
    def run(seed: int) -> VirtualRun:
        return simulate(mixed(), CONFIG, QUICK, seed=seed, noise=0.05)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_more_noise_does_not_change_what_is_computed() -> None:
    quiet, noisy = (simulate(mixed(), CONFIG, QUICK, noise=share) for share in (0.0, 0.2))
    assert [len(t.token_s) for t in quiet.times] == [len(t.token_s) for t in noisy.times]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(0.0001, 0.3), min_size=1, max_size=60))
def test_when_the_clock_is_looked_at_changes_nothing(pauses: list[float]) -> None:
    arrivals = mixed(12)
    exact = simulate(arrivals, CONFIG, QUICK, seed=3, noise=0.02)
    core = EngineCore(CONFIG, QUICK, Noise(share=0.02, seed=3))
    moments: dict[str, list[float]] = {item.request.id: [] for item in arrivals}
    now, index, turn = 0.0, 0, 0
    while index < len(arrivals) or core.next_event_s() is not None:
        now += pauses[turn % len(pauses)]
        turn += 1
        while index < len(arrivals) and arrivals[index].at_s <= now:
            core.submit(arrivals[index].request, arrivals[index].at_s)
            index += 1
        for token in core.advance(now):
            moments[token.sequence.request.id].append(token.at_s)
    assert [tuple(moments[t.id]) for t in exact.times] == [t.token_s for t in exact.times]


def test_the_engine_dies_at_the_step_that_does_not_fit_beside_the_memory_fraction() -> None:
    tight = resolve_config(
        {"gpu_memory_utilization": 0.97, "max_num_batched_tokens": 2560, "max_num_seqs": 32}, QUICK
    )
    small = simulate([arrival(0, "a", 300, 5)], tight, QUICK)
    assert small.died is None
    run = simulate([arrival(0, "a", 300, 500), arrival(1, "b", 2500, 5, 9000)], tight, QUICK)
    assert run.died is not None
    assert run.times[0].token_s
    assert run.times[0].last_token_s is None
    assert run.times[1].token_s == ()


def test_an_aborted_request_gives_no_more_tokens_and_frees_the_engine() -> None:
    core = EngineCore(CONFIG, QUICK)
    sequence = core.submit(SimRequest(id="a", prompt=range(100), output_tokens=1000), 0.0)
    assert core.advance(1.0)
    core.abort(sequence)
    core.advance(2.0)
    assert core.next_event_s() is None
    assert core.scheduler.pool.usage == 0.0


def test_prefix_reuse_shortens_the_second_of_two_equal_prompts() -> None:
    run = simulate([arrival(0, "a", 1600, 2), arrival(2, "b", 1600, 2)], CONFIG, QUICK)
    first, second = (times.ttft_s for times in run.times)
    assert first is not None
    assert second is not None
    assert second < 0.3 * first
    assert run.times[1].cached_tokens == 1584


def test_the_quickstart_profile_rewards_a_larger_cache_and_punishes_too_much() -> None:
    def slow(flags: dict[str, object]) -> float:
        run = simulate(crowd, resolve_config(flags, QUICK), QUICK)
        return sorted(t.ttft_s or 99.0 for t in run.times)[int(0.95 * len(crowd))]

    crowd = [
        arrival(
            0.07 * i, str(i), 2100 if i % 3 == 0 else 300, 25, first=5000 * (i % 7 if i % 3 else i)
        )
        for i in range(110)
    ]
    default, larger = slow({}), slow({"gpu_memory_utilization": 0.95, "max_num_seqs": 32})
    assert larger < 0.9 * default
    assert slow({"max_num_seqs": 4}) > default
