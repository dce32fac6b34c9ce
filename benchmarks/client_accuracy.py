"""How true the replay client's numbers are, and what they cost, against a server that knows.

    python benchmarks/client_accuracy.py [--streams 16,64,256,512] [--seconds 8] [--repeats 3]
        [--vllm VLLM --tokenizer FOLDER] [--aiperf AIPERF] [--guidellm GUIDELLM] [--burst]

The bundled truth server (first token after 50 to 250 ms, then one each 20 ms, 128 tokens) logs when
it read each request and wrote each chunk. The same load, at an even rate, is put on it by autotune,
by a bare aiohttp loop that only stamps what it reads, and by other tools where their programs are
given or on the PATH. Errors are per request: the client's figure minus the server's; matched by
request id, or by order of start where a tool has none. autotune's TTFT counts from the due time, so
its own lag is inside. Server and client are pinned to a core each if there are two.

`rate` is what arrived over what was asked; `CPU` is seconds per 1,000 chunks while the load is on
(of other tools: their whole process tree, start-up included, marked *); `ratio` is to the bare loop
in the same repeat; `start` is from the spawn to the first arrival. Medians over the repeats.
autotune's worker asks for real-time priority, as for a user: granted to root only; no other does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
from peers import PEERS, Peer, Run

from autotune.clock import StopSignal, SystemClock
from autotune.replay.calibration import truth_server
from autotune.replay.records import PlannedRequest
from autotune.replay.replayer import ReplayOptions, replay

TOKENS = 128
PACE_S = 0.020
STREAM_S = 0.150 + PACE_S * (TOKENS - 1)
ROUTE = "/v1/completions"


@dataclass
class Found:
    """One client at one load. Milliseconds, microseconds for `tpot`."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    requests: int = 0
    chunks_per_s: float = 0.0
    rate: float = 0.0
    cpu_s: float = 0.0
    whole: bool = False
    rss_mb: float = 0.0
    start_s: float = 0.0


async def bare(url: str, dues: Sequence[float]) -> list[dict[str, Any]]:
    """The least that a client can do: send on time, stamp what is read."""
    rows: list[dict[str, Any]] = []
    body = orjson.dumps({
        "prompt": list(range(128)), "max_tokens": TOKENS, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    })  # fmt: skip
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=4 << 20) as session:

        async def one(number: int) -> None:
            stamps = []
            begun = time.monotonic()
            headers = {"X-Request-Id": f"b-{number}", "Content-Type": "application/json"}
            async with session.post(url + ROUTE, data=body, headers=headers) as response:
                async for _ in response.content.iter_any():
                    stamps.append(time.monotonic())  # noqa: PERF401 - the plainest loop
            since = start if burst else begun
            rows.append({"id": f"b-{number}", "ttft": stamps[0] - since})

        burst = not any(dues)
        start = time.monotonic() + 0.1
        tasks = []
        for number, at in enumerate(dues):
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.gather(*tasks)
    return rows


