from __future__ import annotations

import os

import pytest

from autotune.replay import worker
from autotune.replay.shard import Shard
from autotune.replay.transport import HttpTransport
from autotune.replay.wire import WireTransport


def test_a_worker_without_the_right_to_hurry_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(pid: int, policy: int, parameter: object) -> None:
        raise PermissionError("not for you")

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    assert worker._hurry() is False


def test_on_one_core_a_worker_never_goes_before_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, policy, p: asked.append(policy))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert worker._hurry() is False
    monkeypatch.setattr(os, "cpu_count", lambda: 8)  # pinned to one core of many
    assert worker._hurry() is True
    assert asked == [os.SCHED_RR]


@pytest.mark.parametrize(("name", "kind"), [("wire", WireTransport), ("aiohttp", HttpTransport)])
def test_the_shard_names_the_transport(
    name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", " secret\n")  # as files and shells leave it
    shard = Shard(
        worker=0, run="r", url="http://127.0.0.1:9/v1/completions", jobs=(), deadline_s=1.0,
        connect_timeout_s=1.0, first_token_timeout_s=1.0, idle_timeout_s=1.0,
        request_timeout_s=1.0, fixed_length=True, api_key_env="A_KEY", transport=name,
    )  # fmt: skip
    transport = worker._transport(shard)
    assert isinstance(transport, kind)
    if isinstance(transport, WireTransport):
        assert b"Authorization: Bearer secret\r\n" in transport._head
