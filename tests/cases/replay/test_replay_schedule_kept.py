"""Kinds of load: the client must not queue, drift, hide its waiting or count its failures away."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.errors import InputError, Interrupted
from autotune.replay.records import ReplayProgress, ReplayResult
from autotune.replay.replayer import ReplayOptions, replay, warm_up

from .conftest import Script, ScriptedServer, good_answer, planned

Serve = Callable[..., ScriptedServer]
Run = Callable[..., ReplayResult]


def test_three_hundred_at_once_do_not_queue_in_the_client(serve: Serve, run: Run) -> None:
    server = serve(lambda number, body: good_answer(3, first=1.0))
    result = run([planned(i, i * 0.0003) for i in range(300)], server)

    assert all(record.failure is None for record in result.records)
    assert result.health.extra["peak_in_flight"] == 300
    # Had any waited for another to end, its TTFT would be 2 s or more.
    ttfts = [(r.first_token_s or 0.0) - r.due_s for r in result.records]
    assert min(ttfts) >= 1.0
    assert max(ttfts) < 1.9


def test_the_rate_does_not_sink_over_the_run(serve: Serve, run: Run) -> None:
    server = serve(lambda number, body: good_answer(3))
    count = 600
    result = run([planned(i, i * 0.005) for i in range(count)], server)
    lags = [(r.begun_s or 0.0) - r.due_s for r in result.records]

    assert [record.due_s for record in result.records] == [i * 0.005 for i in range(count)]
    assert all(record.failure is None for record in result.records)
    assert min(lags) >= 0.0
    # Drift by relative sleeps would add up to half a second and more at the end of the run.
    assert sorted(lags[-100:])[50] < 0.05
    assert result.health.dispatch_lag_p99_s is not None
    assert result.health.dispatch_lag_p99_s >= sorted(lags)[count // 2]
    assert result.window_s == (0.0, pytest.approx(count * 0.005))


def test_waiting_behind_others_counts_from_the_due_time(serve: Serve, run: Run) -> None:
    """A server that takes one request at a time: the eighth waits for seven."""
    free_at = [0.0]

    def one_at_a_time(number: int, body: object) -> Script:
        now = time.monotonic()
        free_at[0] = max(free_at[0], now) + 0.1
        return good_answer(3, first=free_at[0] - now)

    result = run([planned(i, i * 0.02) for i in range(8)], serve(one_at_a_time))
    ttfts = [(r.first_token_s or 0.0) - r.due_s for r in result.records]

    assert all(record.failure is None for record in result.records)
    assert ttfts[7] == pytest.approx(0.8 - 7 * 0.02, abs=0.1)


def test_every_fourth_refused_is_a_quarter_failed_and_nothing_is_asked_twice(
    serve: Serve, run: Run
) -> None:
    refusal = Script(status=503, chunks=[(0, b"{}")], content_type="application/json")
    server = serve(lambda number, body: refusal if number % 4 == 3 else good_answer(3))
    result = run([planned(i, i * 0.005) for i in range(80)], server)
    failures = [record.failure for record in result.records]

    assert (failures.count(None), failures.count("http_5xx")) == (60, 20)
    assert len(server.served) == 80


def test_slow_first_requests_are_met_by_the_warm_up(serve: Serve, run: Run, tmp_path: Path) -> None:
    server = serve(lambda number, body: good_answer(3, first=0.4 if number < 4 else 0.0))
    warmed = warm_up(
        [planned(i, 99.0) for i in range(6)], url=server.url, model="m", options=ReplayOptions(),
        directory=tmp_path, clock=SystemClock(), stop=StopSignal(), alive=lambda: True,
        concurrency=4,
    )  # fmt: skip
    result = run([planned(i, i * 0.005) for i in range(40)], server)

    assert [record.failure for record in warmed.records] == [None] * 6
    assert not any(record.measured for record in warmed.records)
    assert warmed.health.extra["peak_in_flight"] == 4
    assert max((r.first_token_s or 9.0) - r.due_s for r in result.records) < 0.4
    assert list(tmp_path.iterdir()) == []


def test_turns_of_a_session_follow_one_another_also_over_several_workers(
    serve: Serve, run: Run
) -> None:
    server = serve(lambda number, body: good_answer(3, first=0.05))
    plan = []
    for session in range(4):
        for turn in range(3):
            index = len(plan)
            plan.append(
                planned(
                    index, 0.01 * session, session=f"s{session}", turn=turn,
                    after=index - 1 if turn else None, gap_s=0.02,
                )
            )  # fmt: skip
    options = ReplayOptions(workers=2, drain_timeout_s=5.0)
    result = run(plan, server, options=options)

    assert result.health.workers == 2
    assert {record.worker for record in result.records} == {0, 1}
    assert [record.index for record in result.records] == list(range(12))
    for record, request in zip(result.records, plan, strict=True):
        assert record.failure is None
        if request.after is not None:
            before = result.records[request.after]
            assert before.end_s is not None
            assert record.due_s == pytest.approx(before.end_s + 0.02)
            assert before.worker == record.worker


def test_workers_share_one_start_and_interleave(serve: Serve, run: Run) -> None:
    server = serve(lambda number, body: good_answer(3))
    options = ReplayOptions(workers=2, drain_timeout_s=5.0)
    result = run([planned(i, i * 0.01) for i in range(60)], server, options=options)
    arrivals = [served.arrived for served in server.served]
    numbers = [int(served.headers["x-request-id"].split("-")[1]) for served in server.served]

    assert [record.worker for record in result.records] == [i % 2 for i in range(60)]
    # Both clocks run together: arrivals, whoever sent them, follow one line.
    offsets = sorted(at - 0.01 * number for at, number in zip(arrivals, numbers, strict=True))
    assert offsets[-1] - offsets[0] < 0.3


def test_a_server_that_dies_ends_the_replay_within_seconds(serve: Serve, run: Run) -> None:
    """Survivors do not vote: all 200 are accounted for, most of them as failures."""
    server = serve(lambda number, body: good_answer(3))
    began = time.monotonic()

    def alive() -> bool:
        if len(server.served) >= 50 and server.url not in dead:
            dead.append(server.url)
            server.stop()
        return not dead

    dead: list[str] = []
    result = run([planned(i, i * 0.01 + (i > 150) * 60) for i in range(200)], server, alive=alive)
    failures = [record.failure for record in result.records]

    assert result.aborted == "server_died"
    assert time.monotonic() - began < 10.0
    assert len(failures) == 200
    assert 50 <= failures.count(None) < 150
    assert set(failures[-49:]) == {"not_sent"}
    assert set(failures) <= {None, "refused", "cut", "not_sent"}


def test_a_stop_ends_the_replay_and_leaves_no_process_and_no_file(
    serve: Serve, run: Run, tmp_path: Path
) -> None:
    server = serve(lambda number, body: Script(end="hang"))
    stop = StopSignal()

    def then_stop(progress: ReplayProgress) -> None:
        if progress.sent:
            stop.request()

    with pytest.raises(Interrupted):
        run([planned(0), planned(1, 60.0)], server, stop=stop, on_progress=then_stop)

    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 5
    while not server.dropped_by_client and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.dropped_by_client == 1


def test_the_deadline_ends_a_replay_that_would_never_end(serve: Serve, run: Run) -> None:
    server = serve(lambda number, body: Script(end="hang"))
    options = ReplayOptions(drain_timeout_s=0.3)
    result = run([planned(0), planned(1, 0.1)], server, options=options)

    assert result.aborted == "deadline"
    assert [record.failure for record in result.records] == ["timeout", "timeout"]


def test_progress_is_told_and_ends_complete(serve: Serve, run: Run) -> None:
    server = serve(lambda number, body: good_answer(3, pace=0.01))
    told: list[ReplayProgress] = []
    run([planned(i, i * 0.02) for i in range(60)], server, on_progress=told.append)

    assert len(told) >= 3
    assert [p.sent for p in told] == sorted(p.sent for p in told)
    assert (told[-1].sent, told[-1].finished, told[-1].failed) == (60, 60, 0)
    assert told[-1].planned == 60
    assert told[-1].ttft_p95_s is not None
    assert told[-1].tpot_p95_s is not None


def test_a_missing_key_and_an_empty_plan(tmp_path: Path, serve: Serve, run: Run) -> None:
    server = serve(lambda number, body: good_answer(3))

    assert run([], server).records == ()
    with pytest.raises(InputError, match="AUTOTUNE_NO_SUCH_KEY is not set"):
        replay(
            [planned(0)], url=server.url, model="m",
            options=ReplayOptions(api_key_env="AUTOTUNE_NO_SUCH_KEY"), directory=tmp_path,
            clock=SystemClock(), stop=StopSignal(), alive=lambda: True,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_load_goes_on_until_the_last_measured_answer_has_ended(
    serve: Serve, run: Run, workers: int
) -> None:
    def slow_at_the_end(number: int, body: object) -> Script:
        return good_answer(3, first=1.0 if number == 19 else 0.05)

    server = serve(slow_at_the_end)
    plan = [planned(k, 0.02 * k, measured=k < 20) for k in range(2000)]
    options = ReplayOptions(workers=workers, drain_timeout_s=5.0)
    result = run(plan, server, options=options)
    measured = [record for record in result.records if record.measured]
    ended = max(record.end_s or 0.0 for record in measured)
    began = [record.begun_s for record in result.records if record.begun_s is not None]

    assert [record.failure for record in measured] == [None] * 20
    assert result.aborted is None
    assert result.window_s == (0.0, pytest.approx(0.4))
    assert ended > 1.3
    assert max(began) > ended - 0.3  # requests were still sent while the last one ran
    assert max(began) < ended + 3.0  # and soon no more: 40 s of them were planned
