"""Other load tools, called on one server at a constant rate, and what they say of each request.

Rows hold `ttft` (seconds), `tpot` (seconds) if told, and `id` (as sent in `X-Request-Id`) or
`begun` (any clock, for the order of starts).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class Peer:
    """A tool's program, a local tokenizer folder for it, and the tokens of each answer."""

    program: str
    tokenizer: str
    tokens: int


@dataclass(frozen=True)
class Run:
    """What a client reported. `cpu_s`: of its load, or of the whole tool if `whole`."""

    rows: list[dict[str, Any]]
    cpu_s: float
    rss_mb: float
    whole: bool = False


def rate_of(dues: Sequence[float]) -> float:
    return (len(dues) - 1) / (dues[-1] - dues[0])


def watched(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[float, float]:
    """Run a tool; CPU seconds of its process tree and the peak of its summed memory in MB."""
    before = os.times()
    with (folder / "said.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env=dict(environment), cwd=folder,
        )  # fmt: skip
        peak = [0.0]
        done = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, peak, done), daemon=True)
        sampler.start()
        status = process.wait()
        done.set()
        sampler.join()
    if status:
        raise SystemExit(f"{command[0]} failed:\n{(folder / 'said.log').read_text()[-2000:]}")
    after = os.times()
    cpu_s = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    return cpu_s, peak[0]


def _sample(pid: int, peak: list[float], done: threading.Event) -> None:
    while not done.wait(2.0):
        try:
            root = psutil.Process(pid)
            tree = [root, *root.children(recursive=True)]
            peak[0] = max(peak[0], sum(p.memory_info().rss for p in tree) / 2**20)
        except psutil.NoSuchProcess:
            continue


def run_vllm(peer: Peer, url: str, dues: Sequence[float]) -> Run:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            peer.program, "bench", "serve", "--backend", "openai", "--base-url", url,
            "--model", "truth", "--tokenizer", peer.tokenizer, "--dataset-name", "random",
            "--random-input-len", "128", "--random-output-len", str(peer.tokens), "--ignore-eos",
            "--request-rate", str(rate_of(dues)), "--burstiness", "inf",
            "--num-prompts", str(len(dues)), "--request-id-prefix", "v-",
            "--save-result", "--save-detailed", "--result-dir", name,
            "--result-filename", "v.json", "--disable-tqdm",
        ]  # fmt: skip
        cpu_s, rss = watched(command, folder, os.environ | {"HF_HUB_OFFLINE": "1"})
        found = json.loads((folder / "v.json").read_text())
    rows = [
        {"id": f"v-{k}", "ttft": ttft, "tpot": sum(gaps) / (peer.tokens - 1)}
        for k, (ttft, gaps) in enumerate(zip(found["ttfts"], found["itls"], strict=True))
    ]
    return Run(rows=rows, cpu_s=cpu_s, rss_mb=rss, whole=True)


def run_aiperf(peer: Peer, url: str, dues: Sequence[float]) -> Run:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            peer.program, "profile", "--model", "truth", "--url", url, "--endpoint-type",
            "completions", "--streaming", "--tokenizer", peer.tokenizer, "--isl", "128",
            "--osl", str(peer.tokens), "--extra-inputs", "ignore_eos:true",
            "--use-server-token-count", "--request-rate", str(rate_of(dues)),
            "--arrival-pattern", "constant", "--request-count", str(len(dues)), "--ui", "none",
            "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", name,
        ]  # fmt: skip
        environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_OFFLINE"}
        cpu_s, rss = watched(command, folder, environment)
        (export,) = folder.rglob("profile_export.jsonl")
        records = [json.loads(line) for line in export.read_text().splitlines()]
    rows = [
        {
            "id": record["metadata"]["x_request_id"],
            "ttft": record["metrics"]["time_to_first_token"]["value"] / 1e3,
            "tpot": record["metrics"]["inter_token_latency"]["value"] / 1e3,
        }
        for record in records
    ]
    return Run(rows=rows, cpu_s=cpu_s, rss_mb=rss, whole=True)


def run_guidellm(peer: Peer, url: str, dues: Sequence[float]) -> Run:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backend = f"kind=openai_http,target={url},model=truth,request_format=/v1/completions"
        command = [
            peer.program, "run", "--backend", backend,
            "--profile", f"kind=constant,rate={rate_of(dues)}",
            "--constraint", f"kind=max_requests,count={len(dues)}",
            "--tokenizer", f"kind=hf_auto,model={peer.tokenizer}",
            "--data", f"kind=synthetic_text,prompt_tokens=128,output_tokens={peer.tokens}",
            "--output", f"kind=json,path={folder / 'g.json'}", "--disable-console",
        ]  # fmt: skip
        cpu_s, rss = watched(command, folder, os.environ | {"HF_HUB_OFFLINE": "1"})
        found = json.loads((folder / "g.json").read_text())
    requests = found["benchmarks"][0]["requests"]["successful"]
    rows = [
        {
            "begun": request["request_start_time"],
            "ttft": request["time_to_first_token_ms"] / 1e3,
            "tpot": request["inter_token_latency_ms"] / 1e3,
        }
        for request in requests
    ]
    return Run(rows=rows, cpu_s=cpu_s, rss_mb=rss, whole=True)


PEERS: Mapping[str, Callable[[Peer, str, Sequence[float]], Run]] = {
    "vllm": run_vllm,
    "aiperf": run_aiperf,
    "guidellm": run_guidellm,
}
