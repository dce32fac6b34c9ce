"""A study read back from its directory is the study that was written, word for word."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import StopSignal, VirtualClock
from autotune.errors import InputError
from autotune.study.directory import StudyDirectory
from autotune.study.measurer import Measurer
from autotune.study.prepare import PreparedStudy
from autotune.study.snapshot import read_snapshot

KNOBS = {
    "max-num-seqs": {"type": "int", "range": [8, 64], "log": True, "step": "x2", "why": "queueing"},
    "gpu-memory-utilization": {"type": "float", "range": [0.85, 0.95], "step": 0.05},
    "kv-cache-dtype": {"type": "choice", "values": ["auto", "fp8"], "lossy": True},
    "block-size": {"type": "int", "values": [16, 32], "when": "workload.requests > 3"},
    "enforce-eager": {"type": "switch"},
    "threads": {"type": "int", "values": [1, 2], "env": "OMP_NUM_THREADS"},
    "batch": {"type": "int", "values": [512, 2048], "flag": "max-num-batched-tokens"},
}


@pytest.fixture
def written(lab: Any, tmp_path: Path) -> PreparedStudy:
    trace = tmp_path / "blocks.jsonl"
    rows: list[dict[str, Any]] = [{"autotune_trace": 1, "block_size": 16}]
    for i in range(40):
        row: dict[str, Any] = {"t": i * 0.5 + i / 3e5, "in": 40 + i, "out": 3 + i % 4}
        if i % 3 == 0:
            row["blocks"] = [i % 2, 2, *range(10 * i, 10 * i + 4)][: -(-row["in"] // 16)]
        elif i % 3 == 1:
            row |= {"session": f"s{i % 4}", "turn": i // 8, "gap": 0.1}
        rows.append(row)
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lab.prepare(
        space={"engine": "simulated", "knobs": KNOBS, "rules": ["batch >= max-num-seqs"]},
        baseline="vllm serve sim --max-num-seqs 16 --max-model-len 4096",
        engine={
            "kind": "simulated",
            "args": {"sim-profile": "quickstart"},
            "env": {"HF_TOKEN": {"from_env": "HOME"}, "LEVEL": 3},
            "mounts": ["/tmp:/data:rw"],
            "gpus": [],
            "startup_timeout": "90s",
        },
        workload={"path": str(trace), "window": "6s", "time_scale": 2.0, "warmup": 3},
        constraints=["tpot_p95 <= 1.1 x baseline", "success_rate >= 99%"],
        search={"seed": 3, "repeats": 2},
    ).snapshot()
    study: PreparedStudy = lab.study
    assert study.held_out is not None
    assert study.measure.priming
    assert study.measure.held_out_priming
    return study


@pytest.fixture
def read(written: PreparedStudy, lab: Any) -> PreparedStudy:
    return read_snapshot(lab.directory, clock=VirtualClock(), stop=StopSignal())


def test_every_plan_is_the_same_word_for_word(written: PreparedStudy, read: PreparedStudy) -> None:
    assert read.baseline == written.baseline
    assert read.baseline_plan().to_json() == written.baseline_plan().to_json()
    candidates = list(islice(written.space.candidates(written.facts), 200))
    assert list(islice(read.space.candidates(read.facts), 200)) == candidates
    assert len(candidates) > 100
    for candidate in candidates:
        ours = written.engine.plan(candidate, written.target)
        assert read.engine.plan(candidate, read.target) == ours


def test_settings_of_the_study_come_back(written: PreparedStudy, read: PreparedStudy) -> None:
    assert read.study_id == written.study_id
    assert read.facts == written.facts
    assert read.target == written.target
    assert read.spec.objective == written.spec.objective
    assert read.spec.constraints == written.spec.constraints
    assert read.spec.engine == written.spec.engine
    assert read.spec.search == written.spec.search
    assert read.measure.drain_s == pytest.approx(written.measure.drain_s)
    assert (read.measure.warmup, read.measure.vocab_size) == (3, written.measure.vocab_size)


@pytest.mark.parametrize("held_out", [False, True])
def test_every_prompt_is_the_same_token_for_token(
    written: PreparedStudy, read: PreparedStudy, held_out: bool
) -> None:
    def sent(study: PreparedStudy) -> list[Any]:
        measurer = Measurer(study.measure, clock=VirtualClock(), stop=StopSignal())
        trace = (study.held_out if held_out else None) or study.search_trace
        server: Any = type("Server", (), {"url": "http://x", "plan": study.baseline_plan()})()
        session = measurer.session(server, trace, Path(), 1.0, salt="s-1", held_out=held_out)
        planned = session._plan(trace.requests, salt="s-1")
        primed = session._plan(session.priming, salt="s-1")
        assert primed
        return [
            (round(p.due_s, 5), list(p.prompt), p.output_tokens, p.after, p.gap_s, p.session)
            for p in (*primed, *planned)
        ]

    assert sent(read) == sent(written)


def test_snapshot_of_a_snapshot_is_equal(
    written: PreparedStudy, read: PreparedStudy, tmp_path: Path
) -> None:
    from autotune.study.snapshot import spec_json

    ours = spec_json(written.spec, written.space, written.baseline)
    assert spec_json(read.spec, read.space, read.baseline) == ours


def test_resolved_study_file_reads_as_a_study(written: PreparedStudy, lab: Any) -> None:
    from autotune.space.study_space import open_study

    lab.directory.path.joinpath("study.yaml")
    opened = open_study(lab.directory.path / "study.yaml")
    assert opened.study.spec.objective == written.spec.objective
    assert opened.study.spec.budget == written.spec.budget


def test_no_secret_value_is_in_any_file(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "sw0rdfish-value")
    lab.prepare(
        engine={"kind": "simulated", "env": {"HF_TOKEN": {"from_env": "MY_TOKEN"}}}
    ).snapshot()
    for path in lab.directory.path.rglob("*"):
        if path.is_file():
            assert b"sw0rdfish-value" not in path.read_bytes()


def test_broken_study_file_is_an_input_error(written: PreparedStudy, lab: Any) -> None:
    path = lab.directory.path / "study.json"
    path.write_text(path.read_text()[:200])
    with pytest.raises(InputError, match="cannot read"):
        read_snapshot(StudyDirectory(lab.directory.path), clock=VirtualClock(), stop=StopSignal())


@pytest.mark.parametrize("missing", ["spec", "target", "study_id", "traffic"])
def test_study_file_of_another_shape_is_an_input_error(
    written: PreparedStudy, lab: Any, missing: str
) -> None:
    path = lab.directory.path / "study.json"
    data = json.loads(path.read_text())
    del data[missing]
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"study\.json"):
        read_snapshot(lab.directory, clock=VirtualClock(), stop=StopSignal())
