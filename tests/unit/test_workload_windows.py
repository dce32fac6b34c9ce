from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.workload.scenarios import SCENARIOS, make
from autotune.workload.statistics import describe, hit_tokens, nearest_rank, peak_rate, prefix_reuse
from autotune.workload.synthesis import Lengths, Part, Process, synthesize
from autotune.workload.trace import Request, Trace
from autotune.workload.windows import select


def trace_of(times: list[float], tokens: int = 10, **more: object) -> Trace:
    rows = [
        Request(at_s=t, input_tokens=tokens, output_tokens=2, line=i + 1, **more)  # type: ignore[arg-type]
        for i, t in enumerate(times)
    ]
    return Trace(requests=tuple(rows), block_size=10)


def test_describe_gives_the_contract_and_none_where_nothing_is_known() -> None:
    told = describe(trace_of([0.0, 0.5, 0.9, 1.5]))
    assert told["requests"] == 4
    assert told["duration_s"] == 1.5
    assert told["rate_mean"] == pytest.approx(4 / 1.5)
    assert told["rate_peak_1s"] == 3
    assert told["input_tokens"] == {"p50": 10, "p95": 10, "p99": 10, "max": 10}
    assert told["prefix_reuse"] is None
    assert told["sessions"] is None
    assert told["first_offsets_s"] == [0.0, 0.5, 0.9, 1.5]
    assert describe(trace_of([0.0]))["rate_mean"] is None


def test_prefix_reuse_counts_tokens_of_leading_blocks_only() -> None:
    rows = [(25, (0, 1, 2)), (20, (0, 3)), (25, (0, 1, 2)), (20, (4, 1))]
    trace = Trace(
        requests=tuple(
            Request(at_s=0, input_tokens=n, output_tokens=1, blocks=blocks) for n, blocks in rows
        ),
        block_size=10,
    )
    assert hit_tokens(trace.requests, 10) == [0, 10, 25, 0]
    assert prefix_reuse(trace) == pytest.approx(35 / 90)


@given(st.lists(st.integers(0, 50), min_size=1), st.floats(0.01, 1.0))
def test_nearest_rank_is_a_value_that_enough_values_reach(values: list[int], share: float) -> None:
    found = nearest_rank(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values) - 1e-9
    assert sum(v < found for v in values) < share * len(values) + 1e-9


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40))
def test_peak_rate_is_the_fullest_second(times: list[int]) -> None:
    trace = trace_of(sorted(t / 10 for t in times))
    brute = max(sum(s <= t < s + 10 for t in times) for s in times)
    assert peak_rate(trace.requests) == brute


def test_a_window_like_the_whole_is_chosen_and_another_one_is_held_out() -> None:
    calm = [i * 1.0 for i in range(100)]
    burst = [100 + i * 0.02 for i in range(200)]
    late = [104 + i * 1.0 for i in range(200)]
    chosen = select(trace_of(calm + burst + late), window_s=40)
    start, end = chosen.window_s or (0, 0)
    assert end - start == pytest.approx(40)
    assert chosen.held_out is not None
    assert chosen.search.requests[0].at_s == 0.0
    assert chosen.held_out.requests[0].at_s == 0.0
    assert chosen.search.duration_s <= 40.001
    lines = [{r.line for r in t.requests} for t in (chosen.search, chosen.held_out)]
    assert not lines[0] & lines[1]
    assert "represents it" in chosen.portrait[0]
    assert "(whole 1.65/s)" in chosen.portrait[0]


@pytest.mark.parametrize("window_s", [None, 500.0])
def test_a_short_recording_is_replayed_whole_and_says_so(window_s: float | None) -> None:
    chosen = select(trace_of([0.0, 1.0, 2.0]), window_s=window_s)
    assert len(chosen.search.requests) == 3
    assert chosen.held_out is None
    assert "no part of it is held out" in " ".join(chosen.notes)


def test_no_second_window_is_said() -> None:
    chosen = select(trace_of([i * 1.0 for i in range(30)]), window_s=20)
    assert chosen.held_out is None
    assert "too short for a second window" in " ".join(chosen.notes)


