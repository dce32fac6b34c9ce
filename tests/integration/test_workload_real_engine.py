"""Prompts rebuilt from block ids, in a real vLLM (CPU build): its cache finds what it should."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from autotune.cli.replaying import measure_once
from autotune.clock import StopSignal, SystemClock
from autotune.engines.catalog import engine_for
from autotune.engines.plan import HOST, PORT, LaunchPlan
from autotune.launch.catalog import launcher_for
from autotune.launch.launcher import Ticket
from autotune.launch.readiness import wait_ready
from autotune.study.measuring import MeasureSession, MeasureSettings
from autotune.workload.prompts import vocab_of
from autotune.workload.scripted import PromptTree, scripted
from autotune.workload.statistics import prefix_reuse
from autotune.workload.synthesis import Process
from autotune.workload.trace import Request, Trace

pytestmark = pytest.mark.real_engine
BLOCK = 32
"""Of the trace and of the engine: the CPU build's own 128 would find nothing smaller."""


def given(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} is not set")
    return value


def slice_of_traffic() -> Trace:
    """Thirty questions over instructions and one to three of six documents, as RAG asks them."""

    def question(number: int, rng: object, tree: PromptTree) -> list[Request]:
        documents = [(f"document {number * 7 % (d + 5)}", 160) for d in range(1 + number % 3)]
        prompt = [("instructions", 96), *documents, (f"question {number}", 10 + number)]
        return [tree.request(prompt, 2)]

    return scripted(
        question,
        process=Process(kind="constant", rate=5.0),
        count=30,
        duration_s=None,
        seed=1,
        block_size=BLOCK,
    )


def counter(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    families = text_string_to_metric_families(text)
    return sum(s.value for f in families for s in f.samples if s.name == f"vllm:{name}_total")


def test_vllm_finds_as_much_in_its_cache_as_the_trace_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The load behind the window is other traffic, which the counters would mix in
    monkeypatch.setattr(MeasureSession, "_background", lambda self, count: [])
    model = given("AUTOTUNE_TEST_MODEL")
    argv = (
        f"{given('AUTOTUNE_TEST_VLLM')}/bin/vllm", "serve", model, "--host", HOST, "--port", PORT,
        "--max-model-len", "2048", "--enforce-eager", "--block-size", str(BLOCK),
    )  # fmt: skip
    plan = LaunchPlan(
        engine="vllm",
        launcher="process",
        model=model,
        argv=argv,
        env={"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    trace = slice_of_traffic()
    reuse = prefix_reuse(trace)
    assert reuse is not None
    assert reuse > 0.4
    settings = MeasureSettings(
        objectives=(),
        constraints=(),
        metric_names=engine_for("vllm").metric_names(),
        vocab_size=vocab_of(model),
        warmup=0,
    )
    clock, stop = SystemClock(), StopSignal()
    server = launcher_for("process", clock=clock, stop=stop).start(
        plan, Ticket(study_id="real-engine", trial=0, directory=tmp_path)
    )
    try:
        wait_ready(server, timeout_s=300, clock=clock, stop=stop)
        names = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens")
        before = [counter(server.url, name) for name in names]
        measurement = measure_once(server, trace, tmp_path, settings, clock=clock, stop=stop)
        after = [counter(server.url, name) for name in names]
    finally:
        server.stop()
    queries, hits, prompts = (b - a for a, b in zip(before, after, strict=True))
    assert measurement.ok == measurement.planned == 30
    assert prompts == queries == sum(r.input_tokens for r in trace.requests)
    assert hits / queries == pytest.approx(reuse, abs=0.01)
