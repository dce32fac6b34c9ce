"""The simulated SGLang as a process: its routes, its key, how it ends."""

from __future__ import annotations

import json
import signal
from typing import Any

SGLANG = ("serve-sglang", "--model-path", "tiny", "--sim-startup", "0")


def test_it_answers_on_sglangs_routes(start: Any) -> None:
    server = start("--enable-metrics", command=SGLANG)
    assert server.call("/health_generate")[0] == 200
    info = json.loads(server.call("/get_server_info")[1])
    assert info["version"].startswith("0.5.23")
    body = {"model": "tiny", "prompt": [1, 2, 3, 4], "max_tokens": 3}
    assert json.loads(server.call("/v1/completions", body)[1])["usage"]["completion_tokens"] == 3
    page = server.call("/metrics")[1]
    assert "sglang:generation_tokens_total" in page
    assert "vllm:" not in page
    assert server.call("/flush_cache", {})[0] == 200
    assert server.call("/version")[0] == 404


def test_metrics_need_their_flag_and_a_key_guards_all_but_health(start: Any) -> None:
    server = start("--api-key", "k", command=SGLANG)
    assert server.call("/metrics")[0] == 404
    assert server.call("/health")[0] == 200
    assert server.call("/get_server_info")[0] == 401
    assert server.call("/v1/models", headers={"Authorization": "Bearer k"})[0] == 200


def test_a_failing_child_takes_the_server_with_it(start: Any) -> None:
    server = start("--mem-fraction-static", "0.4", ready=False, command=SGLANG)
    assert server.process.wait(timeout=20) == -signal.SIGKILL
    assert "Not enough memory. Please try to increase --mem-fraction-static" in server.text()


def test_it_ends_in_order_when_told_to(start: Any) -> None:
    server = start(command=SGLANG)
    server.process.terminate()
    assert server.process.wait(timeout=10) == 0
    assert "The server is fired up and ready to roll!" in server.text()
