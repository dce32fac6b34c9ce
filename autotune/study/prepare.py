"""From what the user wrote to what can be run: every part resolved, every problem told at once.

Nothing here starts, stops or writes anything.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.catalog import engine_for, is_simulated, probe_version
from autotune.engines.engine import Engine
from autotune.engines.launch_params import local_folder
from autotune.engines.memory import GIB, estimate
from autotune.errors import InputError
from autotune.launch.catalog import launcher_for
from autotune.launch.gpus import Gpu, list_gpus
from autotune.search.budget import Budget, too_small
from autotune.space.candidate import MODEL, Candidate
from autotune.space.search_space import SearchSpace
from autotune.space.study_space import OpenedStudy
from autotune.spec.model import StudySpec
from autotune.study.across import across_engines
from autotune.study.facts import gpu_facts, model_facts, workload_facts
from autotune.study.first import first_candidates
from autotune.study.flag_check import flag_check
from autotune.study.gpu_slots import GpuSet, gpu_slots, resolved
from autotune.study.lossy import guarded
from autotune.study.measuring import LEAD_S, MeasureSettings
from autotune.study.prepared import PreparedStudy, Traffic
from autotune.study.target import (
    Baseline,
    baseline_of,
    launch_target,
    with_program,
    with_shell,
)
from autotune.workload.prompts import vocab_of
from autotune.workload.reader import read_trace
from autotune.workload.statistics import describe
from autotune.workload.synthesis import Process
from autotune.workload.timing import Arrivals
from autotune.workload.tokens import special_ids_of
from autotune.workload.trace import Trace
from autotune.workload.windows import Selection, select

LEAST_START_S = 1.0
"""No engine starts faster; used only to refuse budgets that cannot hold one launch."""
DRAIN_FACTOR = 2.0
LEAST_DRAIN_S = 30.0
"""After its last due time a replay may run on for this factor of its own length, at least this."""

__all__ = ["PreparedStudy", "Traffic", "assemble", "check", "prepare", "recorded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One engine of a study, resolved, before its traffic is chosen."""

    spec: StudySpec
    space: SearchSpace
    engine: Engine
    version: str | None
    baseline: Baseline
    facts: Mapping[str, Json]


def prepare(opened: OpenedStudy, *, clock: Clock, stop: StopSignal) -> PreparedStudy:
    """Resolve a new study. Raises InputError or EnvironmentFault."""
    found = list_gpus()
    trace = recorded(opened.study.spec)
    sides = [_side(one, found, trace) for one in (opened, *opened.others)]
    first = sides[0]
    lengths = [smallest_length(s.space, s.facts, s.baseline.candidate) for s in sides]
    traffic = _traffic(
        first.spec,
        trace,
        min((length for length in lengths if length is not None), default=None),
        likely_cache_tokens(first.spec.model, first.facts, first.baseline.candidate),
    )
    study_id = uuid.uuid4().hex[:12]
    return across_engines(
        [
            assemble(
                study_id=study_id,
                spec=side.spec,
                space=side.space,
                engine=side.engine,
                version=side.version,
                baseline=side.baseline,
                facts={**side.facts, **workload_facts(traffic.description)},
                traffic=traffic,
                slots=gpu_slots(side.spec, [str(gpu.index) for gpu in found]),
                clock=clock,
                stop=stop,
            )
            for side in sides
        ]
    )


