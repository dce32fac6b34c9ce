"""From what the user wrote to what can be run: every part resolved, every problem told at once.

Nothing here starts, stops or writes anything.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.catalog import engine_for, probe_version
from autotune.engines.diagnosis import startup_phase
from autotune.engines.engine import Engine, LaunchTarget
from autotune.engines.memory import GIB, estimate
from autotune.engines.plan import LaunchPlan
from autotune.errors import InputError
from autotune.launch.catalog import launcher_for
from autotune.launch.gpus import list_gpus
from autotune.launch.launcher import Launcher
from autotune.search.budget import Budget, too_small
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace
from autotune.space.study_space import OpenedStudy
from autotune.spec.model import StudySpec
from autotune.study.facts import gpu_facts, model_facts, workload_facts
from autotune.study.flag_check import flag_check
from autotune.study.lossy import guarded
from autotune.study.measuring import LEAD_S, MeasureSettings
from autotune.study.target import Baseline, baseline_of, launch_target, with_program
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is replayed, and what to say of it."""

    selection: Selection
    description: Mapping[str, Json]
    path: str
    source_notes: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        return (*self.source_notes, *self.selection.notes)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The same, and how well the windows represent the recording."""
        return (*self.notes, *self.selection.portrait)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStudy:
    """Everything that a run needs. `study_id` marks every process and container as this study's."""

    study_id: str
    spec: StudySpec
    space: SearchSpace
    engine: Engine
    engine_version: str | None
    target: LaunchTarget
    launcher: Launcher
    baseline: Candidate
    facts: Mapping[str, Json]
    traffic: Traffic
    measure: MeasureSettings
    notes: tuple[str, ...] = ()

    @property
    def search_trace(self) -> Trace:
        return self.traffic.selection.search

    @property
    def held_out(self) -> Trace | None:
        return self.traffic.selection.held_out

    @property
    def relative_limits(self) -> bool:
        """Whether any limit refers to the baseline."""
        return any(constraint.relative for constraint in self.spec.constraints)

    def startup_phase(self, line: str) -> str | None:
        """The start-up phase that a log line announces."""
        return startup_phase(line, self.engine.kind)

    def baseline_plan(self) -> LaunchPlan:
        """How today's settings are launched."""
        return self.engine.plan(self.baseline, self.target)


def prepare(opened: OpenedStudy, *, clock: Clock, stop: StopSignal) -> PreparedStudy:
    """Resolve a new study. Raises InputError or EnvironmentFault."""
    loaded, space = opened.study, opened.space
    spec = loaded.spec
    kind = spec.engine.kind
    program = with_program(spec, engine_for(kind), launch_target(spec, space))
    version = probe_version(program) if kind != "simulated" else None
    engine = engine_for(kind, version)
    flags = flag_check(kind, version, program)
    space, unguarded = guarded(spec, space)
    spec, space, notes = flags.fit_study(spec, space, loaded.locate)
    target = launch_target(spec, space)
    facts: dict[str, Json] = {
        "engine.kind": kind,
        "engine.version": version,
        **model_facts(spec.model),
        **gpu_facts(list_gpus(), target.gpus),
        **target.args,
    }
    trace = recorded(spec)
    # Knobs may be active only for some traffic, so the baseline needs to know it
    facts |= workload_facts(describe(_selected(spec, trace, limit=None).search))
    baseline = baseline_of(
        spec, space, engine, target, facts,
        locate=lambda name: loaded.locate(("baseline", name), key=True),
    )  # fmt: skip
    baseline = flags.fit_command(baseline, target.args)
    baseline = replace(baseline, notes=(*unguarded, *notes, *baseline.notes))
    facts |= baseline.target.args
    traffic = _traffic(
        spec,
        trace,
        smallest_length(space, facts, baseline.candidate),
        likely_cache_tokens(spec.model, facts, baseline.candidate),
    )
    return assemble(
        study_id=uuid.uuid4().hex[:12],
        spec=spec,
        space=space,
        engine=engine,
        version=version,
        baseline=baseline,
        facts={**facts, **workload_facts(traffic.description)},
        traffic=traffic,
        clock=clock,
        stop=stop,
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
        notes=(*baseline.notes, *traffic.notes),
    )


def check(study: PreparedStudy) -> None:
    """Everything that would make a launch fail, without launching: program, image, model folder,
    port, secrets, budget, values without a form as a flag. Raises InputError or EnvironmentFault.
    """
    too_little = too_small(
        Budget(time_s=study.spec.budget.time, trials=study.spec.budget.trials),
        startup_s=LEAST_START_S,
        replay_s=study.search_trace.duration_s + LEAD_S,
    )
    if too_little is not None:
        raise InputError(
            message=too_little,
            so="nothing was started",
            hint="a larger `budget: time:`, or a smaller `workload: window:`",
        )
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
            study.engine.plan(Candidate({**study.baseline.params, knob.name: value}), study.target)
    study.launcher.check(study.baseline_plan())


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
