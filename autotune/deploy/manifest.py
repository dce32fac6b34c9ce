"""`manifest.json`: the deployment record as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from autotune.canonical import Json
from autotune.deploy.facts import DeployFacts, MetricFact
from autotune.deploy.timing import drain_s, grace_s, startup_limit_s
from autotune.engines.plan import LaunchPlan

VERSION = 1


def render(plan: LaunchPlan, facts: DeployFacts, *, files: Mapping[str, str] | None = None) -> str:
    """Strict JSON (no NaN): what is launched, where it was measured, and the numbers beside the
    baseline's. `files`: name -> SHA-256 of the other files of the hand-over.
    """
    record: dict[str, Json] = {
        "autotune_manifest": VERSION,
        "study": facts.study,
        "trial": facts.trial,
        "role": facts.role,
        "verdict": facts.verdict,
        "simulated": facts.simulated,
        "confirmed": facts.confirmed,
        "validity": facts.validity,
        "caveats": list(facts.caveats),
        "date": facts.date,
        "tool": {"name": "autotune", "version": facts.tool_version},
        "engine": {"kind": facts.engine, "version": facts.engine_version},
        "image": {"name": plan.image, "digest": facts.image_digest},
        "model": {"name": facts.model, "revision": facts.model_revision},
        "machine": {"gpu": facts.gpu, "driver": facts.driver},
        "workload": {"name": facts.workload, "digest": facts.workload_digest},
        "launch": _launch(plan),
        "changed": {
            knob: {"baseline": before, "value": after}
            for knob, (before, after) in facts.changed.items()
        },
        "metrics": {fact.name: _metric(fact) for fact in facts.metrics},
        "measured": {
            "startup_seconds": facts.startup_seconds,
            "e2e_p99_s": facts.e2e_p99_s,
            "host_memory_peak_bytes": facts.host_memory_peak_bytes,
        },
        "derived": {
            "startup_limit_s": startup_limit_s(facts),
            "drain_s": drain_s(facts),
            "grace_s": grace_s(facts),
        },
        "files": dict(files or {}),
        "extra": dict(facts.extra),
    }
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _launch(plan: LaunchPlan) -> dict[str, Json]:
    """The plan with the names of its variables; plain values are in the scripts."""
    launch = plan.to_json()
    launch["env"] = sorted(plan.env)
    return launch


def _metric(fact: MetricFact) -> dict[str, Json]:
    data = asdict(fact)
    del data["name"]
    return data
