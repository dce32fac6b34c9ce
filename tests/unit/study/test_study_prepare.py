"""What is refused before anything is started, and the facts that rules may use."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InputError
from autotune.launch.gpus import Gpu
from autotune.study import snapshot
from autotune.study.facts import gpu_facts, model_facts, workload_facts
from autotune.study.prepare import check, smallest_length


def test_sound_study_passes_the_check_and_leaves_nothing(lab: Any, tmp_path: Path) -> None:
    study = lab.prepare().study
    before = sorted(tmp_path.rglob("*"))
    check(study)
    assert sorted(tmp_path.rglob("*")) == before


def test_budget_too_small_for_one_launch(lab: Any) -> None:
    with pytest.raises(InputError, match="too small for one launch"):
        check(lab.prepare(budget={"time": "2s"}).study)


def test_baseline_that_breaks_a_rule_of_the_space(lab: Any) -> None:
    space = {
        "engine": "simulated",
        "knobs": {"max-num-seqs": {"type": "int", "values": [8, 16]}},
        "rules": ["max-num-seqs >= 16"],
    }
    with pytest.raises(InputError, match="breaks a rule of the space: max-num-seqs >= 16"):
        check(lab.prepare(space=space).study)


def test_busy_port_is_refused_and_its_holder_left_alone(lab: Any) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} is busy") as refused:
            check(lab.prepare(engine={"kind": "simulated", "port": port}).study)
        assert refused.value.exit_code == 2
        socket.create_connection(("127.0.0.1", port)).close()


def test_missing_secret_is_refused_by_name(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    engine = {"kind": "simulated", "env": {"HF_TOKEN": {"from_env": "NO_SUCH_TOKEN"}}}
    with pytest.raises(InputError, match="NO_SUCH_TOKEN is not set"):
        check(lab.prepare(engine=engine).study)


def test_missing_model_folder_is_refused(lab: Any) -> None:
    with pytest.raises(InputError, match="no such folder"):
        lab.prepare(model="/no/such/model")


def test_running_server_cannot_be_tuned(lab: Any) -> None:
    engine = {"kind": "vllm", "launcher": "attach", "url": "http://127.0.0.1:9"}
    space = {"engine": "vllm", "knobs": {"max-num-seqs": {"type": "int", "values": [8, 16]}}}
    with pytest.raises(InputError, match="cannot be tuned"):
        check(lab.prepare(engine=engine, space=space).study)


def test_value_that_has_no_form_as_a_flag_is_refused_before_any_launch(lab: Any) -> None:
    knobs = {
        "max-num-seqs": {"type": "int", "values": [8, 16]},
        "disable-log-stats": {"type": "switch"},
    }
    engine = {"kind": "vllm", "command": ["true"]}
    with pytest.raises(InputError, match="disable-log-stats"):
        check(lab.prepare(engine=engine, space={"engine": "vllm", "knobs": knobs}).study)


def test_facts_of_a_model_folder(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_attention_heads": 28,
        "num_hidden_layers": 32,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = model_facts(str(tmp_path))
    assert facts["model.heads"] == facts["model.kv_heads"] == 28
    assert facts["model.max_length"] == 40960
    assert facts["model.architecture"] == "LlamaForCausalLM"
    assert (facts["model.experts"], facts["model.mla"], facts["model.quantized"]) == (
        0,
        False,
        False,
    )


@pytest.mark.parametrize("content", ["", "[1]", '{"num_experts": "many"}', "{"])
def test_odd_model_folders_give_few_facts_and_no_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert "model.heads" not in model_facts(str(tmp_path))


def test_facts_of_nested_text_models(tmp_path: Path) -> None:
    config = {"text_config": {"num_hidden_layers": 4, "kv_lora_rank": 512}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = model_facts(str(tmp_path))
    assert facts["model.layers"] == 4
    assert facts["model.mla"] is True


def two_gpus() -> list[Gpu]:
    def gpu(index: int, name: str) -> Gpu:
        return Gpu(
            index=index, uuid=f"GPU-{index}", name=name, memory_total=80 * 1024**3,
            memory_used=0, compute_capability=9.0, driver="580",
        )  # fmt: skip

    return [gpu(0, "A"), gpu(1, "B")]


@pytest.mark.parametrize(
    ("wanted", "names"), [(None, ["A", "B"]), ([1], ["B"]), (["GPU-0"], ["A"]), ([], [])]
)
def test_the_fingerprint_has_the_gpus_that_the_study_may_use(
    lab: Any, monkeypatch: pytest.MonkeyPatch, wanted: list[Any] | None, names: list[str]
) -> None:
    lab.prepare(engine={"kind": "simulated", "args": {"sim-profile": "quickstart"}, "gpus": wanted})
    monkeypatch.setattr(snapshot, "list_gpus", two_gpus)
    machine = snapshot.fingerprint(lab.study, "2026-01-01")["machine"]
    assert [gpu["name"] for gpu in machine["gpus"]] == names


def test_facts_of_gpus_are_those_of_the_chosen_ones(lab: Any) -> None:
    both = two_gpus()
    assert gpu_facts(both, ("1",))["gpu.name"] == "B"
    assert gpu_facts(both, ("GPU-0",))["gpu.name"] == "A"
    assert gpu_facts(both, None)["gpu.count"] == 2
    assert gpu_facts(both, ()) == {"gpu.count": 0}
    assert gpu_facts(both, None)["gpu.memory_gib"] == 80.0


def test_facts_of_the_workload_leave_out_what_is_unknown(lab: Any) -> None:
    facts = workload_facts(lab.prepare().study.traffic.description)
    assert facts["workload.requests"] == 15
    assert facts["workload.input_max"] == 78
    assert "workload.prefix_reuse" not in facts
    assert None not in facts.values()


def test_requests_are_cut_at_the_smallest_length_of_any_candidate(lab: Any) -> None:
    knobs = {
        "max-num-seqs": {"type": "int", "values": [8, 16]},
        "max-model-len": {"type": "int", "values": [75, 4096]},
    }
    study = lab.prepare(
        space={"engine": "simulated", "knobs": knobs}, baseline={"max-num-seqs": 8}
    ).study
    assert smallest_length(study.space, study.facts, study.baseline) == 75
    lengths = [r.input_tokens + r.output_tokens for r in study.search_trace.requests]
    assert max(lengths) <= 75
    assert any("left out for every candidate" in note for note in study.notes)