def _side(opened: OpenedStudy, found: list[Gpu], trace: Trace) -> _Side:
    """Resolve one engine: its version, the flags that it has, what is fixed, what runs today."""
    loaded, space = opened.study, opened.space
    spec = resolved(loaded.spec, [str(gpu.index) for gpu in found])
    kind = spec.engine.kind
    program = with_program(spec, engine_for(kind), launch_target(spec, space))
    version = None if is_simulated(kind) else probe_version(program, kind)
    engine = engine_for(kind, version)
    flags = flag_check(kind, version, program)
    spec, space, unguarded = guarded(spec, space, version)
    spec, space, notes = flags.fit_study(spec, space, loaded.locate)
    target = launch_target(spec, space)
    facts: dict[str, Json] = {
        "engine.kind": kind,
        "engine.version": version,
        **model_facts(spec.model),
        **gpu_facts(found, target.gpus),
        **target.args,
    }
    # Knobs may be active only for some traffic, so the baseline needs to know it
    facts |= workload_facts(describe(_selected(spec, trace, limit=None).search))
    baseline = baseline_of(
        spec, space, engine, target, facts,
        locate=lambda name: loaded.locate(("baseline", name), key=True),
    )  # fmt: skip
    baseline = with_shell(flags.fit_command(baseline, target.args), kind, os.environ)
    baseline = replace(baseline, notes=(*unguarded, *notes, *baseline.notes))
    return _Side(
        spec=spec,
        space=space,
        engine=engine,
        version=version,
        baseline=baseline,
        facts={**facts, **baseline.target.args},
    )


def assemble(
    *,
    study_id: str,
    spec: StudySpec,
    space: SearchSpace,
    engine: Engine,
    version: str | None,
    baseline: Baseline,
    facts: Mapping[str, Json],
    traffic: Traffic,
    slots: tuple[GpuSet, ...],
    clock: Clock,
    stop: StopSignal,
) -> PreparedStudy:
    """Put the resolved parts together; new studies and resumed ones meet here."""
    selection = traffic.selection
    duration_s = selection.search.duration_s + LEAD_S
    warmup = spec.workload.warmup
    settings = MeasureSettings(
        objectives=spec.objective,
        constraints=spec.constraints,
        metric_names=engine.metric_names(),
        vocab_size=vocab_of(spec.model),
        special_ids=special_ids_of(spec.model),
        warmup=warmup if isinstance(warmup, int) else None,
        priming=selection.priming,
        held_out_priming=selection.held_out_priming,
        drain_s=max(LEAST_DRAIN_S, DRAIN_FACTOR * duration_s),
        api_key_env=baseline.target.secrets.get("VLLM_API_KEY"),
        gpus=baseline.target.gpus,
    )
    first = first_candidates(space, baseline.candidate, facts)
    return PreparedStudy(
        study_id=study_id,
        spec=spec,
        space=space,
        engine=engine,
        engine_version=version,
        target=baseline.target,
        launcher=launcher_for(spec.engine.launcher, clock=clock, stop=stop),
        baseline=baseline.candidate,
        facts=facts,
        traffic=traffic,
        measure=settings,
        slots=slots,
        first=first,
        notes=(*baseline.notes, *traffic.notes, *([first.note] if first.note else [])),
    )


def check(study: PreparedStudy) -> None:
    """Everything that would make a launch fail, without launching: program, image, model folder,
    port, secrets, budget, values without a form as a flag. Raises InputError or EnvironmentFault.
    """
    too_little = too_small(
        Budget(
            time_s=study.spec.budget.time,
            trials=study.spec.budget.trials,
            gpu_s=study.spec.budget.gpu_seconds,
            gpus=study.gpus_per_launch,
        ),
        startup_s=LEAST_START_S,
        replay_s=study.search_trace.duration_s + LEAD_S,
    )
    if too_little is not None:
        raise InputError(
            message=too_little,
            so="nothing was started",
            hint="a larger `budget:`, or a smaller `workload: window:`",
        )
    for side in study.sides or (study,):
        _check_side(side)


def _check_side(study: PreparedStudy) -> None:
    """What would make a launch of one engine fail."""
    broken = study.space.violations(study.baseline.params, study.facts)
    if broken:
        raise InputError(
            message=f"the baseline breaks a rule of the space: {broken[0]}",
            seen=f"baseline {dict(study.baseline.params)}",
            so="nothing was started",
            hint="change the baseline, or the rule if it does not hold for this engine",
        )
    if study.spec.engine.launcher == "attach":
        raise InputError(
            message="a running server cannot be tuned: its flags are fixed at its launch",
            so="nothing was started",
            hint="`autotune replay --url URL --workload W` measures it; "
            "launcher process or docker tunes",
        )
    for knob in study.space.active(
        study.space.first_values() | dict(study.baseline.params), study.facts
    ):
        for value in knob.grid():
            if knob.name == MODEL:
                _check_checkpoint(study, str(value))
            study.engine.plan(Candidate({**study.baseline.params, knob.name: value}), study.target)
    study.launcher.check(study.baseline_plan())


