from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.replay.dispatch import Dispatcher
from autotune.replay.exchange import Exchange
from autotune.replay.records import RequestRecord
from autotune.replay.shard import Job, Shard

ANSWER = (
    b'data: {"choices":[{"text":"a","finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)
ROLE_ONLY = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'


def job(index: int, due_s: float = 0.0, **more: object) -> Job:
    return Job(
        index=index, due_s=due_s, measured=True, input_tokens=1, output_tokens=1,
        body_bytes=index, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def shard(*jobs: Job, **limits: float) -> Shard:
    values = {
        "deadline_s": 5.0, "connect_timeout_s": 1.0, "first_token_timeout_s": 5.0,
        "idle_timeout_s": 5.0, "request_timeout_s": 5.0,
    } | limits  # fmt: skip
    return Shard(worker=0, run="r", url="", jobs=jobs, fixed_length=True, **values)  # type: ignore[arg-type]


class Wire:
    """A transport without a network: each request takes `delay` seconds, then `answer` arrives;
    with `hang`, nothing more comes and the request never ends."""

    def __init__(
        self, delay: float = 0.0, answer: bytes = ANSWER, *, hang: bool = False,
        on_send: Callable[[int], None] = lambda number: None,
    ) -> None:  # fmt: skip
        self._delay, self._answer, self._hang, self._on_send = delay, answer, hang, on_send
        self.sends: list[tuple[int, float]] = []
        self.prepared: list[int] = []

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def prepare(self, count: int) -> None:
        self.prepared.append(count)

    async def send(self, body: bytes, exchange: Exchange) -> None:
        number = len(body)
        exchange.sent = exchange.headers = time.monotonic()
        exchange.status, exchange.content_type = 200, "text/event-stream"
        self.sends.append((number, exchange.sent))
        self._on_send(number)
        await asyncio.sleep(self._delay)
        if self._answer:
            exchange.stamps.append(time.monotonic())
            exchange.chunks.append(self._answer)
        if self._hang:
            await asyncio.Event().wait()


def run(orders: Shard, wire: Wire) -> tuple[tuple[RequestRecord, ...], Dispatcher, float]:
    records: list[RequestRecord] = []
    dispatcher = Dispatcher(orders, wire, lambda job: b"x" * job.body_bytes, records.append)

    async def main() -> float:
        start = time.monotonic()
        await dispatcher.prepare()
        await dispatcher.run(start)
        return start

    start = asyncio.run(main())
    return tuple(sorted(records, key=lambda record: record.index)), dispatcher, start


def test_every_request_leaves_when_due_and_never_before() -> None:
    wire = Wire()
    records, dispatcher, start = run(shard(*(job(i, 0.01 * (9 - i)) for i in range(10))), wire)

    assert [record.index for record in records] == list(range(10))
    assert all(record.failure is None for record in records)
    assert [number for number, _ in wire.sends] == list(range(9, -1, -1))
    assert all(at - start >= 0.01 * (9 - number) for number, at in wire.sends)
    assert len(dispatcher.health()["dispatch_lags_s"]) == 10


def test_nothing_limits_the_number_in_flight() -> None:
    _, dispatcher, _ = run(shard(*(job(i) for i in range(300))), Wire(0.1))

    assert dispatcher.health()["peak_in_flight"] == 300


def test_late_requests_leave_at_once_and_the_schedule_is_not_moved() -> None:
    def stall_the_loop(number: int) -> None:
        if number == 0:
            time.sleep(0.2)

    records, _, _ = run(shard(*(job(i, 0.02 * i) for i in range(15))), Wire(on_send=stall_the_loop))
    lags = [(record.begun_s or 0.0) - record.due_s for record in records]

    assert [record.due_s for record in records] == [0.02 * i for i in range(15)]
    assert lags[1] > 0.1
    assert lags[14] < lags[1]


def test_a_turn_waits_for_its_predecessors_end_and_the_gap() -> None:
    turns = (job(0), job(1, after=0, gap_s=0.05), job(2, after=1, gap_s=0.0))
    records, _, _ = run(shard(*turns), Wire(0.05))

    for before, after, gap in ((records[0], records[1], 0.05), (records[1], records[2], 0.0)):
        assert before.end_s is not None
        assert after.begun_s is not None
        assert after.due_s == pytest.approx(before.end_s + gap)
        assert after.begun_s >= after.due_s


def test_a_turn_whose_pause_is_unknown_leaves_at_its_time_but_not_before_the_answer() -> None:
    turns = (job(0), job(1, 0.15, after=0), job(2, 0.01, after=1))
    records, _, _ = run(shard(*turns), Wire(0.03))

    assert records[1].due_s == pytest.approx(0.15)
    assert records[1].end_s is not None
    assert records[2].due_s == pytest.approx(records[1].end_s)


def test_a_stalled_request_ends_after_the_idle_limit() -> None:
    first = ANSWER.split(b"\n\n")[0].replace(b'"length"', b"null") + b"\n\n"
    records, _, _ = run(shard(job(0), idle_timeout_s=0.1), Wire(answer=first, hang=True))

    assert records[0].failure == "stall"
    assert records[0].first_token_s is not None


def test_a_role_only_event_does_not_start_the_idle_clock() -> None:
    wire = Wire(answer=ROLE_ONLY, hang=True)
    records, _, _ = run(shard(job(0), idle_timeout_s=0.05, first_token_timeout_s=0.3), wire)

    assert records[0].failure == "timeout"
    assert records[0].detail == "no token within 0.3 s"


def test_the_whole_request_has_its_own_limit() -> None:
    records, _, _ = run(shard(job(0), request_timeout_s=0.1), Wire(answer=b"", hang=True))

    assert (records[0].failure, records[0].detail) == ("timeout", "no end within 0.1 s")


def test_the_deadline_ends_everything_and_accounts_for_all() -> None:
    jobs = (job(0), job(1, 60.0), job(2, after=0))
    records, dispatcher, _ = run(shard(*jobs, deadline_s=0.2), Wire(answer=b"", hang=True))

    assert dispatcher.aborted == "deadline"
    assert [record.failure for record in records] == ["timeout", "not_sent", "not_sent"]


@pytest.mark.parametrize("reason", ["server_died", "stopped"])
def test_an_abort_ends_what_is_in_flight_and_accounts_for_the_rest(reason: str) -> None:
    orders = shard(job(0), job(1, 0.05), job(2, 60.0))
    dispatcher: list[Dispatcher] = []

    def abort(number: int) -> None:
        if number == 1:
            dispatcher[0].abort(reason)

    wire = Wire(answer=b"", hang=True, on_send=abort)
    records: list[RequestRecord] = []
    dispatcher.append(Dispatcher(orders, wire, lambda job: b"x" * job.body_bytes, records.append))

    async def main() -> None:
        await dispatcher[0].run(time.monotonic())

    asyncio.run(main())

    assert dispatcher[0].aborted == reason
    failures = {record.index: record.failure for record in records}
    assert failures == {0: "cut", 1: "cut", 2: "not_sent"}


def test_connections_are_opened_for_what_is_due_soon_and_for_no_more() -> None:
    wire = Wire()
    jobs = [*(job(i) for i in range(5)), job(5, 0.6), job(6, 1.1), job(7, after=0)]
    run(shard(*jobs), wire)
    assert wire.prepared[0] == 6  # five at once, one within the look-ahead; a turn reuses its own
    assert max(wire.prepared[1:], default=0) <= 2


def test_bytes_of_a_long_answer_are_dropped_while_it_runs() -> None:
    held: list[int] = []

    class Long(Wire):
        async def send(self, body: bytes, exchange: Exchange) -> None:
            exchange.sent = exchange.headers = time.monotonic()
            exchange.status, exchange.content_type = 200, "text/event-stream"
            event = ANSWER.split(b"\n\n")[0].replace(b'"length"', b"null") + b"\n\n"
            for _ in range(600):
                exchange.stamps.append(time.monotonic())
                exchange.chunks.append(event)
            await asyncio.sleep(0.6)
            held.append(sum(len(chunk) for chunk in exchange.chunks))
            exchange.stamps.append(time.monotonic())
            exchange.chunks.append(ANSWER)

    records, _, _ = run(shard(job(0)), Long())
    assert records[0].failure is None
    assert records[0].events == 601
    assert held[0] < 200 * len(ANSWER)


def test_a_fault_of_our_own_is_raised_and_is_no_failure_of_the_server() -> None:
    def broken(number: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(shard(job(0), job(1, 60.0)), Wire(on_send=broken))


def test_progress_counts_and_gives_running_percentiles() -> None:
    _, dispatcher, _ = run(shard(*(job(i) for i in range(4))), Wire(0.02))
    progress = dispatcher.progress()

    assert (progress["sent"], progress["finished"], progress["failed"]) == (4, 4, 0)
    assert progress["ttft_p95_s"] >= 0.02
    assert progress["tpot_p95_s"] is None  # one token each


def background(index: int, due_s: float) -> Job:
    return replace(job(index, due_s), measured=False)


def test_background_ends_with_the_last_measured_answer_and_leaves_no_failure() -> None:
    orders = shard(job(0), job(1, 0.02), *(background(k, 0.01 * k) for k in range(2, 60)))
    wire = Wire(0.15)
    records, dispatcher, _ = run(replace(orders, scored=True), wire)
    measured = [record for record in records if record.measured]
    others = [record for record in records if not record.measured]

    assert [record.failure for record in measured] == [None, None]
    assert dispatcher.aborted is None
    assert 1 <= len(others) < 58  # some were sent meanwhile; what was not sent left no record
    assert {record.failure for record in others} <= {None, "cut"}
    progress = dispatcher.progress()
    assert (progress["sent"], progress["finished"], progress["left"]) == (2, 2, 0)
    assert progress["failed"] == 0


def test_one_of_several_workers_goes_on_until_it_is_told() -> None:
    orders = replace(shard(job(0), *(background(k, 0.01 * k) for k in range(1, 99))),
                     scored=True, alone=False)  # fmt: skip
    told: list[Dispatcher] = []

    def tell(number: int) -> None:
        if number == 30:
            told[0].enough()

    records: list[RequestRecord] = []
    wire = Wire(on_send=tell)
    told.append(Dispatcher(orders, wire, lambda job: b"x" * job.body_bytes, records.append))

    async def main() -> None:
        await told[0].run(time.monotonic())

    asyncio.run(main())
    assert max(record.index for record in records) in (29, 30, 31)
    assert records[0].measured


def test_warm_up_requests_are_what_their_replay_is_about() -> None:
    records, dispatcher, _ = run(shard(*(background(k, 0.0) for k in range(4))), Wire())
    assert len(records) == 4
    assert dispatcher.progress()["finished"] == 4
