"""The replay client against a server that knows: workers, transports, calibration, the command."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import replaying
from autotune.cli.replaying import ReplayOutput
from autotune.clock import StopSignal, SystemClock
from autotune.replay.calibration import calibrate, own_cores, truth_server, ttft_errors
from autotune.replay.parquet import read_records
from autotune.replay.records import PlannedRequest, ReplayResult
from autotune.replay.replayer import ReplayOptions, replay

TOKENS = 12


def plan(count: int, every_s: float = 0.01) -> list[PlannedRequest]:
    return [
        PlannedRequest(
            index=k, due_s=k * every_s, prompt=range(32), output_tokens=TOKENS,
            messages=(("user", "hello"),),
        )
        for k in range(count)
    ]  # fmt: skip


def replayed(
    tmp_path: Path, count: int, **options: Any
) -> tuple[ReplayResult, list[dict[str, Any]]]:
    with truth_server(pace_s=0.005) as (url, log):
        result = replay(
            plan(count), url=url, model="truth", options=ReplayOptions(**options),
            directory=tmp_path, clock=SystemClock(), stop=StopSignal(), alive=lambda: True,
        )  # fmt: skip
    return result, log


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workers": 2},
        {"transport": "aiohttp"},
        {"route": "/v1/chat/completions"},
        {"continuous_usage": False},
    ],
    ids=["wire", "two-workers", "aiohttp", "chat", "usage-at-the-end"],
)
def test_what_the_client_says_is_what_the_server_knows(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    result, log = replayed(tmp_path, 40, **options)
    assert [record.failure for record in result.records] == [None] * 40
    assert {record.output_tokens for record in result.records} == {TOKENS}
    assert {record.events for record in result.records} == {TOKENS}
    assert {record.answered_as for record in result.records} == {"truth"}
    errors = sorted(ttft_errors(result.records, log))
    assert len(errors) == len(log) == 40
    assert errors[0] > -0.0005
    assert errors[20] < 0.05  # generous: the machine may be busy
    truths = {int(truth["id"].rpartition("-")[2]): truth for truth in log}
    for record in result.records:
        truth = truths[record.index]
        assert record.last_token_s is not None
        assert record.first_token_s is not None
        span = record.last_token_s - record.first_token_s
        assert span == pytest.approx(truth["last"] - truth["first"], abs=0.1)


def test_a_pinned_worker_stays_on_its_core(tmp_path: Path) -> None:
    result, _ = replayed(tmp_path, 4, cores=own_cores()[-1:])
    assert all(record.failure is None for record in result.records)
    with pytest.raises(Exception, match="worker process broke"):
        replayed(tmp_path, 1, cores=(100_000,))


def test_long_answers_do_not_fill_the_memory_while_they_run(tmp_path: Path) -> None:
    with truth_server(pace_s=0.0005) as (url, _):
        requests = [
            PlannedRequest(index=k, due_s=0.0, prompt=range(8), output_tokens=1500)
            for k in range(8)
        ]
        result = replay(
            requests, url=url, model="truth", options=ReplayOptions(), directory=tmp_path,
            clock=SystemClock(), stop=StopSignal(), alive=lambda: True,
        )  # fmt: skip
    assert [record.output_tokens for record in result.records] == [1500] * 8
    assert [record.events for record in result.records] == [1500] * 8


def test_a_calibration_gives_figures_of_this_machine(tmp_path: Path) -> None:
    found = calibrate(tmp_path, clock=SystemClock(), stop=StopSignal())
    assert found.chunks_per_s > 500
    assert 0 < found.ttft_error_p50_s <= found.ttft_error_p99_s
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "w.jsonl"
    rows = [
        {"timestamp": 20 * k, "input_length": 32, "output_length": 8, "hash_ids": [k]}
        for k in range(30)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def command(url: str, workload: Path, output: ReplayOutput, **more: Any) -> int:
    arguments: dict[str, Any] = {
        "model": None, "window": None, "time_scale": 1.0, "slo": ["ttft_p95 < 5s"],
    } | more  # fmt: skip
    return replaying.replay(url, str(workload), output=output, **arguments)


def test_the_command_prints_one_result_and_writes_what_was_asked_for(
    tmp_path: Path, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, records = tmp_path / "page.html", tmp_path / "records.parquet"
    output = ReplayOutput(as_json=True, progress="plain", html=page, records=records)
    with truth_server(pace_s=0.005) as (url, _):
        try:
            status = command(url, workload, output)
        except replaying.Untrustworthy:  # a machine this busy is told so; the files are there
            status = 5
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert status in (0, 5)
    assert found["requests"] == {"planned": 30, "ok": 30, "failed": 0, "failed_by_reason": {}}
    assert found["metrics"]["ttft_p50_s"] > 0.05
    assert len(found["validity"]["causes"]) == len(found["validity"]["reasons"])
    assert {"shared_cores", "expected_chunks_per_s", "port_share"} <= set(found["client"])
    assert sum(record.measured for record in read_records(records)) == 30
    text = page.read_text()
    assert "30 of 30 requests answered" in text
    assert text.count("<svg") == 3
    assert "http://" not in text.replace(url, "")
    assert "replaying 30 requests" in said.err


def test_a_page_in_a_folder_that_is_not_there_is_refused_before_anything_is_sent(
    tmp_path: Path, workload: Path
) -> None:
    output = ReplayOutput(html=tmp_path / "no" / "page.html")
    with pytest.raises(replaying.InputError, match="does not exist"):
        command("http://127.0.0.1:9", workload, output)


def test_without_vllm_the_comparison_says_what_to_install(workload: Path) -> None:
    output = ReplayOutput(bench=True, bench_command="no-such-program-here")
    with pytest.raises(replaying.EnvironmentFault, match="is not here") as caught:
        command("http://127.0.0.1:9", workload, output)
    assert caught.value.hint is not None


FAKE_BENCH = """#!/bin/sh
# Writes what `vllm bench serve` would have found, where it was told to.
while [ $# -gt 0 ]; do
  case "$1" in
    --result-dir) dir=$2;; --result-filename) name=$2;; --dataset-path) cp "$2" "{seen}";;
  esac
  shift
