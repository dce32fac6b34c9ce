"""Study directories of every state, written the way a study writes them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.comparison import ConfirmPair, change_of, noise_of
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.metrics import client_metrics
from autotune.replay.parquet import write_records
from autotune.replay.records import RequestRecord
from autotune.study.ranking import best_trial
from autotune.study.record import TrialRecord

GOAL = "minimize ttft_p95"
TPOT = "tpot_p95 <= 1.1 x baseline"
SUCCESS = "success_rate >= 0.999"
BASELINE: dict[str, Any] = {"max-num-batched-tokens": 8192}
OOM_LINE = (
    "(EngineCore pid=59) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.90 GiB"
)
KNOBS = [
    {
        "name": "max-num-batched-tokens",
        "kind": "int",
        "values": [512, 1024, 2048, 4096, 8192, 16384],
        "lossy": False,
        "why": "prefill chunk budget of a step; small guards TPOT, large serves TTFT",
    },
    {
        "name": "max-num-seqs",
        "kind": "int",
        "values": [64, 128, 256, 512],
        "lossy": False,
        "why": "how many sequences run at once",
    },
    {
        "name": "kv-cache-dtype",
        "kind": "choice",
        "values": ["auto", "fp8"],
        "lossy": True,
        "why": "half the memory per token, at some loss of precision",
    },
    {
        "name": "gpu-memory-utilization",
        "kind": "float",
        "values": [0.9, 0.97],
        "lossy": False,
        "why": "share of GPU memory the engine may take",
    },
]


@dataclass
class Study:
    """A study directory being written; every method leaves it in a state a night may leave it."""

    path: Path
    requests: int = 400
    simulated: bool = False
    records: list[TrialRecord] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    constraints: Sequence[str] = (TPOT, SUCCESS)

    def header(self, *, name: str = "qwen-rag-overnight", trials: int = 40) -> Study:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "trials").mkdir(exist_ok=True)
        self.write("study.yaml", f"name: {json.dumps(name)}\n")
        kind = "simulated" if self.simulated else "vllm"
        self.json(
            "study.json",
            {
                "name": name,
                "model": "Qwen/Qwen2.5-7B-Instruct",
                "engine": {"kind": kind, "launcher": "docker"},
                "objective": [GOAL],
                "constraints": list(self.constraints),
                "baseline": BASELINE,
                "space": {"knobs": KNOBS},
                "budget": {"time": 28800.0, "trials": trials},
                "search": {"sampler": "tpe", "seed": 7, "finalists": 1, "repeats": 3},
            },
        )
        self.json("fingerprint.json", self._fingerprint(kind))
        return self

    def _fingerprint(self, kind: str) -> dict[str, Any]:
        return {
            "tool": "0.1.0",
            "engine": {
                "kind": kind,
                "version": "0.26.0",
                "image": "vllm/vllm-openai:v0.26.0",
                "image_digest": "sha256:4f1c0f6ab1",
            },
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "machine": {
                "gpus": [{"name": "H200", "memory_gib": 139.8}],
                "driver": "580.82",
                "cpu_count": 16,
                "os": "Ubuntu 24.04",
            },
            "workload": {
                "path": "traces/prod.jsonl",
                "digest": "9b2c77aa01ff",
                "format": "canonical",
                "requests": 741,
                "skipped_by_reason": {"failed when recorded": 3},
                "duration_s": 3600.0,
                "window_s": 120.0,
                "rate_mean": 6.2,
                "rate_peak_1s": 17.0,
                "input_tokens": {"p50": 5270, "p95": 12022, "max": 24278},
                "output_tokens": {"p50": 128, "p95": 290, "max": 454},
                "prefix_reuse": 0.12,
                "sessions": None,
                "held_out": True,
                "notes": [],
            },
            "simulated": self.simulated,
            "started_at": "2026-11-29T22:04:11+00:00",
        }

    def measured(
        self,
        params: Mapping[str, Any],
        *,
        ttft: float,
        tpot: float,
        failed: int = 0,
        role: Any = "search",
        pair: int | None = None,
        validity: Any = "valid",
        reasons: tuple[str, ...] = (),
    ) -> TrialRecord:
        """A measured trial whose median TTFT and TPOT are about the given seconds."""
        number = len(self.records)
        records = self._requests(number, ttft, tpot, failed)
        numbers = client_metrics(records, (0.0, 120.0), {})
        metrics = {
            **numbers.metrics,
            "kv_usage_max": 0.61,
            "preemptions": 0,
            "prefix_hit_rate": 0.12,
            "gpu_memory_peak_bytes": 134.3e9,
            "power_mean_w": 598.0 + number,
            "startup_seconds_s": 88.0,
        }
        values = {GOAL: metrics["ttft_p95_s"] or math.nan}
        if TPOT not in self.limits:
            self.limits = {TPOT: 1.1 * (metrics["tpot_p95_s"] or 0.0), SUCCESS: 0.999}
        violations = {
            TPOT: (metrics["tpot_p95_s"] or 0.0) / self.limits[TPOT] - 1,
            SUCCESS: (0.999 - (metrics["success_rate"] or 0.0)) / 0.999,
        }
        record = TrialRecord(
            number=number,
            role=role,
            state="measured",
            params=dict(params),
            values={key: value for key, value in values.items() if math.isfinite(value)},
            constraints={text: violations[text] for text in self.constraints},
            limits={text: self.limits[text] for text in self.constraints},
            feasible=all(violations[text] <= 0 for text in self.constraints),
            pair=pair,
            validity=validity,
            started_at="2026-11-29T22:04:11+00:00",
            seconds={"launch": 90.0, "warm": 20.0, "replay": 125.0, "score": 1.0, "stop": 6.0,
                     "total": 242.0},
            simulated=self.simulated,
        )  # fmt: skip
        measurement = Measurement(
            validity=Validity(verdict=validity, reasons=reasons),
            planned=len(records),
            ok=len(records) - failed,
            failed=failed,
            failed_by_reason={"timeout": failed} if failed else {},
            metrics=metrics,
            intervals=numbers.intervals,
            client={"dispatch_lag_p99_s": 0.0012, "loop_lag_p99_s": 0.002, "cpu_share": 0.31},
            unbounded=numbers.unbounded,
            diagnosis={
                "bound": "prefill",
                "ttft_share": 0.74,
                "evidence": ["the wait for the first token is 74% of the whole answer"],
            },
        )
        return self._close(record, measurement, records)

    def _requests(self, seed: int, ttft: float, tpot: float, failed: int) -> list[RequestRecord]:
        chance = random.Random(seed)
        records = []
        for index in range(self.requests):
            due = index * 120.0 / self.requests
            first = due + ttft * chance.lognormvariate(0.0, 0.6)
            tokens = 20 + index % 80
            last = first + tpot * (tokens - 1) * chance.lognormvariate(0.0, 0.2)
            records.append(
                RequestRecord(
                    index=index,
                    due_s=due,
                    measured=True,
                    planned_input_tokens=1000,
                    planned_output_tokens=tokens,
                    sent_s=due + 0.001,
                    first_token_s=first,
                    last_token_s=last,
                    output_tokens=tokens,
                    max_gap_s=tpot * 3,
                    failure="timeout" if index < failed else None,
                )
            )
        return records

    def failed(
        self, params: Mapping[str, Any], *, evidence: tuple[str, ...] = (OOM_LINE,), **facts: Any
    ) -> TrialRecord:
        """A trial whose engine died at start-up."""
        details: dict[str, Any] = {
            "state": "infeasible",
            "fault": "candidate",
            "reason": "out_of_memory",
            "phase": "startup",
            "remedy": "lower_memory",
            "message": "Out of memory while graphs were captured.",
            **facts,
        }
        record = TrialRecord(
            number=len(self.records),
            role=details.pop("role", "search"),
            params=dict(params),
            evidence=evidence,
            started_at="2026-11-29T22:04:11+00:00",
            seconds={"launch": 100.0, "total": 104.0},
            simulated=self.simulated,
            **details,
        )
        return self._close(record, None, [])

    def _close(
        self,
        record: TrialRecord,
        measurement: Measurement | None,
        requests: Sequence[RequestRecord],
    ) -> TrialRecord:
        folder = self.path / "trials" / f"{record.number:04d}"
        folder.mkdir(parents=True)
        if measurement is not None:
            (folder / "measurement.json").write_text(json.dumps(measurement.to_json()))
            write_records(folder / "requests.parquet", requests)
        flags = " ".join(f"--{name} {value}" for name, value in record.params.items())
        (folder / "launch.sh").write_text(
            "#!/usr/bin/env bash\nset -euo pipefail\n"
            f"exec vllm serve Qwen/Qwen2.5-7B-Instruct {flags}\n"
        )
        (folder / "server.log").write_text("prompt: 'CASEG03-PRIVATE-PROMPT'\n")
        (folder / "outcome.json").write_text(json.dumps(record.to_json()))
        self.records.append(record)
        self.event("trial_finished", trial=record.number)
        return record

    def event(self, kind: str, **data: Any) -> None:
        line = {"kind": kind, "at": "2026-11-29T22:10:00+00:00", "elapsed_s": 1.0, "data": data}
        with (self.path / "events.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def verdict(self, name: Any, *, pairs: int = 3, gain: float = 0.35, **facts: Any) -> Study:
        """Confirmation launches (TTFT about `gain` x baseline) and the verdict of that name."""
        best = best_trial([r for r in self.records if r.role == "search"], [GOAL])
        base = self.records[0]
        found = []
        for index in range(pairs if best else 0):
            assert best is not None
            a = self.measured(base.params, ttft=0.53, tpot=0.080, role="confirm", pair=index)
            b = self.measured(
                best.params, ttft=0.53 * gain, tpot=0.0202, role="confirm", pair=index
            )
            found.append(
                ConfirmPair(
                    pair=index,
                    baseline_trial=a.number,
                    best_trial=b.number,
                    baseline_value=a.values[GOAL],
                    best_value=b.values[GOAL],
                )
            )
        change = change_of(found)
        baselines = [p.baseline_value or 0.0 for p in found] or [base.values.get(GOAL, 0.0)]
        bests = [p.best_value or 0.0 for p in found]
        if not bests and best is not None:
            bests = [best.values[GOAL]]
        number = {"keep_baseline": 0, "no_feasible": None}.get(name, best and best.number)
        self.json(
            "verdict.json",
            {
                "verdict": name,
                "confirmed": pairs >= 3 and name != "no_feasible",
                "best": number,
                "objective": GOAL,
                "metric": "ttft_p95",
                "key": "ttft_p95_s",
                "baseline_value": _mean(baselines),
                "best_value": _mean(bests) if bests else None,
                "search_value": best.values[GOAL] if best else None,
                "change": change.to_json() if change else None,
                "pairs": [pair.to_json() for pair in found],
                "noise": noise_of(baselines),
                "reason": "better in 3 of 3 paired launches, and the interval excludes no change",
                "stopped_because": "the budget of 40 trials is used up",
                "interrupted": False,
                **facts,
            },
        )
        return self

    def scripts(self) -> Study:
        best = best_trial(self.records, [GOAL])
        assert best is not None
        for name in ("launch.sh", "rollback.sh"):
            record = best if name == "launch.sh" else self.records[0]
            text = (self.path / "trials" / f"{record.number:04d}" / "launch.sh").read_text()
            self.write(f"best/{name}", text)
        self.write("best/docker-run.sh", "#!/usr/bin/env bash\nexec docker run --rm vllm\n")
        self.write("best/compose.yaml", "services:\n  engine:\n    image: vllm\n")
        self.write("best/k8s.yaml", "kind: Deployment\n")
        self.json("best/manifest.json", {"engine": "vllm"})
        return self

    def search(self, trials: int, *, best_gain: float = 0.35) -> Study:
        """Baseline and a plausible search: some break a limit, some run out of memory."""
        chance = random.Random(3)
        self.measured(BASELINE, ttft=0.53, tpot=0.080, role="baseline")
        for index in range(1, trials):
            tokens = chance.choice([512, 1024, 2048, 4096, 16384])
            params: dict[str, Any] = {
                "max-num-batched-tokens": tokens,
                "max-num-seqs": chance.choice([64, 128, 256, 512]),
                "kv-cache-dtype": chance.choice(["auto", "fp8"]),
                "gpu-memory-utilization": 0.97 if index % 7 == 5 else 0.9,
            }
            if params["gpu-memory-utilization"] > 0.95:
                self.failed(params)
                continue
            share = (math.log2(tokens) - 9) / 5
            ttft = 0.53 * (3.2 * (1 - share) + best_gain * share) * chance.uniform(0.95, 1.3)
            tpot = 0.02 + 0.075 * share * chance.uniform(0.6, 1.15)
            self.measured(params, ttft=ttft, tpot=tpot)
        params = {"max-num-batched-tokens": 16384, "max-num-seqs": 256, "kv-cache-dtype": "fp8"}
        self.measured(params, ttft=0.53 * best_gain, tpot=0.0202)
        return self

    def json(self, name: str, value: Any) -> None:
        self.write(name, json.dumps(value, indent=1))

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Study]:
    """Make a new study directory: `study(simulated=True)`."""

    def make(**facts: Any) -> Study:
        name = facts.pop("name", "qwen-rag-overnight")
        trials = facts.pop("trials", 40)
        return Study(path=tmp_path_factory.mktemp("study") / "run", **facts).header(
            name=name, trials=trials
        )

    return make
