"""Virtual time is computed by counters; step by step it is what the engine's core does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.simulator import core as core_module
from autotune.simulator.block_runs import RunPool
from autotune.simulator.config import EngineConfig, resolve_config
from autotune.simulator.core import EngineCore, Noise
from autotune.simulator.memory import MemoryPlan, plan_memory
from autotune.simulator.profile import load_profile
from autotune.simulator.scheduler import Running, SimRequest
from autotune.simulator.virtual import Traffic, VirtualArrival, VirtualRun, simulate

QUICK = load_profile("quickstart")
AMPLE = plan_memory(resolve_config({}, QUICK), QUICK)


@dataclass(frozen=True)
class Case:
    arrivals: list[VirtualArrival]
    config: EngineConfig
    memory: MemoryPlan
    noise: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small engines under load: shared prefixes, tight caches, every scheduling setting."""
    budget = draw(st.sampled_from((8, 16, 64, 300)))
    size = draw(st.sampled_from((2, 4, 16)))
    config = EngineConfig(
        max_model_len=256,
        max_num_batched_tokens=budget,
        max_num_seqs=draw(st.integers(1, min(budget, 12))),
        gpu_memory_utilization=0.9,
        block_size=size,
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=budget < 300 or draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 7, 20))),
        async_scheduling=draw(st.booleans()),
    )
    rng = draw(st.randoms(use_true_random=False))
    heads = [[rng.randrange(1000) for _ in range(50)] for _ in range(3)]
    arrivals = []
    for i in range(draw(st.integers(1, 30))):
        shared = rng.choice(heads)[: rng.randint(0, 50)]
        own = [2000 + 100 * i + j for j in range(rng.randint(0 if shared else 1, 60))]
        request = SimRequest(id=str(i), prompt=shared + own, output_tokens=rng.randint(1, 40))
        arrivals.append(VirtualArrival(at_s=rng.choice((0.0, 3 * rng.random())), request=request))
    longest = max(len(a.request.prompt) + a.request.output_tokens for a in arrivals)
    blocks = -(-longest // size) + draw(st.sampled_from((0, 1, 3, 10, 50, 1000)))
    memory = replace(AMPLE, num_blocks=blocks)
    if draw(st.integers(0, 9)) == 0:
        memory = replace(memory, load_per_token=1.0, load_per_seq=0.0, headroom=0.8 * budget)
    return Case(arrivals, config, memory, draw(st.sampled_from((0.0, 0.1))))


def by_the_core(case: Case) -> tuple[EngineCore, dict[str, list[float]], dict[str, Running]]:
    """The same replay by the core that stands behind the HTTP server, event by event."""
    core = EngineCore(case.config, QUICK, Noise(share=case.noise, seed=5))
    moments: dict[str, list[float]] = {a.request.id: [] for a in case.arrivals}
    known: dict[str, Running] = {}
    pending = sorted(case.arrivals, key=lambda arrival: arrival.at_s)
    while True:
        event_s = core.next_event_s()
        if pending and (event_s is None or pending[0].at_s <= event_s) and core.dead is None:
            arrival = pending.pop(0)
            known[arrival.request.id] = core.submit(arrival.request, arrival.at_s)
            continue
        if event_s is None:
            return core, moments, known
        for token in core.advance(event_s):
            moments[token.sequence.request.id].append(token.at_s)


@settings(deadline=None, max_examples=150)
@given(cases())
def test_every_token_comes_when_the_engine_core_gives_it(case: Case) -> None:
    run = simulate(
        case.arrivals, case.config, QUICK, seed=5, noise=case.noise, memory=case.memory
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "plan_memory", lambda *_: case.memory)
        core, moments, known = by_the_core(case)
    assert run.steps == core.steps
    for times in run.times:
        assert times.token_s == pytest.approx(moments[times.id], rel=1e-9)
        sequence = known.get(times.id)
        if sequence is not None:
            assert times.cached_tokens == sequence.cached_tokens
            assert times.preemptions == sequence.preemptions
            if sequence.scheduled_s is not None:
                assert times.queued_s == pytest.approx(sequence.scheduled_s - times.sent_s)
    counters = core.scheduler.counters
    assert run.preemptions == counters.preemptions
    assert (run.prefix_queries, run.prefix_hits) == (counters.prefix_queries, counters.prefix_hits)
    assert run.died == core.dead


def ask(name: str, at_s: float, prompt: int, output: int, **more: object) -> VirtualArrival:
    request = SimRequest(id=name, prompt=range(prompt), output_tokens=output)
    return VirtualArrival(at_s=at_s, request=request, **more)  # type: ignore[arg-type]


def test_a_later_turn_is_sent_after_the_answer_before_it_and_not_before_its_time() -> None:
    config = resolve_config({}, QUICK)
    turns = [
        ask("first", 0.0, 500, 40),
        ask("second", 0.0, 600, 5, after="first", gap_s=0.5),
        ask("late", 60.0, 700, 5, after="second"),
    ]
    first, second, late = simulate(turns, config, QUICK).times
    assert first.last_token_s is not None
    assert second.sent_s == pytest.approx(first.last_token_s + 0.5)
    assert late.sent_s == 60.0
    assert second.cached_tokens > 0


def test_nobody_asks_on_after_an_answer_that_never_came() -> None:
    config = resolve_config({}, QUICK)
    memory = replace(AMPLE, load_per_token=1.0, headroom=300.0)
    turns = [ask("first", 0.0, 500, 40), ask("second", 0.0, 600, 5, after="first")]
    run = simulate(turns, config, QUICK, memory=memory)
    assert run.died is not None
    assert [times.token_s for times in run.times] == [(), ()]


def test_prepared_traffic_gives_the_same_run_again_and_under_other_settings() -> None:
    arrivals = [ask(str(i), 0.1 * i, 300 + 40 * i, 10) for i in range(8)]
    traffic = Traffic(arrivals)
    for flags in ({}, {"max_num_seqs": 2}, {"block_size": 32}, {}):
        config = resolve_config(flags, QUICK)
        assert simulate(traffic, config, QUICK) == simulate(arrivals, config, QUICK)


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ValueError, match="repeat"):
        Traffic([ask("a", 0.0, 5, 5), ask("a", 1.0, 5, 5)])
    with pytest.raises(ValueError, match="unknown"):
        Traffic([ask("a", 0.0, 5, 5, after="b")])
    config = resolve_config({"max_num_seqs": 64, "max_num_batched_tokens": 32}, QUICK)
    with pytest.raises(ValueError, match="max_num_seqs"):
        simulate([ask("a", 0.0, 5, 5)], config, QUICK)


def test_a_pool_hands_out_unused_blocks_first_and_then_the_longest_freed() -> None:
    pool = RunPool(10)
    pool.allocate(4)
    pool.release([], tail=4)
    assert (pool.free, pool.fresh) == (10, 6)
    pool.allocate(7)
    assert (pool.free, pool.fresh) == (3, 0)


def run_of(noise: float) -> VirtualRun:
    arrivals = [ask(str(i), 0.1 * i, 300 + 40 * i, 10) for i in range(8)]
    return simulate(arrivals, resolve_config({}, QUICK), QUICK, noise=noise, seed=1)


def test_noise_moves_tokens_and_keeps_their_number() -> None:
    quiet, noisy = run_of(0.0), run_of(0.2)
    assert quiet != noisy
    assert [len(t.token_s) for t in quiet.times] == [len(t.token_s) for t in noisy.times]
