"""The guard on answers against a real model on a real vLLM (tests/real_engine/README.md): identical
passes, damaged does not. `benchmarks/quality_guard.py` says how surely, over many checks.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.engines.facts import engine_facts
from autotune.spec.model import QualitySpec
from autotune.study.answers import AnswerReader, Questions, Reading
from autotune.study.passages import passages_of
from autotune.study.quality import compare
from autotune.workload.trace import Trace

pytestmark = pytest.mark.real_engine

PATIENT = QualitySpec(time=120.0)
"""A busy machine without a GPU needs longer than a study would give."""


def given(name: str) -> Path:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} is not set")
    return Path(value)


@pytest.fixture(scope="module")
def benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "quality_guard.py"
    spec = importlib.util.spec_from_file_location("quality_guard", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(benchmark: Any, model: Path) -> Reading:
    passages, texts = passages_of(Trace(requests=()), "test")
    form = engine_facts("vllm").asks_likelihood(None)
    questions = Questions(
        engine="vllm", passages=passages, texts=texts, form=form, tokenizer=str(model)
    )
    reader = AnswerReader(questions, PATIENT, clock=SystemClock(), stop=StopSignal())
    program = given("AUTOTUNE_TEST_VLLM") / "bin" / "vllm"
    with benchmark.serving(program, model, []) as server:
        return reader.read(server, PATIENT.seconds)


def test_identical_model_passes_and_a_damaged_one_does_not(benchmark: Any, tmp_path: Path) -> None:
    model = given("AUTOTUNE_TEST_MODEL")
    reference = read(benchmark, model)
    assert len(reference.scores) >= 40
    assert not any(reference.wrong.values())

    finding, numbers = compare(PATIENT, reference, read(benchmark, model))
    assert finding.verdict == "passed", numbers
    assert abs(numbers["loss"]) < 0.002

    damaged = benchmark.damaged_copy(model, tmp_path, benchmark.noise(0.05))
    finding, numbers = compare(PATIENT, reference, read(benchmark, damaged))
    assert finding.verdict == "failed", numbers
    assert numbers["loss_low"] > PATIENT.limit
    assert numbers["agreement"] < 0.5