def run_bare(url: str, dues: Sequence[float]) -> Run:
    answer = subprocess.run(
        [sys.executable, __file__, "--bare", url],
        input=json.dumps(list(dues)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(answer.stdout)
    return Run(rows=found["rows"], cpu_s=found["cpu_s"], rss_mb=found["rss_mb"])


def run_autotune(url: str, dues: Sequence[float], workers: int = 1) -> Run:
    plan = [
        PlannedRequest(index=k, due_s=at, prompt=range(128), output_tokens=TOKENS)
        for k, at in enumerate(dues)
    ]
    with tempfile.TemporaryDirectory() as folder:
        result = replay(
            plan, url=url, model="truth", options=ReplayOptions(workers=workers),
            directory=Path(folder), clock=SystemClock(), stop=StopSignal(), alive=lambda: True,
        )  # fmt: skip
    rows = []
    for r in result.records:
        if r.failure or r.first_token_s is None or r.last_token_s is None:
            raise SystemExit(f"request {r.index} failed: {r.failure} {r.detail}")
        tpot = (r.last_token_s - r.first_token_s) / (TOKENS - 1)
        rows.append({"id": f"r-{r.index}", "ttft": r.first_token_s - r.due_s, "tpot": tpot})
    extra = result.health.extra
    return Run(rows=rows, cpu_s=extra["cpu_s"], rss_mb=extra["peak_rss_bytes"] / 2**20)


def compare(run: Run, truths: Sequence[dict[str, Any]], rate: float, spawned: float) -> Found:
    """What a client said against what the server knows."""
    served = sorted(truths, key=lambda truth: truth["arrived"])
    rows = run.rows
    if all(row.get("id") for row in rows):
        known = {truth["id"].rpartition("-")[2]: truth for truth in served}
        pairs = [(row, known[row["id"].rpartition("-")[2]]) for row in rows]
    else:
        served = served[-len(rows) :]  # a tool's own ready check came before
        pairs = list(zip(sorted(rows, key=lambda row: row["begun"]), served, strict=True))
    arrivals = [truth["arrived"] for _, truth in pairs]
    span = max(arrivals) - min(arrivals)
    end = max(truth["last"] for _, truth in pairs)
    found = Found(requests=len(pairs), rss_mb=run.rss_mb, whole=run.whole)
    found.start_s = served[0]["arrived"] - spawned
    found.rate = (len(pairs) - 1) / span / rate if span else 1.0
    chunks = len(pairs) * TOKENS
    found.chunks_per_s = chunks / (end - min(arrivals))
    found.cpu_s = run.cpu_s / chunks * 1000
    for row, truth in pairs:
        found.ttft.append((row["ttft"] - (truth["first"] - truth["arrived"])) * 1e3)
        if row.get("tpot") is not None:
            true = (truth["last"] - truth["first"]) / (TOKENS - 1)
            found.tpot.append((row["tpot"] - true) * 1e6)
    return found


def measure(
    client: Callable[[str, Sequence[float]], Run], dues: Sequence[float], core: int | None
) -> Found:
    with truth_server(pace_s=PACE_S, core=core) as (url, truths):
        spawned = time.monotonic()
        run = client(url, dues)
    rate = (len(dues) - 1) / (dues[-1] - dues[0]) if dues[-1] > dues[0] else 1.0
    return compare(run, truths, rate, spawned)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


HEADER = (
    "client     streams requests chunks/s   rate | TTFT err ms p50     p99 | TPOT us p50     p99 | "
    "CPU s/1000  ratio | RSS MB start s"
)


def line(name: str, streams: int, runs: Sequence[Found], bare_runs: Sequence[Found]) -> str:
    def median(pick: Callable[[Found], float]) -> float:
        return statistics.median(pick(run) for run in runs)

    ratio = "     -"
    if not runs[0].whole and runs is not bare_runs:
        pairs = zip(runs, bare_runs, strict=True)
        ratio = f"{statistics.median(a.cpu_s / b.cpu_s for a, b in pairs):6.2f}"
    tpot = "          -       -"
    if runs[0].tpot:
        p50, p99 = (median(lambda run, q=q: quantile(run.tpot, q)) for q in (0.5, 0.99))  # type: ignore[misc]
        tpot = f"{p50:11.1f} {p99:7.1f}"
    return (
        f"{name:<10} {streams:>7} {runs[0].requests:>8} {median(lambda r: r.chunks_per_s):>8.0f} "
        f"{median(lambda r: r.rate):>6.3f} | {median(lambda r: quantile(r.ttft, 0.5)):>15.2f} "
        f"{median(lambda r: quantile(r.ttft, 0.99)):>7.2f} | {tpot} | "
        f"{median(lambda r: r.cpu_s):>9.4f}{'*' if runs[0].whole else ' '} {ratio} | "
        f"{max(r.rss_mb for r in runs):>6.0f} {median(lambda r: r.start_s):>7.2f}"
    )


def bursts(core: int | None, repeats: int, size: int = 256) -> None:
    """Many requests in one instant: what the client adds to their first tokens."""
    print(f"\nburst of {size} in one instant: TTFT error ms p50 / p99, from the due time")
    clients = {
        "bare, 1 process": run_bare,
        "autotune, 1 worker": run_autotune,
        "autotune, 2 workers": lambda url, dues: run_autotune(url, dues, workers=2),
    }
    for name, client in clients.items():
        runs = [measure(client, [0.0] * size, core) for _ in range(repeats)]
        p50, p99 = (
            statistics.median(quantile(run.ttft, share) for run in runs) for share in (0.5, 0.99)
        )
        print(f"  {name:<20} {p50:6.2f} {p99:7.2f}", flush=True)


def child() -> None:
    """The bare loop in a process of its own."""
    dues = json.load(sys.stdin)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before = time.process_time()
        rows = runner.run(bare(sys.argv[2], dues))
        cpu_s = time.process_time() - before
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": rows, "cpu_s": cpu_s, "rss_mb": rss_mb}))


def peers_wanted(options: argparse.Namespace) -> dict[str, Callable[[str, Sequence[float]], Run]]:
    wanted: dict[str, Callable[[str, Sequence[float]], Run]] = {}
    for name, runner in PEERS.items():
        program = getattr(options, name) or shutil.which(name)
        if program and options.tokenizer:
            peer = Peer(program=program, tokenizer=options.tokenizer, tokens=TOKENS)
            wanted[name] = lambda url, dues, run=runner, peer=peer: run(peer, url, dues)  # type: ignore[misc]
    return wanted


def main() -> None:
    if sys.argv[1:2] == ["--bare"]:
        child()
        return
    parser = argparse.ArgumentParser(description="accuracy and cost of the replay client")
    parser.add_argument("--streams", default="16,64,256,512")
    parser.add_argument("--seconds", type=float, default=8.0, help="of arrivals, per row")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--burst", action="store_true", help="also 256 requests in one instant")
    parser.add_argument("--tokenizer", default=os.environ.get("AUTOTUNE_BENCH_TOKENIZER"))
    for name in PEERS:
        variable = f"AUTOTUNE_BENCH_{name.upper()}"
        parser.add_argument(f"--{name}", default=os.environ.get(variable), help="its program")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    core = cores[0] if len(cores) > 1 else None
    if core is not None:
        os.sched_setaffinity(0, set(cores[1:2]))
    clients = {"bare": run_bare, "autotune": run_autotune, **peers_wanted(options)}
    print(f"load average {os.getloadavg()[0]:.2f}, {len(cores)} cores, {options.repeats} repeats")
    print(HEADER)
    for streams in (int(part) for part in options.streams.split(",")):
        rate = streams / STREAM_S
        dues = [k / rate for k in range(max(2, round(rate * options.seconds)))]
        runs: dict[str, list[Found]] = {name: [] for name in clients}
        for _ in range(options.repeats):  # interleaved, so that drift of the machine spreads
            for name, client in clients.items():
                runs[name].append(measure(client, dues, core))
        for name in clients:
            print(line(name, streams, runs[name], runs["bare"]), flush=True)
    if options.burst:
        bursts(core, options.repeats)
    print(f"load average at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