def test_time_scale_divides_arrival_times() -> None:
    chosen = select(trace_of([0.0, 1.0, 3.0]), time_scale=2.0)
    assert [r.at_s for r in chosen.search.requests] == [0.0, 0.5, 1.5]


def test_priming_holds_the_longest_prefixes_known_before_the_window_oldest_first() -> None:
    rows = [
        (0.0, (0, 1)), (1.0, (0, 2)), (2.0, (5,)), (3.0, (9,)),
        (10.0, (0, 1, 7)), (10.5, (0, 3)), (11.0, (5, 8)), (11.0, (6,)), (11.0, (0, 1)),
        (11.0, (0, 2)), (12.0, (99,)),
    ]  # fmt: skip
    trace = Trace(
        requests=tuple(
            Request(at_s=t, input_tokens=10 * len(b) - 3, output_tokens=4, blocks=b)
            for t, b in rows
        ),
        block_size=10,
    )
    chosen = select(trace, window_s=5.0, max_priming_tokens=1000)
    inside = {r.blocks for r in chosen.search.requests}
    assert (6,) in inside, "the busy part is the one like the whole"
    assert [p.blocks for p in chosen.priming] == [(0, 1), (0, 2), (5,)]
    assert [p.input_tokens for p in chosen.priming] == [20, 17, 10]
    assert all(p.output_tokens == 1 for p in chosen.priming)
    bounded = select(trace, window_s=5.0, max_priming_tokens=27)
    assert [p.blocks for p in bounded.priming] == [(0, 2), (5,)]


@given(window_s=st.floats(5, 40), seed=st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_primed_windows_find_what_the_whole_history_would_have_given(
    window_s: float, seed: int
) -> None:
    part = Part(
        inputs=Lengths(median=60, low=5, high=200), outputs=Lengths(median=5, low=1, high=9),
        groups=5, shared_tokens=48,
    )  # fmt: skip
    trace = synthesize([part], process=Process(rate=3), duration_s=60, seed=seed, block_size=16)
    chosen = select(trace, window_s=window_s, max_priming_tokens=10**9)
    if chosen.window_s is None:
        return
    start, end = chosen.window_s
    full = hit_tokens(trace.requests, 16)
    expected = sum(
        hits
        for hits, request in zip(full, trace.requests, strict=True)
        if start <= request.at_s < end or request.at_s == end == trace.duration_s
    )
    primed = hit_tokens([*chosen.priming, *chosen.search.requests], 16)[len(chosen.priming) :]
    assert sum(primed) == expected


def test_a_limit_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no request of the workload fits 5 tokens") as caught:
        select(trace_of([0.0, 1.0]), max_total_tokens=5)
    assert "12" in (caught.value.seen or "")


@pytest.mark.parametrize("arrivals", ["poisson", "gamma", "constant"])
def test_synthetic_traffic_has_the_traits_asked_for(arrivals: str) -> None:
    part = Part(
        inputs=Lengths(median=100, low=40, high=300), outputs=Lengths(median=9, low=2, high=30),
        groups=2, shared_tokens=32,
    )  # fmt: skip
    made = [
        synthesize(
            [part],
            process=Process(kind=arrivals, rate=20),  # type: ignore[arg-type]
            duration_s=60,
            seed=seed,
            block_size=16,
        )
        for seed in (1, 1, 2)
    ]
    assert made[0] == made[1] != made[2]
    requests = made[0].requests
    assert len(requests) == pytest.approx(1200, rel=0.15)
    assert all(40 <= r.input_tokens <= 300 and 2 <= r.output_tokens <= 30 for r in requests)
    assert all(len(r.blocks) == -(-r.input_tokens // 16) for r in requests)
    assert {r.blocks[0] for r in requests} == {0, 2}


def test_an_unknown_scenario_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        make("quickstrat")
    assert all(name in (caught.value.seen or "") for name in SCENARIOS)
    assert caught.value.hint == "did you mean `quickstart`?"
