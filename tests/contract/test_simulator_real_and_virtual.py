"""The same traffic behind real HTTP and in virtual time gives the same latencies.

Tolerance: HTTP on a busy two-core machine adds some milliseconds to a single request and nothing to
the engine's pace; so medians must agree to 15 ms + 10 % (TTFT) and 1.5 ms + 10 % (TPOT), and the
whole replay must last equally long to 5 %.
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
import pytest

from autotune.simulator.config import resolve_config
from autotune.simulator.profile import load_profile
from autotune.simulator.scheduler import SimRequest
from autotune.simulator.virtual import VirtualArrival, simulate

FLAGS = {"max_num_batched_tokens": 1024, "max_num_seqs": 16, "gpu_memory_utilization": 0.94}


@dataclass(frozen=True)
class Seen:
    ttft_s: float
    tpot_s: float
    end_s: float
    cached: int


def traffic() -> list[VirtualArrival]:
    arrivals = []
    for i in range(36):
        own = range(1000 + 97 * i, 1000 + 97 * i + (1400 if i % 4 == 0 else 250))
        shared = range(20_000, 20_512) if i % 4 == 0 else range(0)
        request = SimRequest(id=str(i), prompt=[*shared, *own], output_tokens=20)
        arrivals.append(VirtualArrival(at_s=0.09 * i, request=request))
    return arrivals


@pytest.fixture
def url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = [w for k, v in FLAGS.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    words = ["serve", "tiny", "--port", str(port), "--sim-startup", "0", "--sim-noise", "0",
             "--enable-prompt-tokens-details"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune.simulator", *words, *flags], stdout=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 15
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


async def _ask(
    session: aiohttp.ClientSession, url: str, arrival: VirtualArrival, begin_s: float
) -> Seen:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(begin_s + arrival.at_s - loop.time())
    sent, moments, usage = loop.time(), [], {}
    body = {
        "prompt": list(arrival.request.prompt),
        "max_tokens": arrival.request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event["choices"]:
                moments.append(loop.time())
            else:
                usage = event["usage"]
    count = usage["completion_tokens"]
    return Seen(
        ttft_s=moments[0] - sent,
        tpot_s=(moments[-1] - moments[0]) / (count - 1),
        end_s=moments[-1] - begin_s,
        cached=usage["prompt_tokens_details"]["cached_tokens"],
    )


async def _replay(url: str, arrivals: list[VirtualArrival]) -> list[Seen]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        begin_s = asyncio.get_running_loop().time() + 0.1
        return await asyncio.gather(*(_ask(session, url, a, begin_s) for a in arrivals))


def test_real_time_and_virtual_time_agree(url: str) -> None:
    arrivals = traffic()
    profile = load_profile("quickstart")
    virtual = simulate(arrivals, resolve_config(FLAGS, profile), profile)
    real = asyncio.run(_replay(url, arrivals))
    ttft = statistics.median(t.ttft_s or 0.0 for t in virtual.times)
    tpot = statistics.median(t.tpot_s or 0.0 for t in virtual.times)
    assert statistics.median(seen.ttft_s for seen in real) == pytest.approx(ttft, 0.10, 0.015)
    assert statistics.median(seen.tpot_s for seen in real) == pytest.approx(tpot, 0.10, 0.0015)
    assert max(seen.end_s for seen in real) == pytest.approx(virtual.end_s, rel=0.05)
    assert [seen.cached for seen in real] == [times.cached_tokens for times in virtual.times]
