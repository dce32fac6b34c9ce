"""Candidates that cannot fit are refused without a launch; launches correct the estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.engine import Diagnosis, LaunchTarget
from autotune.engines.memory import GIB
from autotune.engines.plan import Mount
from autotune.launch.gpus import Gpu
from autotune.measure.outcome import Infeasible, Stopped
from autotune.space.candidate import Candidate
from autotune.study.directory import read_json
from autotune.study.memory_fit import MemoryFit, memory_fit, model_folder
from autotune.study.refusals import FILE, Refusals, read_refused

CONFIG = {
    "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(15 * GIB)  # sparse: takes no room
    return folder


def fit(model: Path, gpu_gib: float = 24, **args: Any) -> MemoryFit:
    target = LaunchTarget(model=str(model), launcher="process", args=args)
    return MemoryFit("vllm", target, model, gpu_gib * GIB)


def test_a_length_that_no_cache_can_hold_is_refused_with_the_arithmetic(model: Path) -> None:
    known = fit(model)
    refused = known.refusal(Candidate({"max-model-len": 131072}))
    assert refused is not None
    assert (refused.fault, refused.reason, refused.remedy) == (
        "candidate", "does_not_fit", "raise_memory",
    )  # fmt: skip
    assert "weights 15.0 GiB" in refused.message
    assert "one request may need 131,072" in refused.message
    assert "are missing" in refused.evidence[0]
    assert known.refusal(Candidate({"max-model-len": 8192})) is None


def test_fixed_flags_count_like_knobs(model: Path) -> None:
    assert fit(model, **{"max-model-len": 131072}).refusal(Candidate({})) is not None
    spread = {"max-model-len": 131072, "tensor-parallel-size": 4}
    assert fit(model, **spread).refusal(Candidate({})) is None


def test_odd_values_are_left_to_the_engine(model: Path) -> None:
    assert fit(model).refusal(Candidate({"gpu-memory-utilization": "much"})) is None
    assert fit(model).refusal(Candidate({"tensor-parallel-size": "two"})) is None


def test_a_launch_that_had_less_room_than_estimated_makes_refusals_stricter(model: Path) -> None:
    known, candidate = fit(model), Candidate({"max-model-len": 40000})
    assert known.refusal(candidate) is None
    known.learn(candidate, {"weights_gib": 15.0, "kv_gib": 1.5, "kv_tokens": 1.5 * GIB / 131072})
    assert known.refusal(candidate) is not None
    smaller = known.estimate(Candidate({"max-model-len": 8192}))
    assert smaller is not None
    assert smaller.kv_bytes == pytest.approx(1.5 * GIB)


def test_where_formulas_and_logs_disagree_nothing_is_refused(model: Path) -> None:
    known = fit(model)
    known.learn(Candidate({}), {"weights_gib": 15.0, "kv_gib": 4.0, "kv_tokens": 100.0})
    assert known.refusal(Candidate({"max-model-len": 131072})) is None


def gpu(index: int, gib: float) -> Gpu:
    return Gpu(
        index=index, uuid=f"GPU-{index}", name="g", memory_total=int(gib * GIB) + 5,
        memory_used=0, driver="1", compute_capability=9.0, memory_reserved=5,
    )  # fmt: skip


def study(model: Path, **target: Any) -> Any:
    class Engine:
        kind = target.pop("kind", "vllm")

    class Study:
        engine = Engine()

    Study.target = LaunchTarget(  # type: ignore[attr-defined]
        model=str(model), launcher=target.pop("launcher", "process"), **target
    )
    return Study()


def test_the_smallest_gpu_of_the_study_counts(model: Path) -> None:
    gpus = [gpu(0, 80), gpu(1, 24)]
    long = Candidate({"max-model-len": 131072})
    on_both, on_first = memory_fit(study(model), gpus), memory_fit(study(model, gpus=("0",)), gpus)
    assert on_both is not None
    assert on_first is not None
    assert on_both.refusal(long) is not None
    assert on_first.refusal(long) is None


@pytest.mark.parametrize(
    "target", [{"kind": "simulated"}, {"gpus": ()}, {"gpus": ("7",)}, {"launcher": "attach"}]
)
def test_without_a_known_gpu_nothing_is_estimated(model: Path, target: dict[str, Any]) -> None:
    assert memory_fit(study(model, **target), [gpu(0, 80)]) is None
    assert memory_fit(study(model), []) is None


def test_the_models_files_are_found_by_path_mount_or_hub_name(model: Path, tmp_path: Path) -> None:
    def where(name: str, **more: Any) -> Path | None:
        target = LaunchTarget(model=name, launcher="docker", **more)
        return model_folder(target, {"HF_HOME": str(tmp_path / "hf")})

    assert where(str(model)) == model
    assert where("/m/model", mounts=(Mount(source=str(tmp_path), target="/m"),)) == model
    assert where("/m/other", mounts=(Mount(source=str(tmp_path), target="/m"),)) is None
    repo = tmp_path / "hf/hub/models--org--name"
    (repo / "snapshots/abc").mkdir(parents=True)
    (repo / "snapshots/abc/config.json").write_text("{}")
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text("abc\n")
    assert where("org/name") == repo / "snapshots/abc"
    assert where("org/none") is None


# ---- in the loop


class TooBig:
    """Refuses what runs more than so many sequences; remembers what it was taught."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.learned: list[tuple[Candidate, Any]] = []

    def refusal(self, candidate: Candidate) -> Diagnosis | None:
        if candidate.params.get("max-num-seqs", 0) <= self.most:
            return None
        return Diagnosis(
            fault="candidate", phase="startup", reason="does_not_fit", remedy="raise_memory",
            message="it does not fit: far too much",
        )  # fmt: skip

    def learn(self, candidate: Candidate, log: Any) -> None:
        self.learned.append((candidate, log))


