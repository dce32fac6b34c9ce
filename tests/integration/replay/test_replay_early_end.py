"""A replay that is given up half-way: the engine drops what was in flight, the records say so."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.measure.telemetry import scrape
from autotune.replay.glimpse import Glimpse
from autotune.replay.records import PlannedRequest, ReplayResult
from autotune.replay.replayer import ReplayOptions, replay

PLAN = [
    PlannedRequest(index=k, due_s=0.3 + 0.05 * k, prompt=range(64), output_tokens=20)
    for k in range(200)
]


@pytest.fixture
def url() -> Iterator[str]:
    """A simulated engine that answers two requests at a time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune.simulator", "serve", "tiny", "--port", str(port),
         "--sim-startup", "0", "--max-num-seqs", "2"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


def in_engine(url: str) -> float:
    """Requests that run or wait in the engine."""
    series = scrape(url)
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum(value for name in names for _, value in series[name])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hopeless_replay_ends_at_once_and_leaves_an_idle_engine(
    url: str, tmp_path: Path, workers: int
) -> None:
    ended: dict[int, float] = {}
    glimpses: list[Glimpse] = []

    def hopeless(glimpse: Glimpse) -> bool:
        glimpses.append(glimpse)
        for record in glimpse.ended:
            assert record.index not in ended
            ended[record.index] = record.end_s or 0.0
        return len(ended) >= 8 and len(glimpse.open) >= 4

    result = replay(
        PLAN, url=url, model="tiny", options=ReplayOptions(workers=workers), directory=tmp_path,
        clock=SystemClock(), stop=StopSignal(), alive=lambda: True, hopeless=hopeless,
    )  # fmt: skip
    assert result.aborted == "hopeless"
    check_facts(result, glimpses, ended)
    until = time.monotonic() + 10
    while in_engine(url) and time.monotonic() < until:
        time.sleep(0.05)
    assert in_engine(url) == 0
    assert list(tmp_path.iterdir()) == []


def check_facts(result: ReplayResult, glimpses: list[Glimpse], ended: dict[int, float]) -> None:
    """Every glimpse said what the records say in the end, and no more than was known then."""
    records = {record.index: record for record in result.records}
    assert sorted(records) == [request.index for request in PLAN]
    whole = {index for index, record in records.items() if not record.broken_off}
    assert set(ended) <= whole
    cut = [r for r in records.values() if r.broken_off and r.sent_s is not None]
    assert {r.failure for r in cut} == {"cut"}
    assert {r.failure for r in records.values() if r.sent_s is None} == {"not_sent"}
    assert len(cut) > 0
    for glimpse in glimpses:
        for request in glimpse.open:
            record = records[request.index]
            assert record.due_s == request.due_s
            if request.answering:
                assert record.first_token_s == pytest.approx(request.first_s)
            elif record.first_token_s is not None:
                assert record.first_token_s >= request.first_s
            if not record.broken_off:
                assert record.last_token_s is not None
                assert record.last_token_s >= request.last_s


def test_a_replay_that_is_worth_its_end_is_whole(url: str, tmp_path: Path) -> None:
    few = PLAN[:20]
    result = replay(
        few, url=url, model="tiny", options=ReplayOptions(), directory=tmp_path,
        clock=SystemClock(), stop=StopSignal(), alive=lambda: True, hopeless=lambda glimpse: False,
    )  # fmt: skip
    assert result.aborted is None
    assert [record.failure for record in result.records] == [None] * 20
    assert not any(record.broken_off for record in result.records)
