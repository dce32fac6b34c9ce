"""A replay in virtual time is ended at the very look at which a watched one would be."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.replay.glimpse import LOOK_EVERY_S, Glimpse
from autotune.replay.records import PlannedRequest, RequestRecord
from autotune.search.early_stop import Bar, bars
from autotune.spec.expressions import Constraint
from autotune.spec.vocabulary import METRICS
from autotune.study.virtual_watch import _open, ended_at
from autotune.study.watching import EarlyWatch


def limit(name: str, seconds: float) -> Constraint:
    text = f"{name} <= {seconds}s"
    return Constraint(metric=METRICS[name], op="<=", value=seconds, relative=False, text=text)


def replay(seed: int, count: int) -> tuple[list[PlannedRequest], list[RequestRecord]]:
    """A made-up replay whose requests wait longer and longer; some fail."""
    rng = random.Random(seed)
    planned, records = [], []
    for i in range(count):
        due, output = 0.2 * i, rng.choice((1, 2, 30))
        first = due + rng.expovariate(2.0) + 0.02 * i
        last = first + (output - 1) * rng.uniform(0.01, 0.08)
        planned.append(PlannedRequest(index=i, due_s=due, prompt=range(10), output_tokens=output))
        failure = "in_band_error" if rng.random() < 0.02 else None
        records.append(
            RequestRecord(
                index=i, due_s=due, measured=True, planned_input_tokens=10,
                planned_output_tokens=output, sent_s=due, first_token_s=first, last_token_s=last,
                end_s=last, output_tokens=output, failure=failure,
            )
        )  # fmt: skip
    return planned, records


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 60),
    name=st.sampled_from(("ttft_p50", "ttft_p95", "tpot_p95", "e2e_p90", "ttft_mean")),
    seconds=st.floats(0.005, 2.0),
)
def test_the_look_found_is_the_first_hopeless_one(
    seed: int, count: int, name: str, seconds: float
) -> None:
    planned, records = replay(seed, count)
    found: list[Bar] = bars([], [limit(name, seconds)], baseline=None, to_beat=None)
    watch = EarlyWatch(bars=found, constraints=[], mode="exact")
    until_s = max(record.end_s or 0.0 for record in records)

    def ask() -> object:
        return watch.hopeless(planned, dict, startup_s=None, drain_s=60.0)

    def one_by_one() -> float | None:
        hopeless = watch.hopeless(planned, dict, startup_s=None, drain_s=60.0)
        before_s, look = -1.0, 1
        while (at_s := look * LOOK_EVERY_S) <= until_s:
            ended = [r for r in records if r.end_s is not None and before_s < r.end_s <= at_s]
            running = [r for r in records if r.due_s <= at_s and (r.end_s or 0.0) > at_s]
            glimpse = Glimpse(at_s=at_s, ended=ended, open=[_open(r, at_s) for r in running])
            if hopeless(glimpse):
                return at_s
            before_s, look = at_s, look + 1
        return None

    at_s = ended_at(records, until_s, ask, bars=found, exact=True)  # type: ignore[arg-type]
    assert at_s == one_by_one()
    assert at_s == ended_at(records, until_s, ask, bars=[], exact=True)  # type: ignore[arg-type]
    assert at_s == ended_at(records, until_s, ask, bars=found, exact=False)  # type: ignore[arg-type]


def test_the_watch_that_ended_the_replay_is_the_one_that_tells_why() -> None:
    planned, records = replay(3, 60)
    found = bars([], [limit("ttft_p50", 0.05)], baseline=None, to_beat=None)
    watch = EarlyWatch(bars=found, constraints=[], mode="exact")

    def ask() -> object:
        return watch.hopeless(planned, dict, startup_s=None, drain_s=60.0)

    at_s = ended_at(records, 30.0, ask, bars=found, exact=True)  # type: ignore[arg-type]
    assert at_s is not None
    assert watch._stop is not None
    assert watch._stop.end is not None
    assert watch._stop.end.at_s == pytest.approx(at_s)
