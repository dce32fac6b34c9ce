from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from autotune.workload.reader import read_trace
from autotune.workload.statistics import prefix_reuse

Start = Callable[..., subprocess.Popen[str]]
AUTOTUNE = [sys.executable, "-m", "autotune"]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(*words)` -> a process with its output piped; all are ended after the test."""
    begun: list[subprocess.Popen[str]] = []

    def _start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        begun.append(process)
        return process

    yield _start
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def line_of(process: subprocess.Popen[str], pattern: str, stream: str = "stderr") -> re.Match[str]:
    """The first line that fits; bounded by a timer that ends the process."""
    timer = threading.Timer(20, process.kill)
    timer.start()
    try:
        for line in getattr(process, stream):
            if match := re.search(pattern, line):
                return match
    finally:
        timer.cancel()
    raise AssertionError(f"no line with {pattern}")


def recorder(start: Start, upstream: str, output: Path) -> tuple[subprocess.Popen[str], str]:
    process = start(
        *AUTOTUNE, "workload", "record",
        "--listen", "127.0.0.1:0", "--upstream", upstream, "-o", str(output), "--json",
    )  # fmt: skip
    return process, line_of(process, r"listening on (http://\S+),")[1]


@pytest.fixture
def simulator(start: Start) -> str:
    """The address of a running simulated engine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "autotune.simulator", "serve", "tiny", "--port", str(port)]
    process = start(*words, "--max-model-len", "4096")
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        else:
            return f"http://127.0.0.1:{port}"


def ask(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        url + "/v1/completions",
        data=orjson.dumps({"model": "tiny", "stream": True, **body}),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")


def test_what_was_recorded_replays_as_the_same_work(
    start: Start, simulator: str, tmp_path: Path
) -> None:
    rng = random.Random(5)
    shared = [[rng.randrange(1000, 9000) for _ in range(640)] for _ in range(3)]
    asked = [
        (shared[i % 3][:640] + [rng.randrange(1000, 9000) for _ in range(i * 7 + 1)], 3 + i % 5)
        for i in range(18)
    ]
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    process, url = recorder(start, simulator, first)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda a: ask(url, {"prompt": a[0], "max_tokens": a[1]}), asked))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    told = orjson.loads(out)
    assert told["files"] == [str(first)]
    assert (told["requests"], told["recorded"], told["skipped_by_reason"]) == (18, 18, {})
    assert "recorded 18 of 18 requests" in err

    trace = read_trace(first, strict=True)
    work = sorted((len(tokens), count) for tokens, count in asked)
    assert sorted((r.input_tokens, r.output_tokens) for r in trace.requests) == work
    seen = 15 * 640 / sum(len(tokens) for tokens, _ in asked)
    assert prefix_reuse(trace) == pytest.approx(seen, abs=0.01)

    process, url = recorder(start, simulator, second)
    replay = start(
        *AUTOTUNE, "replay", "--url", url, "--workload", str(first), "--model", "tiny", "--json"
    )
    out, err = replay.communicate(timeout=60)
    assert replay.returncode == 0, err
    assert orjson.loads(out)["requests"]["ok"] == 18
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    again = read_trace(second, strict=True)
    replayed = again.requests[8:26]  # after the warm-up, before the load behind the window
    assert sorted((r.input_tokens, r.output_tokens) for r in replayed) == work
    # In the same order, but for those that came nearly at once
    due = {r.input_tokens: r.at_s for r in trace.requests}
    came = [due[r.input_tokens] for r in sorted(replayed, key=lambda r: r.at_s)]
    assert all(later >= max(came[:i], default=0.0) - 0.25 for i, later in enumerate(came))
    hits = prefix_reuse(
        type(again)(requests=replayed, block_size=again.block_size)
    )  # the same, whatever the prompts are made of
    assert hits == pytest.approx(prefix_reuse(trace), abs=1e-9)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AUTOTUNE, "workload", "record", *words],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_bad_addresses_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    output = tmp_path / "a.jsonl"
    for words, message in (
        (("--upstream", "localhost:8000"), "error: no address of an engine: localhost:8000"),
        (("--upstream", "http://127.0.0.1:1", "--listen", "0.0.0.0:9000"),
         "error: 0.0.0.0 can be reached from other machines"),
        (("--upstream", "http://127.0.0.1:1", "--listen", "nine"), "error: no address to listen"),
        (("--upstream", "http://127.0.0.1:1", "--rotate", "1"), "error: no size of a file: 1"),
    ):  # fmt: skip
        ended = run(*words, "-o", str(output))
        assert ended.returncode == 2
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_a_fault_of_the_environment_and_leaves_no_file(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run(
            "--upstream", "http://127.0.0.1:1", "--listen", listen, "-o", str(tmp_path / "a.jsonl")
        )
    assert ended.returncode == 4
    assert f"error: cannot listen on {listen}" in ended.stderr
    assert "another process listens there" in ended.stderr
    assert list(tmp_path.iterdir()) == []
