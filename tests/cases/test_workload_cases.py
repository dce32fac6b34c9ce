"""Workload files as people have them: byte order marks, cut lines, wrong units, impossible rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.workload.prompts import PromptBuilder
from autotune.workload.reader import read_trace
from autotune.workload.statistics import describe
from autotune.workload.synthesis import Process
from autotune.workload.timing import Arrivals
from autotune.workload.trace import Trace
from autotune.workload.windows import select

TWO_A_SECOND = Arrivals(process=Process(kind="poisson", rate=2.0))


def mooncake(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lengths(stamp: float, tokens: int = 100, out: int = 10, **more: object) -> dict[str, object]:
    return {"timestamp": stamp, "input_length": tokens, "output_length": out, **more}


def offsets(trace: Trace) -> list[float]:
    return [request.at_s for request in trace.requests]


def sharegpt(folder: Path) -> Path:
    chats = [
        [("human", "Which river is longest?"), ("gpt", "The Nile.")],
        [],
        [("human", "Only a question?")],
        [("system", "Be short."), ("human", "Why is it dark?"), ("gpt", "Night.")],
        [("human", ""), ("gpt", "You said nothing.")],
        [("gpt", "Back again!"), ("human", "Hello, go on."), ("gpt", "Gladly.")],
    ]
    path = folder / "chats.json"
    rows = [{"conversations": [{"from": w, "value": v} for w, v in chat]} for chat in chats]
    path.write_text(json.dumps(rows, indent=1))
    return path


def test_d01_only_answered_questions_are_asked(tmp_path: Path) -> None:
    trace = read_trace(sharegpt(tmp_path), arrivals=TWO_A_SECOND, keep_text=True)
    assert [s.reason for s in trace.skipped] == ["no_turns", "no_answer", "empty_prompt"]
    assert [s.line for s in trace.skipped] == sorted(s.line for s in trace.skipped)
    asked = [r.messages[-1] for r in trace.requests]
    assert asked == [("user", "Which river is longest?"), ("user", "Why is it dark?"),
                     ("user", "Hello, go on.")]  # fmt: skip
    assert not any(role == "assistant" for r in trace.requests for role, _ in r.messages)


def test_d02_a_byte_order_mark_and_crlf_lose_no_record(tmp_path: Path) -> None:
    rows = "\r\n".join(json.dumps(lengths(stamp)) for stamp in (0, 500, 900, 1500))
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + rows.encode() + b"\r\n")
    assert offsets(read_trace(path, strict=True)) == [0.0, 0.5, 0.9, 1.5]


def bad_lines(folder: Path) -> Path:
    path = folder / "bad.jsonl"
    path.write_bytes(
        b'{"timestamp": 0, "prompt": "ok one", "output_length": 8}\n'
        b'{"timestamp": 100, "prompt": "caf\xe9 latin-1", "output_length": 8}\n'
        b"[]\n42\n\n"
        b'{"timestamp": 200, "prompt": "ok two", "output_length": 8}\n'
        b'{"timestamp": 300, "prompt": "cut of\n'
        b'{"timestamp": 400, "prompt": "ok three", "output_length": 8}\n'
    )
    return path


def test_d03_bad_lines_are_left_out_and_counted_by_reason(tmp_path: Path) -> None:
    trace = read_trace(bad_lines(tmp_path))
    assert [r.line for r in trace.requests] == [1, 6, 8]
    assert [s.line for s in trace.skipped] == [2, 3, 4, 7]
    told = describe(trace)
    assert told["skipped_by_reason"] == {"not_utf8": 1, "not_an_object": 2, "not_json": 1}
    assert {"line": 7, "reason": "not_json"} in told["skipped"]
    assert "estimated" in " ".join(trace.notes)


def test_d03_strict_reading_refuses_and_names_the_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(bad_lines(tmp_path), strict=True)
    assert caught.value.seen == "lines 2, 3, 4, 7"
    assert caught.value.problems[0].message == "line 2: not_utf8"


def test_d04_requests_that_failed_when_recorded_are_told_and_never_sent(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "7,ChatGPT,200,18,218,Conversation log\n9,ChatGPT,900,0,900,API log\n"
        "12,GPT-4,330,1,331,Conversation log\n13,GPT-4,95,0,95,API log\n"
    )
    trace = read_trace(path)
    assert [(s.line, s.reason) for s in trace.skipped] == [
        (3, "failed_in_recording"), (5, "failed_in_recording"),
    ]  # fmt: skip
    assert [(r.at_s, r.output_tokens) for r in trace.requests] == [(0.0, 18), (5.0, 1)]


def test_d05_seven_decimals_crlf_and_no_newline_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_bytes(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2030-12-31 23:59:59.7654321,310,41\r\n"
        b"2031-01-01 00:00:03.0800112,402,98\r\n2031-01-01 00:00:13.7654321+00:00,777,52"
    )
    assert offsets(read_trace(path, strict=True)) == [0.0, 3.314579, 14.0]


def test_d06_with_the_unit_stated_both_files_take_nine_seconds(tmp_path: Path) -> None:
    stamps = (0, 3, 6, 6, 9)
    seconds = mooncake(tmp_path, [lengths(stamp) for stamp in stamps])
    assert read_trace(seconds, time_unit="s").duration_s == 9.0
    millis = mooncake(tmp_path, [lengths(stamp * 1000) for stamp in stamps])
    assert read_trace(millis, time_unit="ms").duration_s == 9.0
    plain = read_trace(millis)
    assert plain.duration_s == 9.0
    assert plain.notes == ()


def test_d06_an_absurd_rate_is_taken_for_seconds_and_said(tmp_path: Path) -> None:
    trace = read_trace(mooncake(tmp_path, [lengths(stamp) for stamp in (0, 3, 6, 6, 9)]))
    assert trace.duration_s == 9.0
    assert "taken as seconds" in " ".join(trace.notes)


def test_d06_nine_thousand_seconds_are_never_silent(tmp_path: Path) -> None:
    path = mooncake(tmp_path, [lengths(stamp * 1000) for stamp in (0, 3, 6, 6, 9)])
    trace = read_trace(path, time_unit="s")
    assert trace.duration_s == 9000.0
    assert "another unit" in " ".join(trace.notes)


def test_d07_unsorted_rows_are_ordered_and_ties_keep_file_order(tmp_path: Path) -> None:
    rows = [lengths(stamp, out) for stamp, out in
            ((2500, 4), (500, 1), (1500, 2), (1500, 3), (3500, 5))]  # fmt: skip
    trace = read_trace(mooncake(tmp_path, rows))
    assert [r.input_tokens for r in trace.requests] == [1, 2, 3, 4, 5]
    assert offsets(trace) == [0.0, 1.0, 1.0, 2.0, 3.0]


def test_d08_requests_over_the_limit_leave_once_for_all_candidates(tmp_path: Path) -> None:
    rows = [lengths(0, 120, 50), lengths(100, 9000, 50), lengths(200, 300, 8000),
            lengths(300, 4000, 100)]  # fmt: skip
    chosen = select(read_trace(mooncake(tmp_path, rows)), max_total_tokens=8192)
    assert [(s.line, s.reason) for s in chosen.over_limit] == [(2, "over_limit"), (3, "over_limit")]
    assert [r.line for r in chosen.search.requests] == [1, 4]
    assert "2 of 4 requests" in chosen.notes[0]


def test_d09_block_ids_that_cannot_be_are_reported(tmp_path: Path) -> None:
    rows = [lengths(0, 900, 8, hash_ids=[0, 1]), lengths(200, 20, 8, hash_ids=[0, 1]),
            lengths(400, 1500, 8, hash_ids=[0, 1, 2])]  # fmt: skip
    trace = read_trace(mooncake(tmp_path, rows))
    assert [(s.line, s.reason) for s in trace.skipped] == [(2, "hash_mismatch")]
    builder = PromptBuilder(32_000, "salt", trace.block_size)
    one, two = (builder.tokens(request) for request in trace.requests)
    assert (len(one), len(two)) == (900, 1500)
    assert two[:900] == one


def test_rows_without_an_answer_are_reported_not_sent(tmp_path: Path) -> None:
    trace = read_trace(mooncake(tmp_path, [lengths(0), lengths(10, 50, 0), lengths(20)]))
    assert [(s.line, s.reason) for s in trace.skipped] == [(2, "no_output")]


def test_another_block_size_is_suggested_when_nearly_no_row_fits(tmp_path: Path) -> None:
    rows = [lengths(i * 100, 64, 4, hash_ids=[0, 1, 2, 3]) for i in range(3)] + [lengths(400)]
    path = mooncake(tmp_path, rows)
    assert "state the block size" in " ".join(read_trace(path, format="mooncake").notes)
    assert read_trace(path, format="mooncake", block_size=16).skipped == ()
    assert read_trace(path).source_format == "vllm_timed"


def test_huge_and_reused_foreign_ids_become_a_dense_tree(tmp_path: Path) -> None:
    big = 2**64 - 1
    rows = [lengths(0, 1000, 8, hash_ids=[big, 5]), lengths(100, 1000, 8, hash_ids=[7, 5])]
    trace = read_trace(mooncake(tmp_path, rows))
    assert [r.blocks for r in trace.requests] == [(0, 1), (2, 3)]


def test_sessions_keep_their_order_and_gaps_and_lose_their_names(tmp_path: Path) -> None:
    later = {"input_length": 9, "output_length": 2, "session_id": "alice@example", "delay": 250}
    rows = [lengths(0, session_id="alice@example"), lengths(400, session_id="bob"), later]
    trace = read_trace(mooncake(tmp_path, rows))
    assert [(r.session, r.turn, r.gap_s, r.at_s) for r in trace.requests] == [
        ("s0", 0, None, 0.0), ("s0", 1, 0.25, 0.25), ("s1", 0, None, 0.4),
    ]  # fmt: skip
