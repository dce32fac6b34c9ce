"""The simulated server as a real process: starts, streams, refuses, dies, stops."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

FAST = ("--sim-startup", "0.05", "--sim-seed", "1")
# beside a memory fraction of 0.97 a step of more than about 2,250 tokens does not fit
DEADLY = (*FAST, "--gpu-memory-utilization", "0.97", "--max-num-batched-tokens", "2560",
          "--max-num-seqs", "32")  # fmt: skip


def test_a_stream_has_one_event_per_token_usage_and_done(start: Callable[..., Any]) -> None:
    server = start(*FAST, "--enable-prompt-tokens-details", "--served-model-name", "a", "b")
    body = {
        "model": "b",
        "prompt": list(range(100, 140)),
        "max_tokens": 5,
        "min_tokens": 5,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    for cached in (0, 32):
        *events, done = server.events("/v1/completions", body)
        assert done == "[DONE]"
        parsed = [json.loads(event) for event in events]
        assert [len(event["choices"]) for event in parsed] == [1] * 5 + [0]
        assert [event["usage"]["completion_tokens"] for event in parsed] == [1, 2, 3, 4, 5, 5]
        assert parsed[4]["choices"][0]["finish_reason"] == "length"
        assert parsed[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        assert all(event["choices"][0]["text"].strip() for event in parsed[:5])


def test_all_answers_say_that_they_are_simulated(start: Callable[..., Any]) -> None:
    server = start(*FAST)
    for path, body in (
        ("/health", None),
        ("/version", None),
        ("/metrics", None),
        ("/v1/models", None),
        ("/nothing", None),
        ("/v1/completions", {"prompt": "a b c"}),
        ("/v1/completions", {"prompt": "a b c", "stream": True}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ):
        _status, _text, headers = server.call(path, body)
        assert headers["X-Autotune-Simulated"] == "1", path
    assert json.loads(server.call("/version")[1])["version"].endswith("+simulated")
    lines = server.text().splitlines()
    assert "SIMULATED" in lines[0]
    assert all("simulated" in line.lower() for line in lines if " INFO 1" in line or "POST" in line)


def test_routes_answer_as_vllm_does(start: Callable[..., Any]) -> None:
    server = start(
        *FAST, "--max-model-len", "2048", "--stream-interval", "3", env={"VLLM_API_KEY": "k"}
    )
    key = {"Authorization": "Bearer k"}
    card = json.loads(server.call("/v1/models", headers=key)[1])["data"][0]
    assert (card["id"], card["root"], card["max_model_len"]) == ("tiny", "tiny", 2048)
    assert server.call("/v1/models")[0] == 401
    assert server.call("/health")[0] == 200
    status, text, _ = server.call("/v1/completions", {"prompt": "a", "model": "other"}, key)
    assert (status, json.loads(text)["error"]["code"]) == (404, 404)
    status, text, _ = server.call("/v1/completions", {"prompt": [1] * 3000}, key)
    assert status == 400
    assert "maximum context length is 2048 tokens" in text
    assert server.call("/reset_prefix_cache", {}, key)[0] == 404
    whole = json.loads(server.call("/v1/completions", {"prompt": "a b", "max_tokens": 4}, key)[1])
    assert whole["usage"]["completion_tokens"] == len(whole["choices"][0]["text"].split()) == 4
    body = {"prompt": "a b", "max_tokens": 7, "stream": True}
    text = server.call("/v1/completions", body, key)[1]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert [len(event["choices"][0]["text"].split()) for event in events] == [1, 2, 3, 1]


def test_the_prefix_cache_can_be_emptied_in_dev_mode(start: Callable[..., Any]) -> None:
    server = start(*FAST, env={"VLLM_SERVER_DEV_MODE": "1"})
    body = {"prompt": list(range(200, 264)), "max_tokens": 1}
    server.call("/v1/completions", body)
    server.call("/v1/completions", body)
    assert json.loads(server.call("/reset_prefix_cache", {})[1]) == {"success": True}
    server.call("/v1/completions", body)
    page = server.call("/metrics")[1]
    hits = next(
        line for line in page.splitlines() if line.startswith("vllm:prefix_cache_hits_total")
    )
    assert float(hits.split()[-1]) == 48


def test_the_socket_opens_only_when_start_up_is_over(start: Callable[..., Any]) -> None:
    server = start("--sim-startup", "0.4", ready=False)
    refused = 0
    while "Available KV cache memory" not in server.text():
        with socket.socket() as probe:
            refused += probe.connect_ex(("127.0.0.1", server.port)) != 0
        time.sleep(0.02)
    assert refused > 0
    server.wait_ready()
    text = server.text()
    order = ["Starting to load model", "Loading weights took", "torch.compile took",
             "Available KV cache memory: ", "GPU KV cache size: ", "Maximum concurrency for ",
             "Graph capturing finished in", "init engine (profile, create kv cache",
             "Starting vLLM server on"]  # fmt: skip
    places = [text.index(fragment) for fragment in order]
    assert places == sorted(places)


def test_a_busy_port_ends_the_start_with_1(start: Callable[..., Any]) -> None:
    first = start(*FAST)
    second = start(*FAST, ready=False, port=first.port)
    assert second.process.wait(timeout=10) == 1
    assert "Address already in use" in second.text()


@pytest.mark.parametrize(
    ("flags", "code", "fragment"),
    [
        (("--enable-reasoning",), 2, "error: unrecognized arguments: --enable-reasoning"),
        (("--max-num-seqs", "4096"), 1, "must be greater than or equal to max_num_seqs (4096)"),
        (("--gpu-memory-utilization", "0.8"), 1, "No available memory for the cache blocks"),
        (("--gpu-memory-utilization", "0.98"), 1, "CUDA out of memory"),
    ],
)
def test_bad_settings_end_the_process_with_vllms_code_and_words(
    start: Callable[..., Any], flags: tuple[str, ...], code: int, fragment: str
) -> None:
    server = start(*FAST, *flags, ready=False)
    assert server.process.wait(timeout=10) == code
    assert fragment in server.text()


def test_running_out_of_memory_under_load_ends_streams_with_an_error_and_exits_0(
    start: Callable[..., Any],
) -> None:
    server = start(*DEADLY)
    streams: list[list[str]] = []
    body = {"prompt": list(range(100)), "max_tokens": 2000}
    reader = threading.Thread(target=lambda: streams.append(server.events("/v1/completions", body)))
    reader.start()
    wait_for(lambda: running(server) == 1.0)
    status, text, _ = server.call("/v1/completions", {"prompt": [7] * 2500, "max_tokens": 2})
    assert status == 500
    assert "EngineCore encountered an issue" in text
    reader.join(timeout=10)
    *tokens, error, done = streams[0]
    assert done == "[DONE]"
    assert json.loads(error)["error"]["code"] == 500
    assert tokens
    assert server.process.wait(timeout=10) == 0
    log = server.text()
    assert log.index("EngineCore encountered a fatal error") < log.index("torch.OutOfMemoryError")


def test_a_client_that_leaves_frees_its_place(start: Callable[..., Any]) -> None:
    server = start(*FAST)
    body = json.dumps({"prompt": [1] * 50, "max_tokens": 4000, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall((head + body).encode())
        assert b"200 OK" in client.recv(4096)
        assert running(server) == 1.0
    wait_for(lambda: running(server) == 0.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_0_also_in_the_middle_of_a_stream(
    start: Callable[..., Any], number: signal.Signals
) -> None:
    server = start(*FAST)
    body = json.dumps({"prompt": [1] * 50, "max_tokens": 4000, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall((head + body).encode())
        assert b"200 OK" in client.recv(4096)
        server.process.send_signal(number)
        assert server.process.wait(timeout=5) == 0
        received = b""
        while part := client.recv(65536):
            received += part
    assert b"[DONE]" not in received


def running(server: Any) -> float:
    for line in server.call("/metrics")[1].splitlines():
        if line.startswith("vllm:num_requests_running{"):
            return float(line.split()[-1])
    raise AssertionError("no such metric")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
