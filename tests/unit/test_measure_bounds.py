"""What a running replay can still become: never better than it turns out, and as sharp."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measure.bounds import Outlook
from autotune.measure.metrics import client_metrics
from autotune.replay.glimpse import Glimpse, OpenRequest
from autotune.replay.records import PlannedRequest, RequestRecord
from autotune.replay.schedule import window_of
from autotune.spec.vocabulary import METRICS

LIMITS = {"ttft": 1.0, "tpot": 0.2, "e2e": 3.0}
CLIENT_METRICS = [
    metric
    for metric in METRICS.values()
    if metric.statistic is not None
    or metric.name in ("success_rate", "goodput", "request_throughput", "output_throughput")
]


@dataclass(frozen=True)
class World:
    """A replay that has happened: the plan and all its records."""

    planned: list[PlannedRequest]
    records: list[RequestRecord]


def planned(index: int, due: float, tokens: int, **more: object) -> PlannedRequest:
    return PlannedRequest(
        index=index,
        due_s=due,
        prompt=(1,),
        output_tokens=tokens,
        **more,  # type: ignore[arg-type]
    )


def record(plan: PlannedRequest, due: float, **more: object) -> RequestRecord:
    return RequestRecord(
        index=plan.index, due_s=due, measured=plan.measured, planned_input_tokens=1,
        planned_output_tokens=plan.output_tokens, sent_s=due, begun_s=due, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def answered(plan: PlannedRequest, wait: float, pace: float, due: float | None = None,
             at_once: int = 1, tail: float = 0.0) -> RequestRecord:  # fmt: skip
    """A success: the first event holds `at_once` tokens, the end comes `tail` after the last."""
    due = plan.due_s if due is None else due
    later = plan.output_tokens - at_once
    last = due + wait + pace * later
    return record(
        plan, due, first_token_s=due + wait, last_token_s=last, end_s=last + tail,
        output_tokens=plan.output_tokens, first_event_tokens=at_once, events=1 + later,
        max_gap_s=pace if later else None,
    )  # fmt: skip


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 24))
    seconds = st.floats(0, 4)
    plans: list[PlannedRequest] = []
    records: list[RequestRecord] = []
    for index in range(count):
        tokens = draw(st.integers(1, 6))
        after = draw(st.sampled_from([None, None, None, *range(index)]))
        gap = draw(st.floats(0, 1))
        measured = draw(st.integers(0, 9)) > 0
        due = draw(seconds)
        plan = planned(index, due, tokens, after=after, gap_s=gap, measured=measured)
        if after is not None:
            due = max(due, (records[after].end_s or 0.0) + gap)
        plans.append(plan)
        wait, pace = draw(st.floats(0, 3)), draw(st.floats(0, 0.5))
        if draw(st.integers(0, 5)) == 0:
            first = due + wait if draw(st.booleans()) else None
            records.append(
                record(plan, due, first_token_s=first, last_token_s=first, end_s=due + wait + pace,
                       failure="http_5xx")
            )  # fmt: skip
        else:
            at_once = draw(st.integers(1, tokens))
            tail = draw(st.floats(0, 0.3))
            records.append(answered(plan, wait, pace, due, at_once, tail))
    return World(plans, records)


def open_at(done: RequestRecord, at_s: float) -> OpenRequest:
    """What a worker would have shown of a request that was in flight then."""
    first, last = done.first_token_s, done.last_token_s
    answering = first is not None and first <= at_s
    unfinished = last is None or last > at_s
    return OpenRequest(
        index=done.index,
        due_s=done.due_s,
        sent_s=done.sent_s,
        first_s=first if answering and first is not None else at_s,
        last_s=last if not unfinished and last is not None else at_s,
        answering=answering,
        unfinished=unfinished and done.planned_output_tokens > 1,
        first_event_tokens=done.first_event_tokens if answering else 1,
    )


def outlook_at(world: World, moment: float) -> Outlook:
    ended = [r for r in world.records if (r.end_s or 0.0) <= moment]
    running = [r for r in world.records if (r.sent_s or 0.0) <= moment < (r.end_s or 0.0)]
    open_ = [open_at(record, moment) for record in running]
    outlook = Outlook(world.planned, LIMITS)
    outlook.take(Glimpse(at_s=moment, ended=ended, open=open_), {})
    return outlook


@settings(max_examples=400, deadline=None)
@given(worlds(), st.floats(0, 12))
def test_nothing_turns_out_better_than_the_best_that_was_held_possible(
    world: World, moment: float
) -> None:
    found = client_metrics(world.records, window_of(world.records), LIMITS)
    outlook = outlook_at(world, moment)
    for metric in CLIENT_METRICS:
        final = found.metrics[metric.key]
        if final is None and metric.key in found.unbounded:
            final = math.inf
        best = outlook.best(metric)
        if final is None or best is None:
            continue
        assert best <= final if metric.goal == "lower" else best >= final, metric.name


@settings(max_examples=200, deadline=None)
@given(worlds(), st.floats(0, 12), st.sampled_from(["ttft_p50", "ttft_p95", "tpot_p90", "e2e_p99"]))
def test_a_limit_is_out_of_reach_exactly_when_enough_requests_are_over_it(
    world: World, moment: float, name: str
) -> None:
    metric, outlook = METRICS[name], outlook_at(world, moment)
    best = outlook.best(metric)
    for limit in (0.0, 0.1, 0.5, 2.0):
        tally = outlook.tally(metric, limit)
        if tally is not None and best is not None:
            assert (best > limit) == (tally.over >= tally.needed)


@settings(max_examples=200, deadline=None)
@given(worlds(), st.floats(0, 12))
def test_once_a_limit_is_out_of_reach_what_was_seen_is_beyond_it(
    world: World, moment: float
) -> None:
    outlook = outlook_at(world, moment)
    for metric in CLIENT_METRICS:
        best, seen = outlook.best(metric), outlook.seen(metric)
        if best is not None and metric.goal == "lower" and best > 0:
            assert seen is not None, metric.name
            assert seen >= best * (1 - 1e-9), metric.name


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_at_the_end_the_best_is_the_metric_itself(world: World) -> None:
    found = client_metrics(world.records, window_of(world.records), LIMITS)
    outlook = outlook_at(world, 1e9)
    follows = any(p.measured and p.after is not None for p in world.planned)
    for metric in CLIENT_METRICS:
        final, best = found.metrics[metric.key], outlook.best(metric)
        late = metric.statistic is None and metric.name != "success_rate"
        same_due = outlook.best(METRICS["goodput"]) is None  # no window of its own
        if final is not None and not (late and (follows or same_due)):
            assert best == pytest.approx(final, rel=1e-6), metric.name


# ---- one by one


def even(count: int, tokens: int = 3) -> list[PlannedRequest]:
    return [planned(index, 0.1 * index, tokens) for index in range(count)]


def seen(plans: list[PlannedRequest], at_s: float, ended: list[RequestRecord],
         open_: list[OpenRequest] | None = None) -> Outlook:  # fmt: skip
    outlook = Outlook(plans, LIMITS)
    outlook.take(Glimpse(at_s=at_s, ended=ended, open=open_ or []), {})
    return outlook


def waiting(plan: PlannedRequest, now: float) -> OpenRequest:
    return OpenRequest(
        index=plan.index, due_s=plan.due_s, sent_s=plan.due_s, first_s=now, last_s=now,
        answering=False, unfinished=True, first_event_tokens=1,
    )  # fmt: skip


def test_one_request_too_few_leaves_the_percentile_in_reach() -> None:
    plans = even(100)
    slow = [answered(plan, 2.0, 0.0) for plan in plans[:6]]
    # The p95 of 100 is the 95th smallest: six above the limit put it out of reach, five do not
    assert seen(plans, 9.0, slow[:5]).best(METRICS["ttft_p95"]) == 0.0
    assert seen(plans, 9.0, slow).best(METRICS["ttft_p95"]) == pytest.approx(2.0)


def test_requests_that_still_wait_count_with_what_they_have_waited() -> None:
    plans = even(100)
    now = plans[5].due_s + 1.0
    outlook = seen(plans, now, [], [waiting(plan, now) for plan in plans[:6]])
    assert outlook.best(METRICS["ttft_p95"]) == pytest.approx(1.0)
    assert outlook.best(METRICS["e2e_p95"]) == pytest.approx(1.0)
    assert outlook.best(METRICS["tpot_p95"]) == 0.0
    assert outlook.best(METRICS["chunk_gap_p95"]) == 0.0


def test_failures_are_beyond_every_limit() -> None:
    plans = even(20)
    lost = [record(plan, plan.due_s, end_s=1.0, failure="http_5xx") for plan in plans[:2]]
    outlook = seen(plans, 1.0, lost)
    assert outlook.best(METRICS["tpot_p95"]) == math.inf
    assert outlook.best(METRICS["success_rate"]) == pytest.approx(0.9)


def test_an_answer_of_one_token_leaves_the_sample_of_tpot() -> None:
    plans = [planned(i, 0.0, 1 if i < 10 else 3) for i in range(20)]
    short = [answered(plan, 0.1, 0.0) for plan in plans[:10]]
    slow = answered(plans[10], 0.1, 1.0)
    # Ten samples are left, so a single slow one is the p95
    assert seen(plans, 9.0, [*short, slow]).best(METRICS["tpot_p95"]) == pytest.approx(1.0)
    assert seen(plans, 9.0, [*short[:9], slow]).best(METRICS["tpot_p95"]) == pytest.approx(1.0)
    assert seen(plans, 9.0, [slow]).best(METRICS["tpot_p95"]) == 0.0


def test_a_running_answer_bounds_its_own_pace_only_while_tokens_must_come() -> None:
    plans = even(1, tokens=5)
    running = OpenRequest(0, 0.0, 0.0, 0.5, 4.5, True, True, 1)
    assert seen(plans, 4.5, [], [running]).best(METRICS["tpot_p95"]) == pytest.approx(1.0)
    ending = OpenRequest(0, 0.0, 0.0, 0.5, 4.5, True, False, 1)
    assert seen(plans, 4.5, [], [ending]).best(METRICS["tpot_p95"]) == 0.0


def test_a_mean_is_bounded_by_the_rest_at_no_time_at_all() -> None:
    plans = even(4)
    slow = [answered(plan, 2.0, 0.0) for plan in plans[:2]]
    assert seen(plans, 9.0, slow).best(METRICS["ttft_mean"]) == pytest.approx(1.0)
    assert seen(plans, 9.0, slow).best(METRICS["ttft_max"]) == pytest.approx(2.0)


def test_after_the_window_nothing_more_counts_as_its_throughput() -> None:
    plans = even(10)
    done = [answered(plan, 0.05, 0.01) for plan in plans[:5]]
    late = [waiting(plan, 1.5) for plan in plans[5:]]
    outlook = seen(plans, 1.5, done, late)
    assert outlook.best(METRICS["request_throughput"]) == pytest.approx(5.0)
    assert outlook.best(METRICS["output_throughput"]) == pytest.approx(15.0)
    half = seen(plans, 0.5, done, [waiting(plan, 0.5) for plan in plans[5:6]])
    assert half.best(METRICS["request_throughput"]) == pytest.approx(10.0)


def test_what_only_the_end_knows_is_not_bounded() -> None:
    outlook = seen(even(10), 1.0, [])
    for name in ("queue_p95", "prefix_hit_rate", "power_mean", "energy_per_1k_tokens", "capacity"):
        assert outlook.best(METRICS[name]) is None


def test_gauges_that_only_rise_are_bounded_by_what_was_seen() -> None:
    outlook = Outlook(even(10), LIMITS)
    outlook.take(Glimpse(at_s=1.0, ended=[], open=[]), {"kv_usage_max": 0.97, "preemptions": None})
    assert outlook.best(METRICS["kv_usage_max"]) == 0.97
    assert outlook.best(METRICS["preemptions"]) is None
