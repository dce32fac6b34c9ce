"""A study's candidates as the simulator sees them: flags, machine, limits."""

from __future__ import annotations

from autotune.canonical import Json
from autotune.engines.memory import GIB
from autotune.simulator.profile import load_profile
from autotune.simulator.understanding import Machine, Understanding
from autotune.space.candidate import Candidate
from autotune.study.prepare import PreparedStudy
from autotune.study.target import all_settings


def flags_of(study: PreparedStudy, candidate: Candidate) -> dict[str, Json]:
    """All flags of a candidate's launch under their own names, fixed ones included."""
    found = all_settings(candidate, study.engine.kind, study.target)
    return {name: value for name, value in found.items() if not name.startswith("env ")}


def understanding_of(study: PreparedStudy) -> Understanding:
    """How the flags of this study's engine are read."""
    return Understanding(
        engine=study.engine.kind,
        baseline=flags_of(study, study.baseline),
        machine=machine_of(study),
    )


def machine_of(study: PreparedStudy) -> Machine:
    """What is known of the machine, and of the engine's defaults on it."""
    length = longest_request(study)
    if study.engine.simulated:
        profile = load_profile(str(study.target.args.get("sim-profile", "quickstart")))
        return Machine(
            gpu_gib=profile.gpu_memory / GIB,
            budget=profile.default_max_num_batched_tokens,
            seqs=profile.default_max_num_seqs,
            model_len=length or profile.max_model_len,
        )
    memory = study.facts.get("gpu.memory_gib")
    gib = float(memory) if isinstance(memory, int | float) else 0.0
    return Machine(gpu_gib=gib, model_len=length)


def longest_request(study: PreparedStudy) -> int | None:
    """Tokens that a request may have under today's settings; None if nobody says."""
    names = ("max-model-len", "context-length")
    settings = flags_of(study, study.baseline)
    known = [*(settings.get(name) for name in names), study.facts.get("model.max_length")]
    return next((n for n in known if isinstance(n, int) and not isinstance(n, bool)), None)
