"""The problems that searches are judged on: four workloads on hidden machines, each for the lowest
TTFT under a TPOT limit and for the capacity under limits on both.

How they were made, before any search was run on them: workloads are the shipped scenarios at a
rate that keeps the default settings busy without a growing queue. Spaces are what a user would vary
for such traffic: seven or eight knobs, 4,320 to 8,640 settings, today's defaults among them.
Limits follow one rule, from what the defaults do without noise: for the lowest TTFT, TPOT p95 has
to fall to 80 % of today's; for the capacity, TTFT p95 may double and TPOT p95 grow by a quarter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autotune.clock import StopSignal, VirtualClock
from autotune.space.study_space import open_study
from autotune.study.prepare import PreparedStudy, prepare
from autotune.workload.scenarios import make
from autotune.workload.writer import write_trace

Aim = Literal["ttft", "capacity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A workload on a machine, and what may be varied. `rate` in requests per second; `today`: the
    settings that run now.
    """

    machine: str
    scenario: str
    rate: float
    duration_s: float
    max_model_len: int
    today: Mapping[str, Any]
    knobs: Mapping[str, Any]
    rules: tuple[str, ...] = ("max-num-batched-tokens >= max-num-seqs",)


def _int(*values: int | None) -> dict[str, Any]:
    return {"type": "int", "values": list(values)}


def _choice(*values: str | None, lossy: bool = False) -> dict[str, Any]:
    return {"type": "choice", "values": list(values), **({"lossy": True} if lossy else {})}


_BACKENDS = _choice("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")
_KV = _choice("auto", "fp8", lossy=True)
_WEIGHTS = _choice(None, "fp8", lossy=True)
_BACKEND = {"attention-backend": "FLASH_ATTN"}

