"""Whole studies in virtual time: real loop, trials, records and files; simulated engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import Clock, StopSignal, VirtualClock
from autotune.search.catalog import make_proposer
from autotune.space.candidate import Candidate
from autotune.space.study_space import open_study
from autotune.study.directory import StudyDirectory
from autotune.study.events import Event
from autotune.study.prepare import PreparedStudy, prepare
from autotune.study.record import TrialRecord
from autotune.study.runner import StudyEnd, StudyRunner
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.virtual_executor import VirtualExecutor
from autotune.study.virtual_machine import SimulatedMachine

COLD_S, WARM_S = 90.0, 60.0
CAPTURE = "oom_graph_capture"
KNOBS = {
    "max-num-batched-tokens": {"type": "int", "values": [512, 1024, 2048, 4096, 8192]},
    "max-num-seqs": {"type": "int", "values": [8, 32, 128, 256]},
    "gpu-memory-utilization": {"type": "float", "values": [0.85, 0.92, 0.95, 0.97, 0.99]},
    "kv-cache-dtype": {"type": "choice", "values": ["auto", "nvfp4"]},
}


@dataclass
class Ended:
    end: StudyEnd
    records: Sequence[TrialRecord]
    events: Sequence[Event]
    virtual_s: float


def prepared(
    folder: Path, clock: Clock, stop: StopSignal, **changes: Any
) -> tuple[PreparedStudy, StudyDirectory]:
    """A study and its directory; `changes` replace top-level keys of its file."""
    trace = folder / "trace.jsonl"
    rows = [
        {"t": 0.08 * i, "in": 2200 if i % 3 == 0 else 300, "out": 12 + i % 9} for i in range(160)
    ]
    trace.parent.mkdir(parents=True)
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = {
        "name": "virtual",
        "model": "sim",
        "engine": {"kind": "simulated"},
        "baseline": {},
        "space": {"engine": "simulated", "knobs": KNOBS},
        "workload": {"path": str(trace)},
        "objective": "minimize ttft_p95",
        "constraints": ["tpot_p95 <= 150ms"],
        "budget": {"trials": 14},
        "search": {"seed": 1, "repeats": 2},
        **changes,
    }
    path = folder / "study.yaml"
    path.write_text(json.dumps(content))
    directory = StudyDirectory(folder / "run")
    directory.trials.mkdir(parents=True)
    return prepare(open_study(path), clock=clock, stop=stop), directory


def study(
    folder: Path, *, slots: int = 1, seed: int = 1, sampler: Any = "random", **changes: Any
) -> Ended:
    """Run a study."""
    clock, stop = VirtualClock(), StopSignal()
    found, directory = prepared(folder, clock, stop, **changes)
    heard: list[Event] = []
    executor = VirtualExecutor(
        found, directory, SimulatedMachine(cold_s=COLD_S, warm_s=WARM_S, seed=seed),
        clock=clock, stop=stop, observers=[heard.append], slots=slots,
    )  # fmt: skip
    proposer = make_proposer(
        sampler, found.space, found.facts, found.spec.objective, found.spec.constraints, seed=seed
    )
    events = EventStream(clock, directory, [heard.append])
    end = StudyRunner(found, directory, executor, proposer, events, clock=clock, stop=stop).run()
    return Ended(end, directory.records(), heard, clock.monotonic())


def facts_of(records: Sequence[TrialRecord]) -> list[dict[str, Any]]:
    """Everything in the records but the pid in log lines."""
    rows = [record.to_json() for record in records]
    for row in rows:
        row["evidence"] = [line.partition(") ")[2] for line in row["evidence"]]
    return rows


@pytest.mark.parametrize("slots", [1, 4])
def test_a_study_with_failures_and_noise_is_the_same_in_every_run(
    tmp_path: Path, slots: int
) -> None:
    first, second = (study(tmp_path / name, slots=slots, sampler="tpe") for name in ("a", "b"))
    assert facts_of(first.records) == facts_of(second.records)
    assert first.virtual_s == second.virtual_s
    states = {record.state for record in first.records}
    assert states == {"measured", "infeasible"}
    assert first.end.error is None
    other = study(tmp_path / "c", slots=slots, sampler="tpe", seed=2)
    assert facts_of(first.records) != facts_of(other.records)


@pytest.mark.parametrize(
    ("params", "reason", "phase"),
    [
        ({"gpu-memory-utilization": 0.85}, "kv_cache_no_memory", "startup"),
        ({"gpu-memory-utilization": 0.99}, "memory_fraction_too_high", "startup"),
        ({"kv-cache-dtype": "nvfp4"}, "backend_refused", "arguments"),
        ({"gpu-memory-utilization": 0.97, "max-num-batched-tokens": 8192}, CAPTURE, "startup"),
        ({"max-num-batched-tokens": 128, "max-num-seqs": 256}, "config_refused", "arguments"),
        ({"gpu-memory-utilization": 0.97, "max-num-batched-tokens": 2560, "max-num-seqs": 32},
         "oom_under_load", "load"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_failures_are_diagnosed_from_the_engines_own_words(
    tmp_path: Path, params: dict[str, Any], reason: str, phase: str
) -> None:
    clock, stop = VirtualClock(), StopSignal()
    found, directory = prepared(tmp_path / "a", clock, stop)
    executor = VirtualExecutor(found, directory, SimulatedMachine(), clock=clock, stop=stop)
    executor.submit(TrialTask(number=0, role="search", candidate=Candidate(params)))
    record = executor.wait().record
    assert (record.reason, record.phase, record.fault) == (reason, phase, "candidate")
    assert record.evidence
    assert directory.records() == [record]


def test_a_start_costs_more_where_the_engine_compiles_anew(tmp_path: Path) -> None:
    ended = study(tmp_path / "a")
    starts = {r.seconds["launching"] for r in ended.records if r.state == "measured"}
    assert starts == {COLD_S, WARM_S}
    confirmed = [r.seconds["launching"] for r in ended.records if r.role == "confirm"]
    assert set(confirmed) == {WARM_S}


def test_four_slots_give_at_least_three_and_a_half_times_the_trials_per_hour(
    tmp_path: Path,
) -> None:
    def trials_per_hour(slots: int) -> float:
        ended = study(
            tmp_path / str(slots), slots=slots, budget={"trials": 60},
            search={"seed": 1, "repeats": 0, "early_stop": "off"},
        )  # fmt: skip
        return len(ended.records) / (ended.virtual_s / 3600)

    assert trials_per_hour(4) >= 3.5 * trials_per_hour(1)


def test_trials_end_in_the_order_of_virtual_time(tmp_path: Path) -> None:
    ended = study(tmp_path / "a", slots=4)
    told = [event.elapsed_s for event in ended.events if event.kind == "best"]
    assert told == sorted(told)
    starts = [record.started_at for record in ended.records if record.role == "search"]
    assert len(set(starts)) < len(starts)


def test_a_hopeless_replay_is_ended_early_and_costs_less(tmp_path: Path) -> None:
    quick = study(tmp_path / "a")
    whole = study(tmp_path / "b", search={"seed": 1, "repeats": 2, "early_stop": "off"})
    ended = [record for record in quick.records if record.reason == "cannot_beat_best"]
    assert ended
    assert not [record for record in whole.records if record.reason == "cannot_beat_best"]
    for record in ended:
        same = next(r for r in whole.records if r.number == record.number)
        assert record.seconds["replaying"] < same.seconds["replaying"]


def test_nothing_begins_that_cannot_end_within_the_budget(tmp_path: Path) -> None:
    ended = study(tmp_path / "a", budget={"time": "25m"}, search={"seed": 1, "repeats": 1})
    assert ended.virtual_s <= 25 * 60 + COLD_S
    assert len(ended.records) > 6
