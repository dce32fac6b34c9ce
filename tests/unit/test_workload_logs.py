"""Logs as servers and proxies write them: what counts, what failed, what is no request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InputError
from autotune.workload.reader import read_trace
from autotune.workload.trace import Trace


def read(folder: Path, *lines: str | dict[str, Any], **options: Any) -> Trace:
    path = folder / "log"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return read_trace(path, **options)


def told(trace: Trace) -> list[tuple[int, str]]:
    return [(s.line, s.reason) for s in trace.skipped]


def call(**more: Any) -> dict[str, Any]:
    return {
        "request_id": "r", "call_type": "acompletion", "startTime": 1.9e9, "endTime": 1.9e9 + 4,
        "prompt_tokens": 30, "completion_tokens": 7, "status": "success", **more,
    }  # fmt: skip


def test_litellm_leaves_out_what_never_reached_the_engine(tmp_path: Path) -> None:
    trace = read(
        tmp_path, call(), call(status="failure"), call(cache_hit="True"),
        call(call_type="aembedding"), call(completion_tokens=0), call(startTime=None),
        call(startTime=1.9e9 + 0.25, messages="{}"),
    )  # fmt: skip
    assert told(trace) == [
        (2, "failed_in_recording"), (3, "answered_by_proxy_cache"), (4, "not_generation"),
        (5, "failed_in_recording"), (6, "missing_startTime"),
    ]  # fmt: skip
    assert [r.at_s for r in trace.requests] == [0.0, 0.25]


def test_litellm_lists_newest_first_make_sessions_in_time(tmp_path: Path) -> None:
    rows = [call(startTime=f"2031-01-01T00:00:{s:02}.500Z", endTime=f"2031-01-01T00:00:{s + 2:02}Z",
                 session_id="anna", prompt_tokens=s) for s in (30, 20, 10)]  # fmt: skip
    path = tmp_path / "spend.json"
    path.write_text(json.dumps([*rows, call(startTime="2031-01-01T00:00:11Z", trace_id="once")]))
    trace = read_trace(path, strict=True)
    assert [(r.session, r.turn, r.gap_s, r.input_tokens) for r in trace.requests] == [
        ("s0", 0, None, 10), (None, 0, None, 30), ("s0", 1, 8.5, 20), ("s0", 2, 8.5, 30),
    ]  # fmt: skip


def test_vllm_at_debug_tells_prompts_and_answers(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "INFO 12-31 23:59:50 [api_server.py:1] vLLM API server version 0.26.0",
        "DEBUG 12-31 23:59:58 [logger.py:40] Request c-1 details: prompt: 'it\\'s', "
        "prompt_token_ids: [5, 6, 7, 8], prompt_embeds shape: None.",
        "INFO 12-31 23:59:58 [logger.py:50] Received request c-1: params: SamplingParams(n=1, "
        "max_tokens=90), lora_request: None.",
        "INFO 01-01 00:00:01 [logger.py:50] Received request c-2: params: SamplingParams("
        "max_tokens=4), lora_request: None.",
        "DEBUG 01-01 00:00:01 [logger.py:40] Request c-2 details: prompt: 'abcdefgh', "
        "prompt_token_ids: None, prompt_embeds shape: None.",
        "INFO 01-01 00:00:02 [logger.py:60] Generated response c-1 (streaming delta): output: 'a', "
        "output_token_ids: [1], finish_reason: None",
        "INFO 01-01 00:00:03 [logger.py:60] Generated response c-1 (streaming complete): output: "
        "'abc', output_token_ids: [1, 2, 3], finish_reason: stop",
        "INFO 01-01 00:00:04 [logger.py:50] Received request c-3: params: SamplingParams("
        "max_tokens=4), lora_request: None.",
    )
    assert [(r.at_s, r.input_tokens, r.output_tokens) for r in trace.requests] == [
        (0.0, 4, 3), (3.0, 2, 4),
    ]  # fmt: skip
    assert told(trace) == [(8, "no_prompt_length")]
    notes = " ".join(trace.notes)
    assert "whole seconds" in notes
    assert "2 lines are no requests" in notes
    assert "1 answers are taken as long as their requests allowed" in notes


def test_vllm_without_prompts_says_what_to_do(tmp_path: Path) -> None:
    line = ("INFO 11-29 10:00:01 [logger.py:50] Received request c-1: params: SamplingParams("
            "max_tokens=4), lora_request: None.")  # fmt: skip
    with pytest.raises(InputError, match="no usable request") as caught:
        read(tmp_path, line)
    assert "DEBUG" in (caught.value.hint or "")


def test_sglang_text_lines_and_aborted_requests(tmp_path: Path) -> None:
    done = ("[2031-01-01 00:00:{}] Finish: obj=GenerateReqInput(rid='x'), out={{'meta_info': "
            "{{'finish_reason': {{'type': '{}'}}, 'prompt_tokens': 12, 'completion_tokens': 3, "
            "'e2e_latency': 1.5}}}}")  # fmt: skip
    trace = read(tmp_path, "[2031-01-01 00:00:01] The server is fired up", done.format(10, "stop"),
                 done.format(11, "abort"), done.format(14, "length"))  # fmt: skip
    assert [(r.at_s, r.input_tokens, r.output_tokens) for r in trace.requests] == [
        (0.0, 12, 3), (4.0, 12, 3),
    ]  # fmt: skip
    assert told(trace) == [(3, "failed_in_recording")]


def test_sglang_texts_cut_by_the_log_share_what_is_left_of_them(tmp_path: Path) -> None:
    def finished(text: str, second: int) -> dict[str, Any]:
        return {"timestamp": f"2031-01-01T00:00:{second:02}", "event": "request.finished",
                "rid": "x", "obj": {"text": text},
                "out": {"meta_info": {"prompt_tokens": 2000, "completion_tokens": 3,
                                      "e2e_latency": 1.0}}}  # fmt: skip

    cut = "a" * 1024 + "..." + "b" * 1024
    trace = read(tmp_path, finished(cut, 5), finished(cut, 6))
    one, two = (r.blocks for r in trace.requests)
    assert len(one) == len(two) == 125
    assert one[:16] == two[:16]
    assert not set(one[16:]) & set(two[16:])


def test_json_access_logs_and_lines_of_other_requests(tmp_path: Path) -> None:
    def entry(**more: Any) -> dict[str, Any]:
        return {"time_iso8601": "2031-01-01T00:00:08+00:00", "status": 200, "request": "POST /v1",
                "prompt_tokens": 9, "completion_tokens": 4, "request_time": "2.5",
                **more}  # fmt: skip

    trace = read(
        tmp_path, entry(), entry(time_iso8601="2031-01-01T00:00:10+00:00", request_time=1.0),
        {"status": 200, "request": "GET /health"}, entry(status=503), entry(completion_tokens="-"),
    )  # fmt: skip
    assert [r.at_s for r in trace.requests] == [0.0, 3.5]
    assert told(trace) == [(4, "failed_in_recording"), (5, "missing_completion_tokens")]
    assert "1 lines are no requests (first: line 3)" in " ".join(trace.notes)


def test_batch_answers_that_failed_are_told(tmp_path: Path) -> None:
    usage = {"usage": {"input_tokens": 5, "output_tokens": 6}}
    good = {"custom_id": "a", "response": {"status_code": 200, "body": usage}, "error": None}
    bad = {"custom_id": "b", "response": {"status_code": 429, "body": {}}, "error": None}
    worse = {"custom_id": "c", "response": None, "error": {"code": "batch_expired"}}
    from autotune.workload.synthesis import Process
    from autotune.workload.timing import Arrivals

    now = Arrivals(process=Process(kind="constant", rate=1.0))
    trace = read(tmp_path, good, bad, worse, arrivals=now)
    assert [(r.input_tokens, r.output_tokens) for r in trace.requests] == [(5, 6)]
    assert told(trace) == [(2, "failed_in_recording"), (3, "failed_in_recording")]


def test_prompts_need_an_answer_length_from_somewhere(tmp_path: Path) -> None:
    path = tmp_path / "questions.csv"
    path.write_text('system,question\nbe brief,"why,\n\nand how?"\n,what?\n')
    with pytest.raises(InputError, match="no usable request") as caught:
        read_trace(path)
    assert "output_tokens: 128" in (caught.value.hint or "")
    from autotune.workload.synthesis import Process
    from autotune.workload.timing import Arrivals

    now = Arrivals(process=Process(kind="constant", rate=1.0))
    trace = read_trace(path, output_tokens=12, arrivals=now, keep_text=True)
    assert [r.output_tokens for r in trace.requests] == [12, 12]
    assert trace.requests[0].messages == (("system", "be brief"), ("user", "why,\n\nand how?"))
    assert [r.line for r in trace.requests] == [2, 5]
