from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.replay.body import request_body, safe_salt
from autotune.replay.health import combine, nearest_rank
from autotune.replay.options import CHAT, ReplayOptions
from autotune.replay.parquet import read_records, write_records
from autotune.replay.records import PlannedRequest, RequestRecord
from autotune.replay.shard import (
    Bodies,
    RecordLog,
    Shard,
    WorkerReport,
    jobs_of,
    read_report,
    read_shard,
    write_shard,
)

REQUEST = PlannedRequest(index=3, due_s=1.0, prompt=(5, 6, 7), output_tokens=8, priority=2)

times = st.none() | st.floats(0, 1e6, allow_nan=False)
records = st.builds(
    RequestRecord,
    index=st.integers(0, 10**6),
    due_s=st.floats(0, 1e6, allow_nan=False),
    measured=st.booleans(),
    planned_input_tokens=st.integers(0, 10**6),
    planned_output_tokens=st.integers(0, 10**6),
    sent_s=times,
    first_token_s=times,
    output_tokens=st.none() | st.integers(0, 10**6),
    failure=st.none() | st.sampled_from(["cut", "stall", "not_sent"]),
    detail=st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    session=st.none() | st.sampled_from(["a", "b"]),
)


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25
)
@given(st.lists(records, max_size=5))
def test_records_survive_parquet_and_the_workers_file(
    tmp_path: Path, rows: list[RequestRecord]
) -> None:
    path = tmp_path / "trial=1"
    path.mkdir(exist_ok=True)
    write_records(path / "requests.parquet", rows)
    with RecordLog(path) as log:
        for row in rows:
            log.add(row)
        log.close_report("deadline", {"retries": 1})
    report = read_report(path)

    assert read_records(path / "requests.parquet") == tuple(rows)
    assert report is not None
    assert report.records == tuple(rows)
    assert (report.aborted, report.health) == ("deadline", {"retries": 1})
    files = ["records.jsonl", "report.json", "requests.parquet"]
    assert sorted(p.name for p in path.iterdir()) == files
    (path / "report.json").unlink()


def test_a_body_forces_the_planned_length_and_asks_for_running_usage() -> None:
    body = json.loads(request_body(REQUEST, model="m", options=ReplayOptions(cache_salt="s1")))

    assert body == {
        "model": "m",
        "prompt": [5, 6, 7],
        "max_tokens": 8,
        "min_tokens": 8,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "cache_salt": "s1",
    }


def test_extra_body_has_the_last_word_and_priority_is_sent_only_when_asked() -> None:
    options = ReplayOptions(
        extra_body={"temperature": 0.5}, send_priority=True, fixed_length=False,
        continuous_usage=False,
    )  # fmt: skip
    body = json.loads(request_body(REQUEST, model="m", options=options))

    assert (body["temperature"], body["priority"]) == (0.5, 2)
    assert "ignore_eos" not in body
    assert body["stream_options"] == {"include_usage": True}


def test_the_chat_route_takes_text_and_refuses_token_ids() -> None:
    spoken = PlannedRequest(index=0, due_s=0, prompt=(), output_tokens=1, text="hello")
    body = json.loads(request_body(spoken, model="m", options=ReplayOptions(route=CHAT)))

    assert body["messages"] == [{"role": "user", "content": "hello"}]
    with pytest.raises(InputError, match="needs prompts as text"):
        request_body(REQUEST, model="m", options=ReplayOptions(route=CHAT))


def test_a_salt_that_engines_refuse_is_replaced_by_its_hash() -> None:
    assert safe_salt("study-7") == "study-7"
    assert safe_salt("study/7") != safe_salt("study/8")
    assert all(len(safe_salt(s)) == 64 for s in ("a/b", "a@b", "", "x" * 129))


def test_a_shard_comes_back_as_it_was_written(tmp_path: Path) -> None:
    jobs, joined = jobs_of([REQUEST, REQUEST, REQUEST], [b"one", b"", b"three"])
    shard = Shard(
        worker=1, run="r", url="u", jobs=jobs, deadline_s=9.5, connect_timeout_s=1.0,
        first_token_timeout_s=2.0, idle_timeout_s=3.0, request_timeout_s=4.0, fixed_length=True,
    )  # fmt: skip
    write_shard(tmp_path, shard, joined)

    assert read_shard(tmp_path) == shard
    with Bodies(tmp_path) as bodies:
        assert [bodies.of(job) for job in jobs] == [b"one", b"", b"three"]
    assert read_report(tmp_path) is None


def test_health_pools_lags_and_takes_the_busiest_worker() -> None:
    reports = [
        WorkerReport(
            records=(),
            aborted=None,
            health={
                "dispatch_lags_s": lags, "loop_lags_s": [0.001], "cpu_s": cpu, "wall_s": 10.0,
                "peak_in_flight": 4, "peak_rss_bytes": 5, "retries": 1,
            },
        )
        for lags, cpu in (([0.001] * 98, 2.0), ([0.5, 0.7], 6.0))
    ]  # fmt: skip
    health = combine(reports)

    assert health.dispatch_lag_p99_s == 0.5
    assert health.cpu_share == 0.6
    assert health.workers == 2
    assert (health.extra["peak_in_flight"], health.extra["retries"]) == (8, 2)
    assert combine([]).dispatch_lag_p99_s is None


@settings(deadline=None)
@given(st.lists(st.floats(0, 10, allow_nan=False), min_size=1), st.floats(0.01, 1.0))
def test_the_nearest_rank_leaves_at_least_its_share_at_or_below(
    values: list[float], share: float
) -> None:
    ordered = sorted(values)
    found = nearest_rank(ordered, share)

    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-6