def test_a_candidate_that_cannot_fit_is_told_and_counted_but_not_launched(
    lab: Any, make: Any
) -> None:
    lab.prepare()
    lab.fit = TooBig(20)
    lab.runs(make.candidate(32), make.candidate(16), make.candidate(64))
    assert lab.states() == ["baseline measured", "search measured"]
    told = {c.params["max-num-seqs"]: outcome for c, outcome in lab.proposer.told}
    assert isinstance(told[32], Infeasible)
    assert told[32].diagnosis.reason == "does_not_fit"
    assert read_json(lab.directory.path / "verdict.json")["refused_before_launch"] == 2
    notes = [e.data["message"] for e in lab.heard if e.kind == "note"]
    assert "refused before launch: max-num-seqs 32: it does not fit: far too much" in notes
    assert [line["params"]["max-num-seqs"] for line in read_refused(lab.directory.path)] == [32, 64]


def test_refused_candidates_take_no_trial_from_the_budget(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 2})
    lab.fit = TooBig(20)
    lab.runs(make.candidate(32), make.candidate(64), make.candidate(16))
    assert lab.states() == ["baseline measured", "search measured"]


def test_many_refusals_are_counted_and_few_are_named(lab: Any, make: Any) -> None:
    lab.prepare()
    lab.fit = TooBig(8)
    lab.runs(*(make.candidate(100 + n) for n in range(20)))
    notes = [e.data["message"] for e in lab.heard if e.kind == "note"]
    assert sum("refused before launch" in note for note in notes) == 3
    assert "further ones are only counted" in notes[-1]
    assert read_json(lab.directory.path / "verdict.json")["refused_before_launch"] == 20


def test_a_resumed_study_knows_what_was_refused(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 2})
    lab.fit = TooBig(20)
    lab.runs(make.candidate(32), make.candidate(16))
    lab.runs(make.candidate(32), make.candidate(12))
    assert make.candidate(32) in {known.candidate for known in lab.proposer.known}
    assert len(read_refused(lab.directory.path)) == 1


def test_every_launch_and_every_earlier_one_teaches_the_estimate(lab: Any, make: Any) -> None:
    lab.prepare(budget={"trials": 2})
    lab.memory = {0: {"log": {"kv_gib": 3.0}}, 1: {"estimate": {"kv_gib": 2.0}}}
    lab.fit = TooBig(99)
    lab.runs(make.candidate(16))
    assert lab.fit.learned == [(make.baseline, {"kv_gib": 3.0})]
    lab.fit = TooBig(99)
    lab.runs()
    assert lab.fit.learned == [(make.baseline, {"kv_gib": 3.0})]


def test_a_torn_line_of_refusals_takes_no_other_with_it(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"params": {"a": 1}, "reason": "x"}\n{"params": {"a": 2')
    refusals = Refusals(tmp_path, [TooBig(0).refusal])
    assert len(refusals) == 1
    assert refusals.judge(Candidate({"max-num-seqs": 9})) is not None
    assert refusals.judge(Candidate({"max-num-seqs": 0})) is None
    assert [line["params"] for line in read_refused(tmp_path)] == [{"a": 1}, {"max-num-seqs": 9}]


# ---- the time that starts take


def test_near_the_end_a_cold_start_is_passed_over_for_a_warm_one(lab: Any, make: Any) -> None:
    seen: set[Any] = set()

    def start_s(task: Any) -> float:
        key = task.candidate.params["max-num-seqs"]
        cold = key not in seen
        seen.add(key)
        return 100.0 if cold else 5.0

    knobs = {"max-num-seqs": [8, 16, 32], "gpu-memory-utilization": [0.8, 0.9, 0.95]}
    lab.prepare(space={"knobs": knobs}, budget={"time": "260s"})
    lab.start_s = start_s
    warm = [make.candidate(8, **{"gpu-memory-utilization": v}) for v in (0.8, 0.9, 0.95)]
    # The baseline starts cold (110 s), then a warm one (15 s): 135 s are left, then 25 s
    end = lab.runs(warm[0], make.candidate(16), make.candidate(32), warm[1], warm[2])
    launched = [task.candidate for task in lab.tasks]
    assert launched == [make.baseline, warm[0], make.candidate(16), warm[1]]
    assert lab.clock.monotonic() <= 260
    assert "a launch takes" in end.stopped_because
    assert [task.start_s for task in lab.tasks] == [None, 100.0, 100.0, 5.0]

    # What was passed over says nothing of its settings: a longer budget may still try it
    late = [c for c, outcome in lab.proposer.told if isinstance(outcome, Stopped)]
    assert late == [make.candidate(32)]
