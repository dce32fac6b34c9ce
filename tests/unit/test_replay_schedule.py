from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.replay.records import PlannedRequest, RequestRecord
from autotune.replay.schedule import check_plan, closed_loop, horizon_s, partition, window_of


def plan(index: int, due_s: float = 0.0, **more: object) -> PlannedRequest:
    return PlannedRequest(index=index, due_s=due_s, prompt=(1,), output_tokens=1, **more)  # type: ignore[arg-type]


@st.composite
def plans(draw: st.DrawFn) -> list[PlannedRequest]:
    """Plans of independent requests and of sessions, in any order."""
    requests: list[PlannedRequest] = []
    last: dict[str, int] = {}
    for index in range(draw(st.integers(0, 40))):
        session = draw(st.sampled_from([None, None, "a", "b", "c"]))
        chained = session is not None and session in last and draw(st.booleans())
        due = draw(st.floats(0, 60, allow_nan=False))
        after = last[session] if chained and session is not None else None
        requests.append(plan(index, due, session=session, after=after, gap_s=1.0))
        if session is not None:
            last[session] = index
    return draw(st.permutations(requests))


@settings(deadline=None)
@given(plans(), st.integers(1, 5))
def test_shares_hold_every_request_once_in_order_of_time(
    requests: list[PlannedRequest], workers: int
) -> None:
    shares = partition(requests, workers)

    assert len(shares) == workers
    assert sorted(r.index for share in shares for r in share) == sorted(r.index for r in requests)
    assert all(share == sorted(share, key=lambda r: (r.due_s, r.index)) for share in shares)


@settings(deadline=None)
@given(plans(), st.integers(1, 5))
def test_sessions_and_links_stay_with_one_worker(
    requests: list[PlannedRequest], workers: int
) -> None:
    shares = partition(requests, workers)
    home = {r.index: number for number, share in enumerate(shares) for r in share}
    sessions: dict[str, set[int]] = {}
    for request in requests:
        if request.session is not None:
            sessions.setdefault(request.session, set()).add(home[request.index])
        if request.after is not None:
            assert home[request.index] == home[request.after]

    assert all(len(homes) == 1 for homes in sessions.values())


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 5))
def test_independent_requests_are_interleaved(count: int, workers: int) -> None:
    shares = partition([plan(i, i * 0.1) for i in range(count)], workers)

    assert [[r.index for r in s] for s in shares] == [
        list(range(w, count, workers)) for w in range(workers)
    ]


def test_a_plan_with_a_circle_a_gap_or_a_double_is_refused() -> None:
    check_plan([plan(0), plan(1, after=0), plan(2, after=1)])
    with pytest.raises(ValueError, match="waits for itself"):
        check_plan([plan(0, after=1), plan(1, after=0)])
    with pytest.raises(ValueError, match="not planned"):
        check_plan([plan(0, after=7)])
    with pytest.raises(ValueError, match="same index"):
        check_plan([plan(3), plan(3)])


def test_the_horizon_counts_gaps_of_a_chain() -> None:
    chain = [plan(0, 2.0), plan(1, 0.0, after=0, gap_s=3.0), plan(2, 0.0, after=1, gap_s=4.0)]

    assert horizon_s([plan(9, 5.0), *reversed(chain)]) == 9.0
    assert horizon_s([]) == 0.0


def test_a_long_chain_is_no_deep_recursion() -> None:
    chain = [plan(0), *(plan(i, after=i - 1, gap_s=0.5) for i in range(1, 5000))]
    check_plan(chain[::-1])

    assert horizon_s(chain[::-1]) == pytest.approx(2499.5)


def record(due_s: float, *, measured: bool = True, end_s: float | None = None) -> RequestRecord:
    return RequestRecord(
        index=0, due_s=due_s, measured=measured, end_s=end_s,
        planned_input_tokens=1, planned_output_tokens=1,
    )  # fmt: skip


def test_the_window_of_an_even_rate_is_requests_over_rate() -> None:
    background = [record(0.0, measured=False), record(99.0, measured=False)]

    start, end = window_of([*background, *(record(10 + k * 0.5) for k in range(20))])

    assert (start, end) == (10.0, pytest.approx(20.0))


def test_the_window_of_a_single_burst_ends_with_its_last_answer() -> None:
    assert window_of([record(1.0, end_s=3.0), record(1.0, end_s=4.0)]) == (1.0, 4.0)
    assert window_of([]) == (0.0, 0.0)


def test_a_closed_loop_links_each_request_to_the_one_a_users_turn_before() -> None:
    loop = closed_loop([plan(k, 9.0, session="s") for k in (4, 2, 8, 6)], 3)

    assert [(r.index, r.after, r.due_s, r.measured) for r in loop] == [
        (0, None, 0.0, False),
        (1, None, 0.0, False),
        (2, None, 0.0, False),
        (3, 0, 0.0, False),
    ]
