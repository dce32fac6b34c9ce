"""What a worker shows of its replay while it runs, and what the parent makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.replay.exchange import Exchange
from autotune.replay.glimpse import Lookout, OpenRequest, open_request, write_snapshot
from autotune.replay.records import BROKEN_OFF, RequestRecord
from autotune.replay.shard import Job, RecordLog
from autotune.replay.stream import AnswerReader

START = 1000.0


def event(text: str, tokens: int | None = None) -> bytes:
    usage = "" if tokens is None else f',"usage":{{"completion_tokens":{tokens}}}'
    return f'data: {{"choices":[{{"text":"{text}"}}]{usage}}}\n\n'.encode()


def shown(reads: list[tuple[float, bytes]], *, interpreted: int | None = None, now: float = 1009.0,
          tokens: int = 4, **more: Any) -> OpenRequest:  # fmt: skip
    """A request due at 1001, sent at 1001.1, of which these reads came."""
    exchange = Exchange(begun=1001.05, sent=1001.1)
    exchange.stamps = [stamp for stamp, _ in reads]
    reader = AnswerReader()
    read = len(reads) if interpreted is None else interpreted
    for stamp, chunk in reads[:read]:
        reader.feed(stamp, chunk)
    job = Job(index=7, due_s=1.0, measured=True, input_tokens=8, output_tokens=tokens)
    fixed = {"fixed_length": True, **more}
    return open_request(
        job, exchange, reader, read, due=1001.0000001, start=START, now=now, **fixed
    )


def test_a_request_without_any_read_can_get_its_first_token_now_at_the_earliest() -> None:
    found = shown([])
    assert (found.first_s, found.last_s, found.answering, found.unfinished) == (9, 9, False, True)
    assert found.due_s == 1.0
    assert found.sent_s == pytest.approx(1.1)


def test_a_read_that_waits_to_be_interpreted_may_hold_the_next_token() -> None:
    found = shown([(1003.0, event("a", 1)), (1004.0, event("b", 2))], interpreted=0)
    assert (found.first_s, found.last_s, found.answering) == (3, 3, False)
    found = shown([(1003.0, event("a", 1)), (1004.0, event("b", 2))], interpreted=1)
    assert (found.first_s, found.last_s, found.answering) == (3, 4, True)


def test_part_of_an_event_may_count_with_the_stamp_of_its_read() -> None:
    whole, part = event("a", 1), event("b", 2)[:-4]
    assert shown([(1003.0, whole), (1004.0, part)]).last_s == 4
    assert shown([(1003.0, part)]).first_s == 3
    assert shown([(1003.0, whole)]).last_s == 9


def test_an_answer_is_unfinished_while_the_running_usage_lacks_tokens() -> None:
    assert shown([(1003.0, event("a", 1))]).unfinished
    done = shown([(1003.0, event("a", 1)), (1005.0, event("b", 4))])
    assert not done.unfinished
    assert done.last_s == 5


def test_without_running_usage_or_a_fixed_length_the_answer_may_be_over() -> None:
    for found in (
        shown([(1003.0, event("a"))]),
        shown([(1003.0, event("a", 1))], fixed_length=False),
    ):
        assert not found.unfinished
        assert found.last_s == 3


def test_a_role_alone_is_no_token() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
    found = shown([(1003.0, role)])
    assert (found.first_s, found.answering) == (9, False)


def test_tokens_of_the_first_event_are_told() -> None:
    assert shown([(1003.0, event("abc", 3))]).first_event_tokens == 3


# ---- from worker to parent


def record(index: int, **more: Any) -> RequestRecord:
    return RequestRecord(
        index=index, due_s=0.0, measured=True, planned_input_tokens=1, planned_output_tokens=1,
        **more,
    )  # fmt: skip


WAITING = OpenRequest(5, 0.5, 0.5, 2.0, 2.0, False, True, 1)


def test_the_parent_sees_each_record_once_and_what_is_open_now(tmp_path: Path) -> None:
    lookout = Lookout([tmp_path])
    assert lookout.look() is None
    with RecordLog(tmp_path) as log:
        log.add(record(1))
        write_snapshot(tmp_path, at_s=1.0, records_bytes=log.flush(), requests=[WAITING])
        first = lookout.look()
        assert first is not None
        assert [r.index for r in first.ended] == [1]
        assert list(first.open) == [WAITING]
        assert lookout.look() is None
        log.add(record(2))
        log.add(record(3))
        written = log.flush()
        log.add(record(4))  # after the snapshot was taken
        write_snapshot(tmp_path, at_s=2.0, records_bytes=written, requests=[])
        log.flush()
        second = lookout.look()
        assert second is not None
        assert ([r.index for r in second.ended], list(second.open)) == ([2, 3], [])


def test_facts_of_one_worker_count_before_another_was_heard_of(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    lookout = Lookout(folders)
    for folder in folders:
        folder.mkdir()
    with RecordLog(folders[0]) as log:
        log.add(record(1))
        write_snapshot(folders[0], at_s=1.0, records_bytes=log.flush(), requests=[])
        glimpse = lookout.look()
    assert glimpse is not None
    assert (glimpse.at_s, [r.index for r in glimpse.ended]) == (0.0, [1])


def test_what_the_client_broke_off_is_told_from_what_failed() -> None:
    assert record(1, failure="cut", detail=f"{BROKEN_OFF}hopeless").broken_off
    assert record(1, failure="not_sent", detail=f"{BROKEN_OFF}hopeless").broken_off
    assert not record(1, failure="cut", detail="the stream ended without [DONE]").broken_off
    assert not record(1).broken_off
