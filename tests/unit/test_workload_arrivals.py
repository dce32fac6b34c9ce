from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.workload.arrivals import bucket_note, find_buckets, spread_arrivals, thinned
from autotune.workload.priming import prime
from autotune.workload.trace import Request, Trace
from autotune.workload.windows import automatic_window_s, select


def trace_of(times: list[float], *, sessions: list[str | None] | None = None) -> Trace:
    names = sessions or [None] * len(times)
    return Trace(
        requests=tuple(
            Request(at_s=t, input_tokens=10 + i % 7, output_tokens=2, session=name, line=i + 1)
            for i, (t, name) in enumerate(zip(times, names, strict=True))
        )
    )


def bucketed(step_s: float, counts: list[int]) -> Trace:
    return trace_of([i * step_s for i, count in enumerate(counts) for _ in range(count)])


def test_mooncake_like_buckets_are_found_though_a_millisecond_off() -> None:
    times = [0.0, 0.0, 3.0, 3.0, 5.999, 9.0, 9.0, 9.0, 12.001, 12.001, 18.0, 18.0]
    found = find_buckets(trace_of(times).requests)
    assert found is not None
    assert found.step_s == 3.0
    assert found.identical == pytest.approx(11 / 12)
    assert "steps of 3 s" in (bucket_note(trace_of(times)) or "")


def test_arrivals_on_no_grid_or_rarely_together_are_left_alone() -> None:
    assert find_buckets(trace_of([0.0, 0.4, 1.13, 1.9, 2.41, 3.77]).requests) is None
    assert find_buckets(trace_of([0.0]).requests) is None
    assert bucket_note(trace_of([float(i) for i in range(50)])) is None
    same = trace_of([0.0, 0.4, 1.13, 1.9])
    assert spread_arrivals(same, seed=0)[0] is same


@given(st.lists(st.integers(0, 6), min_size=8, max_size=40), st.integers(0, 99))
@settings(max_examples=60)
def test_spreading_keeps_order_and_buckets_and_is_the_same_for_a_seed(
    counts: list[int], seed: int
) -> None:
    counts = [max(1, counts[0]), *counts[1:]]
    trace = bucketed(2.0, counts)
    found = find_buckets(trace.requests)
    if found is None:
        return
    step = found.step_s
    spread, note = spread_arrivals(trace, seed=seed)
    assert spread_arrivals(trace, seed=seed)[0] == spread
    assert [r.line for r in spread.requests] == [r.line for r in trace.requests]
    assert spread.requests[0].at_s == 0.0
    for before, after in zip(trace.requests, spread.requests, strict=True):
        # The first one's own offset, below a step, is taken from all
        assert -step - 1e-6 <= after.at_s - before.at_s < step + 1e-6
    assert "spread evenly" in note


@given(
    st.lists(st.sampled_from([None, "a", "b", "c", "d", "e"]), min_size=1, max_size=60),
    st.floats(0.01, 1.0),
    st.integers(0, 9),
)
def test_thinning_keeps_sessions_whole_and_the_share(
    sessions: list[str | None], share: float, seed: int
) -> None:
    trace = trace_of([float(i) for i in range(len(sessions))], sessions=sessions)
    thin = thinned(trace, share, seed=seed)
    assert thin == thinned(trace, share, seed=seed)
    for name in {name for name in sessions if name is not None}:
        kept = sum(r.session == name for r in thin.requests)
        assert kept in (0, sessions.count(name))
    units = len({name for name in sessions if name}) + sessions.count(None)
    left = len({r.session for r in thin.requests if r.session})
    left += sum(r.session is None for r in thin.requests)
    assert left == max(1, round(share * units))


def test_what_was_done_is_said() -> None:
    trace = bucketed(3.0, [4] * 200)
    chosen = select(trace, thin=0.5, spread=True)
    said = " ".join((*chosen.notes, *chosen.portrait))
    assert "thinned to 0.5 (whole sessions, seed 0): 400 of 800 requests" in said
    assert "recorded in steps of 3 s" in said
    assert "represents it" in said
    hint = " ".join(select(trace).notes)
    assert "`workload: {spread_arrivals: true}` spreads them" in hint


def test_without_a_window_a_short_recording_is_replayed_whole() -> None:
    chosen = select(trace_of([float(i) for i in range(19)]))
    assert chosen.held_out is None
    assert len(chosen.search.requests) == 19
    assert chosen.notes == ("the whole recording is replayed; no part of it is held out",)


def test_without_a_window_half_is_held_out() -> None:
    chosen = select(trace_of([float(i) for i in range(60)]))
    assert chosen.held_out is not None
    assert len(chosen.search.requests) + len(chosen.held_out.requests) == 60
    assert "half of the recording" in chosen.notes[0]


def test_without_a_window_a_long_recording_gets_a_bounded_one() -> None:
    slow = trace_of([i * 30.0 for i in range(2000)])
    assert automatic_window_s(slow)[0] == 600.0
    assert automatic_window_s(slow, time_scale=2.0)[0] == 1200.0
    fast = trace_of([i * 0.05 for i in range(40_000)])
    assert automatic_window_s(fast)[0] == 120.0
    middle = trace_of([i * 0.4 for i in range(40_000)])
    assert automatic_window_s(middle)[0] == pytest.approx(200.0, rel=0.01)


def test_without_a_window_traffic_all_in_one_half_is_not_split() -> None:
    lopsided = trace_of([*(i * 0.01 for i in range(60)), 100.0])
    assert automatic_window_s(lopsided) == (None, None)
    assert automatic_window_s(trace_of([0.0] * 50)) == (None, None)


def test_a_measurement_of_one_server_holds_nothing_out() -> None:
    trace = trace_of([float(i) for i in range(100)])
    chosen = select(trace, hold_out=False)
    assert len(chosen.search.requests) == 100
    assert chosen.notes == ()
    cut = select(trace, window_s=30.0, hold_out=False)
    assert cut.held_out is None
    assert len(cut.search.requests) in (30, 31)


def primed(prefixes: int) -> Trace:
    """A history of long prefixes, then the same again with own tails."""
    rows = [
        Request(at_s=float(i), input_tokens=100, output_tokens=1, blocks=tuple(range(b, b + 10)))
        for i, b in enumerate(range(0, prefixes * 100, 100))
    ]
    later = [
        Request(
            at_s=1000.0 + i,
            input_tokens=110,
            output_tokens=1,
            blocks=(*range(b, b + 10), 10_000 + i),
        )
        for i, b in enumerate(range(0, prefixes * 100, 100))
    ]
    return Trace(requests=(*rows, *later), block_size=10)


def test_priming_is_bounded_by_default_by_the_cache_and_by_what_is_asked() -> None:
    trace = primed(50)
    assert prime(trace, 50, 100, None).tokens == 1100  # a fifth of 50 x 110
    assert prime(trace, 50, 100, None, 500).tokens == 500
    assert prime(trace, 50, 100, 3000, 500).tokens == 3000
    whole = prime(trace, 50, 100, 10**9)
    assert (whole.found, whole.tokens, whole.found_tokens) == (50, 5000, 5000)
    some = prime(trace, 50, 100, 3000)
    assert some.requests == whole.requests[20:], "the most recently used, oldest first"
    assert some.described("window") == (
        "window is primed with 30 prefixes that came before it, 3,000 of 5,000 tokens; "
        "20 older ones are left out"
    )
    off = prime(trace, 50, 100, 0)
    assert off.requests == ()
    assert off.described("window") == "window: not primed; 50 prefixes came before it"
    assert prime(trace, 0, 50, None).described("window") is None