SCENES: Mapping[str, Scene] = {
    "rag": Scene(
        machine="80 GB",
        scenario="rag-long",
        rate=4.0,
        duration_s=120.0,
        max_model_len=16384,
        today={"max-num-batched-tokens": 8192, "max-num-seqs": 1024, "async-scheduling": True,
               "gpu-memory-utilization": 0.92, "kv-cache-dtype": "auto", **_BACKEND},
        knobs={
            "max-num-batched-tokens": _int(1024, 2048, 4096, 8192, 16384, 32768),
            "max-num-seqs": _int(16, 32, 64, 128, 256, 1024),
            "gpu-memory-utilization": {"type": "float", "values": [0.85, 0.9, 0.92, 0.95, 0.97]},
            "kv-cache-dtype": _KV,
            "quantization": _WEIGHTS,
            "attention-backend": _BACKENDS,
            "async-scheduling": {"type": "switch"},
        },
    ),
    "chat": Scene(
        machine="24 GB",
        scenario="chat-short",
        rate=7.0,
        duration_s=120.0,
        max_model_len=8192,
        today={"max-num-batched-tokens": 2048, "max-num-seqs": 256, "kv-cache-dtype": "auto",
               "gpu-memory-utilization": 0.92, "performance-mode": "balanced", "block-size": 16,
               **_BACKEND},
        knobs={
            "max-num-batched-tokens": _int(512, 1024, 2048, 4096, 8192, 16384),
            "max-num-seqs": _int(16, 32, 64, 128, 256),
            "gpu-memory-utilization": {"type": "float", "values": [0.85, 0.9, 0.92, 0.95]},
            "kv-cache-dtype": _KV,
            "quantization": _WEIGHTS,
            "attention-backend": _BACKENDS,
            "performance-mode": _choice("balanced", "interactivity"),
            "block-size": _int(16, 32, 64),
        },
    ),
    "agents": Scene(
        machine="48 GB",
        scenario="agent-dialogue",
        rate=3.0,
        duration_s=90.0,
        max_model_len=32768,
        today={"max-num-batched-tokens": 2048, "max-num-seqs": 256, "block-size": 16,
               "gpu-memory-utilization": 0.92, "kv-cache-dtype": "auto", **_BACKEND},
        knobs={
            "max-num-batched-tokens": _int(512, 1024, 2048, 4096, 8192, 16384),
            "max-num-seqs": _int(4, 8, 16, 32, 64, 256),
            "gpu-memory-utilization": {"type": "float", "values": [0.85, 0.9, 0.92, 0.95, 0.97]},
            "kv-cache-dtype": _KV,
            "quantization": _WEIGHTS,
            "attention-backend": _BACKENDS,
            "block-size": _int(16, 32, 64),
        },
    ),
    "bursts": Scene(
        machine="48 GB",
        scenario="bursts",
        rate=6.0,
        duration_s=120.0,
        max_model_len=8192,
        today={"max-num-batched-tokens": 2048, "max-num-seqs": 256, "async-scheduling": True,
               "gpu-memory-utilization": 0.9, **_BACKEND},
        knobs={
            "max-num-batched-tokens": _int(512, 1024, 2048, 4096, 8192, 16384),
            "max-num-seqs": _int(16, 32, 64, 128, 256),
            "gpu-memory-utilization": {"type": "float", "values": [0.9, 0.95, 0.98]},
            "max-cudagraph-capture-size": _int(None, 64, 128, 256),
            "quantization": _WEIGHTS,
            "attention-backend": _BACKENDS,
            "async-scheduling": {"type": "switch"},
        },
    ),
}  # fmt: skip
AIMS: tuple[Aim, ...] = ("ttft", "capacity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A scene with an aim. `limits`: metric -> seconds."""

    name: str
    scene: Scene
    aim: Aim
    limits: Mapping[str, float]

    @property
    def objective(self) -> str:
        """As in a study file."""
        return "minimize ttft_p95" if self.aim == "ttft" else "maximize capacity"

    def study(self, folder: Path, **search: Any) -> PreparedStudy:
        """The study that a user would write; its files go below `folder`. `search` holds the
        budget's `trials` and the keys of the section `search`.
        """
        trials = search.pop("trials", 40)
        return _prepared(
            folder,
            self.scene,
            {
                "objective": self.objective,
                "constraints": [f"{key} <= {1000 * s:g}ms" for key, s in self.limits.items()],
                "budget": {"trials": trials},
                "search": {"repeats": 0, **search},
            },
        )


def today(scene: Scene, folder: Path) -> PreparedStudy:
    """A study without limits, to see what the settings of today do."""
    return _prepared(folder, scene, {"objective": "minimize ttft_p95", "budget": {"trials": 1}})


def limits_of(aim: Aim, ttft_p95_s: float, tpot_p95_s: float) -> dict[str, float]:
    """The limits of a problem from what the settings of today do without noise, to the next whole
    millisecond.
    """
    if aim == "ttft":
        return {"tpot_p95": _up(0.8 * tpot_p95_s)}
    return {"ttft_p95": _up(2 * ttft_p95_s), "tpot_p95": _up(1.25 * tpot_p95_s)}


def _up(seconds: float) -> float:
    return math.ceil(1000 * seconds) / 1000


def _prepared(folder: Path, scene: Scene, asked: Mapping[str, Any]) -> PreparedStudy:
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"{scene.scenario}.jsonl"
    if not trace.exists():
        made = make(scene.scenario, rate=scene.rate, duration_s=scene.duration_s)
        # Turns at their recorded times, as a log without sessions has them: else a slow engine is
        # asked less, and no rate of new sessions is too high for a few of them
        alone = [replace(r, session=None, turn=0, gap_s=None) for r in made.requests]
        write_trace(trace, replace(made, requests=tuple(alone)))
    content = {
        "name": scene.scenario,
        "model": "hidden",
        "engine": {"kind": "simulated", "args": {"max-model-len": scene.max_model_len}},
        "baseline": dict(scene.today),
        "space": {
            "engine": "simulated",
            "knobs": dict(scene.knobs),
            "rules": list(scene.rules),
        },
        "workload": {"path": str(trace)},
        "quality": {"check": "none"},
        **asked,
    }
    path = folder / "study.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return prepare(open_study(path), clock=VirtualClock(), stop=StopSignal())