done
echo '{{"mean_ttft_ms": 200.0, "p50_ttft_ms": 190.0, "p50_tpot_ms": 5.0}}' > "$dir/$name"
"""


def test_the_comparison_sends_the_same_lengths_at_the_same_times(
    tmp_path: Path, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, program = tmp_path / "seen.jsonl", tmp_path / "bench"
    program.write_text(FAKE_BENCH.format(seen=seen))
    program.chmod(0o755)
    output = ReplayOutput(bench=True, bench_command=str(program), progress="none")
    with truth_server(pace_s=0.005) as (url, _), contextlib.suppress(replaying.Untrustworthy):
        command(url, workload, output, model="truth")
    said = capsys.readouterr().out
    assert "beside vllm bench serve" in said
    assert "190.00 ms" in said
    rows = [json.loads(line) for line in seen.read_text().splitlines()]
    assert len(rows) == 30
    assert rows[5] == {
        "timestamp": 0.1, "input_length": 32, "output_length": 8, "hash_ids": rows[5]["hash_ids"],
    }  # fmt: skip


def test_a_comparison_that_fails_says_its_last_word(tmp_path: Path, workload: Path) -> None:
    program = tmp_path / "bench"
    program.write_text("#!/bin/sh\necho 'no tokenizer here' >&2\nexit 1\n")
    program.chmod(0o755)
    output = ReplayOutput(bench=True, bench_command=str(program), progress="none")
    with truth_server(pace_s=0.005) as (url, _), pytest.raises(replaying.EnvironmentFault) as found:
        command(url, workload, output)
    assert found.value.seen == "no tokenizer here"
