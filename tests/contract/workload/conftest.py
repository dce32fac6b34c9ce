"""Writers of every format: (second, prompt tokens, answer tokens) rows as lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

SECRET = "peacock"
BASE = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)


class Wanted(NamedTuple):
    at_s: int
    tokens: int
    out: int


Rows = Sequence[Wanted]
Writer = Callable[[Rows], list[bytes]]


def moment(at_s: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return (BASE + timedelta(seconds=at_s)).strftime(form)


def text(tokens: int, role: str = "") -> str:
    """A text that is estimated at this many tokens, all beginning alike."""
    around = len(role) + 2 if role else 0
    return (f"{SECRET} " * max(0, tokens))[: max(0, 4 * tokens - around)]


def ids(tokens: int, block_size: int) -> list[int]:
    return list(range(-(-tokens // block_size)))


def jsonl(rows: Rows, of: Callable[[Wanted], object]) -> list[bytes]:
    return [json.dumps(of(row)).encode() for row in rows]


def canonical(rows: Rows) -> list[bytes]:
    body = jsonl(rows, lambda r: {"t": r.at_s, "in": r.tokens, "out": r.out,
                                  "blocks": ids(r.tokens, 16)})  # fmt: skip
    return [b'{"autotune_trace": 1, "block_size": 16}', *body]


def hashed(block_size: int) -> Writer:
    return lambda rows: jsonl(
        rows,
        lambda r: {"timestamp": r.at_s * 1000, "input_length": r.tokens, "output_length": r.out,
                   "hash_ids": ids(r.tokens, block_size)},
    )  # fmt: skip


def bailian(rows: Rows) -> list[bytes]:
    numbers = iter(range(len(rows)))
    return jsonl(rows, lambda r: {
        "chat_id": next(numbers), "parent_chat_id": -1, "timestamp": float(r.at_s), "type": "text",
        "input_length": r.tokens, "output_length": r.out, "turn": 1, "hash_ids": ids(r.tokens, 16),
    })  # fmt: skip


def azure(rows: Rows) -> list[bytes]:
    body = [f"{moment(r.at_s)}.0000000,{r.tokens},{r.out}".encode() for r in rows]
    return [b"TIMESTAMP,ContextTokens,GeneratedTokens", *body]


def burstgpt(rows: Rows) -> list[bytes]:
    body = [f"{5 + r.at_s},ChatGPT,{r.tokens},{r.out},{r.tokens + r.out},API log" for r in rows]
    head = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    return [head, *(line.encode() for line in body)]


def sharegpt(rows: Rows) -> list[bytes]:
    chats = [
        {"id": "c", "conversations": [{"from": "human", "value": text(r.tokens, "user")},
                                      {"from": "gpt", "value": text(r.out)}]}
        for r in rows
    ]  # fmt: skip
    return json.dumps(chats, indent=1).encode().splitlines()


def vllm_custom(rows: Rows) -> list[bytes]:
    return jsonl(rows, lambda r: {"prompt": text(r.tokens), "output_tokens": r.out})


def openai_batch(rows: Rows) -> list[bytes]:
    return jsonl(rows, lambda r: {
        "custom_id": "x", "method": "POST", "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": text(r.tokens, "user")}],
                 "max_tokens": r.out},
    })  # fmt: skip


def openai_batch_output(rows: Rows) -> list[bytes]:
    return jsonl(rows, lambda r: {
        "id": "b", "custom_id": "x", "error": None,
        "response": {"status_code": 200, "body": {
            "choices": [{"message": {"content": SECRET}}],
            "usage": {"prompt_tokens": r.tokens, "completion_tokens": r.out}}},
    })  # fmt: skip


def aiperf(rows: Rows) -> list[bytes]:
    return jsonl(rows, lambda r: {
        "text": text(r.tokens, "user"), "timestamp": r.at_s * 1000, "output_length": r.out,
    })  # fmt: skip


def prompts(rows: Rows) -> list[bytes]:
    body = [f'"{text(r.tokens)}",{r.out}'.encode() for r in rows]
    return [b"question,output_tokens_count", *body]


def sglang_log(rows: Rows) -> list[bytes]:
    lines = []
    for i, r in enumerate(rows):
        for event, later, out in (
            ("request.received", 0, {}),
            ("request.finished", 7, {"out": {"text": SECRET, "meta_info": {
                "prompt_tokens": r.tokens, "completion_tokens": r.out, "e2e_latency": 7.0}}}),
        ):  # fmt: skip
            stamp = moment(r.at_s + later, "%Y-%m-%dT%H:%M:%S") + ".000000"
            asked = {"text": text(r.tokens)}
            entry = {"timestamp": stamp, "event": event, "rid": str(i), "obj": asked, **out}
            lines.append(b"[2031-02-03 04:05:06] " + json.dumps(entry).encode())
    return lines


def litellm(rows: Rows) -> list[bytes]:
    return jsonl(rows, lambda r: {
        "request_id": "x", "call_type": "acompletion", "startTime": moment(r.at_s) + "+00:00",
        "endTime": moment(r.at_s + 3) + "+00:00", "prompt_tokens": r.tokens, "status": "success",
        "completion_tokens": r.out, "messages": [{"role": "user", "content": SECRET}],
    })  # fmt: skip


def access_log(rows: Rows) -> list[bytes]:
    return [
        f"10.0.0.7 - - [{moment(r.at_s + 2, '%d/%b/%Y:%H:%M:%S')} +0000] "
        f'"POST /v1/chat/completions?q={SECRET} HTTP/1.1" 200 812 "-" "curl" request_time=2.000 '
        f"prompt_tokens={r.tokens} completion_tokens={r.out}".encode()
        for r in rows
    ]


def vllm_log(rows: Rows) -> list[bytes]:
    return [
        f"INFO {moment(r.at_s, '%m-%d %H:%M:%S')} [logger.py:39] Received request cmpl-{i}: "
        f"prompt: {text(r.tokens)!r}, params: SamplingParams(n=1, max_tokens={r.out}), "
        f"prompt_token_ids: {[7] * r.tokens}, lora_request: None.".encode()
        for i, r in enumerate(rows)
    ]


def weka(rows: Rows) -> list[bytes]:
    return jsonl(rows, lambda r: {
        "id": "p", "block_size": 16, "hash_id_scope": "global",
        "requests": [{"t": float(r.at_s), "type": "s", "in": r.tokens, "out": r.out,
                      "hash_ids": ids(r.tokens, 16)}],
    })  # fmt: skip


WRITERS: dict[str, Writer] = {
    "access_log": access_log, "aiperf": aiperf, "azure": azure, "bailian": bailian,
    "burstgpt": burstgpt, "canonical": canonical, "litellm": litellm, "mooncake": hashed(512),
    "openai_batch": openai_batch, "openai_batch_output": openai_batch_output, "prompts": prompts,
    "sglang_log": sglang_log, "sharegpt": sharegpt, "vllm_custom": vllm_custom,
    "vllm_log": vllm_log, "vllm_timed": hashed(16), "weka": weka,
}  # fmt: skip


@pytest.fixture(scope="session")
def writers() -> dict[str, Callable[[Sequence[tuple[int, int, int]]], list[bytes]]]:
    return {
        name: lambda rows, write=write: write([Wanted(*row) for row in rows])
        for name, write in WRITERS.items()
    }


@pytest.fixture(scope="session")
def secret() -> str:
    return SECRET
