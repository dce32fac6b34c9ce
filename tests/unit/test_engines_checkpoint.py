"""A knob named `model`: another checkpoint is served under the name of the study's model."""

from __future__ import annotations

import pytest

from autotune.engines.catalog import engine_for
from autotune.engines.engine import LaunchTarget
from autotune.space.candidate import Candidate


@pytest.mark.parametrize("kind", ["vllm", "sglang", "simulated"])
def test_another_checkpoint_keeps_the_name_that_requests_use(kind: str) -> None:
    target = LaunchTarget(model="acme/m", launcher="process", command=("server",))
    plan = engine_for(kind).plan(Candidate({"model": "acme/m-awq"}), target)
    argv = list(plan.argv)
    assert "acme/m-awq" in argv
    assert argv[argv.index("--served-model-name") + 1] == "acme/m" == plan.model


def test_the_studys_own_checkpoint_and_the_engine_add_no_words() -> None:
    target = LaunchTarget(model="acme/m", launcher="process")
    engine = engine_for("vllm")
    plain = engine.plan(Candidate({}), target)
    assert engine.plan(Candidate({"model": "acme/m", "engine": "vllm"}), target) == plain


def test_a_generic_command_gets_the_checkpoint_where_it_asks_for_the_model() -> None:
    target = LaunchTarget(
        model="m.gguf", launcher="process", command=("llama-server", "-m", "{model}")
    )
    plan = engine_for("generic").plan(Candidate({"model": "m-q4.gguf"}), target)
    assert list(plan.argv)[:3] == ["llama-server", "-m", "m-q4.gguf"]
    assert plan.model == "m.gguf"
