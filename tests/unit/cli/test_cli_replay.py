"""The words of `replay`: progress, the plan's window, the comparison with another client."""

from __future__ import annotations

import pytest

from autotune.cli import cross_check, replay_progress
from autotune.cli.cross_check import Difference
from autotune.cli.precision_words import window_json, window_words
from autotune.errors import InputError
from autotune.replay.records import ReplayProgress
from autotune.spec.vocabulary import METRICS
from autotune.workload.trace import Request, Trace


def progress(**changes: object) -> ReplayProgress:
    values: dict[str, object] = {
        "elapsed_s": 12.0, "total_s": 60.0, "sent": 30, "finished": 25, "failed": 0, "planned": 120,
    }  # fmt: skip
    return ReplayProgress(**{**values, **changes})  # type: ignore[arg-type]


def test_a_progress_line_holds_counts_and_the_latest_figures() -> None:
    line = replay_progress.words(progress(failed=2, ttft_p95_s=0.1234, tpot_p95_s=1.5))
    assert "25 of 120 answered, 5 in flight, 2 failed" in line
    assert "ttft p95 123 ms, tpot p95 1.5 s" in line
    assert "failed" not in replay_progress.words(progress())


def test_without_progress_nothing_listens() -> None:
    with replay_progress.listening("none") as listener:
        assert listener is None


def test_plain_progress_keeps_silent_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    with replay_progress.listening("plain") as listener:
        assert listener is not None
        listener(progress())
    assert capsys.readouterr().err == ""


def test_the_plan_says_what_a_window_tells_and_what_it_would_take() -> None:
    metrics = [METRICS["ttft_p95"], METRICS["output_throughput"], METRICS["ttft_p95"]]
    words = window_words(metrics, 1000)
    assert words is not None
    assert words.startswith("ttft_p95 to about \N{PLUS-MINUS SIGN} ")
    assert "takes" not in words
    few = window_words([METRICS["tpot_p99"]], 60)
    assert few is not None
    assert "too few requests for the upper end of tpot_p99" in few
    assert "requests)" in few
    assert window_words([METRICS["success_rate"]], 60) is None
    assert window_json(metrics, 60)["ttft_p95"]["expected_interval"][1] is None


def test_a_difference_is_theirs_minus_ours() -> None:
    row = Difference(key="tpot_p50_s", ours=0.020, theirs=0.021)
    assert row.seconds == pytest.approx(0.001)
    assert row.share == pytest.approx(0.05)
    assert cross_check.cells([row]) == [("tpot_p50", "20.00 ms", "21.00 ms", "+1.00 ms (+5.0%)")]
    lost = Difference(key="tpot_p50_s", ours=None, theirs=0.021)
    assert cross_check.cells([lost])[0][3] == "-"
    assert cross_check.as_json([lost])[0]["difference"] is None


def test_the_other_client_gets_the_same_blocks_and_times() -> None:
    requests = (
        Request(at_s=0.0, input_tokens=40, output_tokens=5, blocks=(7, 8)),
        Request(at_s=1.5, input_tokens=33, output_tokens=6),
    )
    rows = cross_check.timed_rows(Trace(requests=requests, block_size=16))
    assert rows[0]["hash_ids"][:2] == [7, 8]
    assert [len(row["hash_ids"]) for row in rows] == [3, 3]
    ids = [name for row in rows for name in row["hash_ids"]]
    assert len(set(ids)) == 6
    assert (rows[1]["timestamp"], rows[1]["input_length"], rows[1]["output_length"]) == (1.5, 33, 6)


def test_messages_of_a_workload_cannot_be_compared() -> None:
    request = Request(at_s=0.0, input_tokens=4, output_tokens=5, messages=(("user", "hi"),))
    with pytest.raises(InputError, match="own messages"):
        cross_check.timed_rows(Trace(requests=(request,)))
