"""What runs today, however the user says it: knobs, a pasted command, a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.engines.engine import LaunchTarget
from autotune.errors import InputError
from autotune.space.candidate import Candidate
from autotune.study.target import Baseline, with_shell

COMMAND = (
    "vllm serve sim --max-num-seqs 16 --enforce-eager --max-model-len 2048 --host 0.0.0.0 --port 80"
)


def problems(error: InputError) -> str:
    return "\n".join([error.message, *[p.message for p in error.problems]])


def test_baseline_given_as_knobs(lab: Any) -> None:
    study = lab.prepare(baseline={"max-num-seqs": 16, "enforce-eager": "on"}).study
    assert study.baseline == Candidate({"max-num-seqs": 16, "enforce-eager": True})


def test_empty_baseline_is_the_engines_defaults(lab: Any) -> None:
    assert lab.prepare(baseline={}).study.baseline == Candidate({})


def test_baseline_given_as_the_command_that_runs_today(lab: Any) -> None:
    study = lab.prepare(baseline=COMMAND).study
    assert study.baseline == Candidate({"max-num-seqs": 16, "enforce-eager": True})
    assert study.target.args["max-model-len"] == 2048
    assert any(note.startswith("the baseline command sets: ") for note in study.notes)


def test_baseline_given_as_the_path_of_a_script(lab: Any, tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(f"#!/bin/bash\nset -e\nexport X=1\nexec {COMMAND}\n")
    study = lab.prepare(baseline=str(script)).study
    assert study.baseline == Candidate({"max-num-seqs": 16, "enforce-eager": True})


def test_settings_that_are_no_knobs_stay_in_every_trial(lab: Any) -> None:
    study = lab.prepare(baseline=COMMAND).study
    assert any("max-model-len" in note for note in study.notes if note.startswith("kept in every"))
    for params in ({"max-num-seqs": 64}, {"enforce-eager": False}):
        argv = study.engine.plan(Candidate(params), study.target).argv
        assert argv[argv.index("--max-model-len") + 1] == "2048"


def test_address_of_today_is_not_carried_over(lab: Any) -> None:
    study = lab.prepare(baseline=COMMAND).study
    argv = study.baseline_plan().argv_for("127.0.0.1", 18000)
    assert "0.0.0.0" not in argv
    assert "80" not in argv


def test_command_and_fixed_args_that_differ_are_told_apart(lab: Any) -> None:
    with pytest.raises(InputError, match="`max-model-len` is 2048 in the baseline command") as info:
        lab.prepare(baseline=COMMAND, engine={"kind": "simulated", "args": {"max-model-len": 4096}})
    assert "4096 in engine.args" in info.value.message


def test_command_and_fixed_args_may_agree(lab: Any) -> None:
    engine = {"kind": "simulated", "args": {"max-model-len": 2048}}
    study = lab.prepare(baseline=COMMAND, engine=engine).study
    assert study.baseline_plan().argv.count("--max-model-len") == 1


def test_command_for_another_model_is_refused(lab: Any) -> None:
    with pytest.raises(InputError, match="serves other/model, the study sim"):
        lab.prepare(baseline="vllm serve other/model --max-num-seqs 8")


def test_unknown_knob_is_named_with_the_nearest_one_and_its_place(lab: Any) -> None:
    with pytest.raises(InputError) as info:
        lab.prepare(baseline={"max-num-sequs": 8})
    assert "max-num-sequs" in problems(info.value)
    (problem,) = info.value.problems
    assert problem.place is not None
    assert "max-num-seqs" in problem.place.label


def test_values_of_the_wrong_kind_are_told_all_at_once(lab: Any) -> None:
    with pytest.raises(InputError) as info:
        lab.prepare(baseline={"max-num-seqs": "many", "enforce-eager": "perhaps"})
    assert len(info.value.problems) == 2


def test_knob_that_may_not_vary_here_keeps_the_value_it_runs_with(lab: Any) -> None:
    knobs = {
        "max-num-seqs": {"type": "int", "values": [8, 16]},
        "block-size": {"type": "int", "values": [16, 32], "when": "gpu.compute_capability >= 9"},
    }
    study = lab.prepare(
        space={"engine": "simulated", "knobs": knobs},
        baseline={"max-num-seqs": 8, "block-size": 32},
    ).study
    assert study.baseline == Candidate({"max-num-seqs": 8})
    assert study.target.args["block-size"] == 32


def test_knob_set_by_environment_is_no_flag(lab: Any) -> None:
    knobs = {
        "max-num-seqs": {"type": "int", "values": [8, 16]},
        "threads": {"type": "int", "values": [1, 2], "env": "OMP_NUM_THREADS"},
    }
    study = lab.prepare(space={"engine": "simulated", "knobs": knobs}).study
    plan = study.engine.plan(Candidate({"max-num-seqs": 8, "threads": 2}), study.target)
    assert plan.env["OMP_NUM_THREADS"] == "2"
    assert "--threads" not in plan.argv


def test_simulated_engine_is_never_started_by_the_pasted_program(lab: Any) -> None:
    study = lab.prepare(baseline=COMMAND).study
    assert study.target.command is None
    assert "autotune.simulator" in study.baseline_plan().argv


def test_real_engine_is_started_as_the_pasted_command_does(lab: Any) -> None:
    space = {"engine": "vllm", "knobs": {"max-num-seqs": {"type": "int", "values": [8, 16]}}}
    study = lab.prepare(
        engine={"kind": "vllm"}, space=space, baseline="/opt/x/bin/vllm serve sim -tp 1"
    ).study
    assert study.baseline_plan().argv[:2] == ("/opt/x/bin/vllm", "serve")


def test_variables_of_the_shell_that_shape_a_launch_are_part_of_the_plan() -> None:
    shell = {
        "VLLM_USE_V1": "1", "OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "3", "HOME": "/root",
        "HF_TOKEN": "hf_abcdefghijklmnop", "HF_HOME": "/from/the/shell", "LANG": "C",
    }  # fmt: skip
    target = LaunchTarget(model="m", launcher="process", gpus=("1",), env={"HF_HOME": "/own"})
    found = with_shell(Baseline(candidate=Candidate({}), target=target), "vllm", shell)
    assert dict(found.target.env) == {"HF_HOME": "/own", "OMP_NUM_THREADS": "4", "VLLM_USE_V1": "1"}
    assert dict(found.target.secrets) == {"HF_TOKEN": "HF_TOKEN"}
    (note,) = found.notes
    assert "VLLM_USE_V1=1" in note
    assert "HF_TOKEN" in note
    assert "hf_abcdefghijklmnop" not in note


@pytest.mark.parametrize(("engine", "launcher"), [("vllm", "docker"), ("simulated", "process")])
def test_what_inherits_no_shell_gets_nothing_of_it(engine: str, launcher: Any) -> None:
    target = LaunchTarget(model="m", launcher=launcher, image="i")
    baseline = Baseline(candidate=Candidate({}), target=target)
    assert with_shell(baseline, engine, {"VLLM_USE_V1": "1"}) is baseline
