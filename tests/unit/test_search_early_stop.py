"""When a replay is ended early, and what is said of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.outcome import CANNOT_BEAT_BEST
from autotune.replay.glimpse import Glimpse, OpenRequest
from autotune.replay.records import PlannedRequest, RequestRecord
from autotune.search.early_stop import Bar, EarlyStop, bars, diagnosis_of, trend_p
from autotune.spec.expressions import parse_constraint, parse_objective

TTFT = parse_objective("minimize ttft_p95")
LIMIT = parse_constraint("ttft_p95 <= 500ms")
RELATIVE = parse_constraint("tpot_p95 <= 1.1 x baseline")
PLAN = [PlannedRequest(index=i, due_s=0.1 * i, prompt=(1,), output_tokens=3) for i in range(200)]


def answered(plan: PlannedRequest, wait: float, failure: object = None) -> RequestRecord:
    first = plan.due_s + wait
    return RequestRecord(
        index=plan.index, due_s=plan.due_s, measured=True, planned_input_tokens=1,
        planned_output_tokens=3, sent_s=plan.due_s, first_token_s=first, last_token_s=first + 0.04,
        end_s=first + 0.04, output_tokens=3, failure=failure,  # type: ignore[arg-type]
    )  # fmt: skip


def waiting(plan: PlannedRequest, now: float) -> OpenRequest:
    return OpenRequest(plan.index, plan.due_s, plan.due_s, now, now, False, True, 1)


def watch(reach: Sequence[Bar], **more: object) -> EarlyStop:
    return EarlyStop(PLAN, reach, [LIMIT], **more)  # type: ignore[arg-type]


def reach(to_beat: float | None = None) -> list[Bar]:
    return bars([TTFT], [LIMIT], baseline=None, to_beat=to_beat)


def test_a_trial_has_to_reach_every_limit_and_the_best_so_far() -> None:
    found = bars([TTFT], [LIMIT, RELATIVE], baseline={"tpot_p95_s": 0.02}, to_beat=0.3)
    assert [(bar.key, bar.op, bar.limit) for bar in found] == [
        ("ttft_p95 <= 500ms", "<=", 0.5),
        ("tpot_p95 <= 1.1 x baseline", "<=", pytest.approx(0.022)),
        (CANNOT_BEAT_BEST, "<=", 0.3),
    ]


def test_a_relative_limit_without_a_baseline_and_the_best_of_several_goals_are_no_bars() -> None:
    two = [TTFT, parse_objective("maximize output_throughput")]
    assert bars(two, [RELATIVE], baseline=None, to_beat=0.3) == []


def test_the_stop_comes_with_the_request_that_puts_the_limit_out_of_reach() -> None:
    slow = [answered(plan, 0.8) for plan in PLAN[:11]]
    stop = watch(reach())
    assert not stop.look(Glimpse(at_s=2.0, ended=slow[:10], open=[]), {})
    assert stop.look(Glimpse(at_s=2.1, ended=slow[10:], open=[]), {})
    end = stop.end
    assert end is not None
    assert (end.rule, end.key, end.over, end.needed, end.planned) == (
        "limit_out_of_reach", LIMIT.text, 11, 11, 200,
    )  # fmt: skip
    assert end.best == pytest.approx(0.8)
    assert end.violation == pytest.approx(0.6)
    assert diagnosis_of(end).message == (
        "stopped 2 s into a replay of 20 s: 11 of 200 requests are beyond ttft_p95 <= 500ms, "
        "11 put it out of reach"
    )


def test_a_value_as_good_as_the_best_is_not_given_up() -> None:
    equal = [answered(plan, 0.25) for plan in PLAN]
    stop = watch(reach(to_beat=equal[0].first_token_s))
    assert not stop.look(Glimpse(at_s=30.0, ended=equal, open=[]), {})


def test_what_only_is_worse_than_the_best_breaks_no_limit() -> None:
    stop = watch(reach(to_beat=0.2))
    slower = [answered(plan, 0.3) for plan in PLAN[:11]]
    assert stop.look(Glimpse(at_s=2.0, ended=slower, open=[]), {})
    assert stop.end is not None
    assert (stop.end.rule, stop.end.key) == ("cannot_beat_best", CANNOT_BEAT_BEST)
    assert stop.end.violation == pytest.approx(0.5)
    assert "the best so far (minimize ttft_p95: 0.2)" in stop.end.sentence


def test_the_size_of_a_violation_is_what_was_seen_and_not_the_bare_bound() -> None:
    stop = watch(reach())
    now = 6.0
    # Everybody has waited since the start: the bound is the 11th longest wait, the p95 seen is more
    assert stop.look(Glimpse(at_s=now, ended=[], open=[waiting(p, now) for p in PLAN[:60]]), {})
    assert stop.end is not None
    assert stop.end.best == pytest.approx(5.0)
    assert stop.end.seen == pytest.approx(5.7)
    assert stop.end.violation == pytest.approx(5.7 / 0.5 - 1)


def test_failures_alone_count_by_their_share() -> None:
    stop = watch(reach())
    lost = [answered(plan, 0.1, failure="http_5xx") for plan in PLAN[:11]]
    good = [answered(plan, 0.1) for plan in PLAN[11:33]]
    assert stop.look(Glimpse(at_s=4.0, ended=[*lost, *good], open=[]), {})
    assert stop.end is not None
    assert (stop.end.best, stop.end.seen) == (None, None)
    assert stop.end.violation == pytest.approx(11 / 33)
    assert all(math.isfinite(v) for v in stop.end.to_json().values() if isinstance(v, float))


def test_what_is_saved_is_the_rest_of_the_trace_and_the_longest_wait_as_its_drain() -> None:
    slow = [answered(plan, 1.96) for plan in PLAN[:11]]
    stop = watch(reach(), drain_s=60.0)
    assert stop.look(Glimpse(at_s=4.0, ended=slow, open=[]), {})
    assert stop.end is not None
    assert stop.end.saved_s == pytest.approx(PLAN[-1].due_s + 2.0 - 4.0)


def test_gauges_of_the_server_can_end_a_replay() -> None:
    full = bars([TTFT], [parse_constraint("kv_usage_max <= 0.95")], baseline=None, to_beat=None)
    stop = watch(full)
    nothing = Glimpse(at_s=1.0, ended=[], open=[])
    assert not stop.look(nothing, {"kv_usage_max": 0.95})
    assert stop.look(nothing, {"kv_usage_max": 0.97})
    assert stop.end is not None
    assert stop.end.sentence.endswith("kv_usage_max <= 0.95 is out of reach: 0.97 at best")


# ---- the growing queue


MEDIAN = bars([TTFT], [parse_constraint("ttft_p50 <= 2s")], baseline=None, to_beat=None)


def overloaded(mode: str, slope: float) -> EarlyStop:
    """After 12 of 20 s; every request waits `slope` seconds longer per second of the trace."""
    stop, now = watch(MEDIAN, mode=mode), 12.0
    due = [answered(plan, 0.05 + slope * plan.due_s) for plan in PLAN if plan.due_s <= now]
    ended = [r for r in due if (r.end_s or 0.0) <= now]
    open_ = [waiting(PLAN[r.index], now) for r in due if (r.end_s or 0.0) > now]
    stop.look(Glimpse(at_s=now, ended=ended, open=open_), {})
    return stop


def test_a_growing_queue_is_hopeless_only_if_that_was_asked_for() -> None:
    assert overloaded("exact", 0.6).end is None
    end = overloaded("growing_queue", 0.6).end
    assert end is not None
    assert (end.rule, end.key) == ("growing_queue", "ttft_p50 <= 2s")
    assert end.violation > 0
    assert end.best is not None
    assert end.best < end.limit
    assert end.sentence.endswith("the queue grows, ttft_p50 <= 2s will not be reached")


def test_a_queue_that_is_long_and_steady_is_left_alone() -> None:
    assert overloaded("growing_queue", 0.0).end is None


def test_a_queue_that_grows_too_slowly_to_miss_the_limit_is_left_alone() -> None:
    assert overloaded("growing_queue", 0.1).end is None


@given(st.permutations(range(6)))
def test_the_chance_of_a_rise_is_the_share_of_orders_that_rise_as_much(order: list[int]) -> None:
    def rises(values: Sequence[int]) -> int:
        return sum(b > a for i, a in enumerate(values) for b in values[i + 1 :])

    orders = list(itertools.permutations(range(6)))
    share = sum(rises(o) >= rises(order) for o in orders) / len(orders)
    assert trend_p([float(v) for v in order]) == pytest.approx(share)