def _check_checkpoint(study: PreparedStudy, path: str) -> None:
    """A checkpoint that is given as a folder of this host has to be there."""
    mounted = any(path.startswith(mount.target) for mount in study.target.mounts)
    is_path = path.startswith(("/", ".", "~"))
    if is_path and not mounted and not study.engine.simulated and local_folder(path) is None:
        raise InputError(
            message=f"no such folder: {path}",
            seen="a value of the knob `model`",
            so="nothing was started",
            hint="the folder of a checkpoint, or its name on the hub",
        )


def recorded(spec: StudySpec) -> Trace:
    """The workload of a study, as it was recorded. Raises InputError."""
    workload = spec.workload
    chosen = workload.arrivals
    arrivals = None
    if chosen is not None:
        process = Process(kind=chosen.process, rate=chosen.rate, burstiness=chosen.burstiness)
        arrivals = Arrivals(process=process, seed=chosen.seed)
    return read_trace(
        Path(workload.path),
        format=workload.format,
        time_unit=workload.time_unit,
        block_size=workload.block_size,
        output_tokens=workload.output_tokens,
        arrivals=arrivals,
        keep_text=workload.keep_text,
        tokenizer=None if workload.tokenizer is None else Path(workload.tokenizer),
        model=spec.model,
    )


def _selected(
    spec: StudySpec, trace: Trace, limit: int | None, cache_tokens: int | None = None
) -> Selection:
    workload = spec.workload
    return select(
        trace,
        window_s=workload.window,
        time_scale=workload.time_scale,
        thin=workload.thin,
        spread=workload.spread_arrivals,
        max_total_tokens=limit,
        # Priming is made of block ids, which say nothing of real text
        max_priming_tokens=0 if trace.has_text else workload.max_priming_tokens,
        cache_tokens=cache_tokens,
    )


def likely_cache_tokens(model: str, facts: Mapping[str, Json], baseline: Candidate) -> int | None:
    """Tokens that the KV cache of today's settings likely holds; None where it cannot be told."""
    gib = facts.get("gpu.memory_gib")
    if not isinstance(gib, int | float):
        return None
    found = estimate(Path(model), {**facts, **baseline.params}, gib * GIB)
    return found.kv_tokens if found is not None and found.kv_tokens > 0 else None


def _traffic(spec: StudySpec, trace: Trace, limit: int | None, cache_tokens: int | None) -> Traffic:
    """Choose what is replayed, and say what was left out of the recording."""
    selection = _selected(spec, trace, limit, cache_tokens)
    notes = list(trace.notes)
    if trace.skipped:
        reasons = Counter(skipped.reason for skipped in trace.skipped)
        text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        notes.append(f"{len(trace.skipped)} lines of the workload were skipped: {text}")
    return Traffic(
        selection=selection,
        description=describe(replace(selection.search, skipped=trace.skipped)),
        path=spec.workload.path,
        source_notes=tuple(notes),
    )


def smallest_length(
    space: SearchSpace, facts: Mapping[str, Json], baseline: Candidate
) -> int | None:
    """The smallest context length that any candidate can have, in tokens; None if unknown.

    Over-long requests are decided by it once, so that all candidates replay the same requests.
    """
    knob = space.knob("max-model-len")
    known = [facts.get("max-model-len"), baseline.params.get("max-model-len")]
    if knob is not None and facts.get("max-model-len") is None:
        known += list(knob.grid())
    known.append(facts.get("model.max_length"))
    lengths = [n for n in known if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return min(lengths, default=None)
