"""A study that is ready to run: the values that every part of the loop reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotune.canonical import Json
from autotune.engines.diagnosis import startup_phase
from autotune.engines.engine import Engine, LaunchTarget
from autotune.engines.plan import LaunchPlan
from autotune.launch.launcher import Launcher
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace
from autotune.spec.model import StudySpec
from autotune.study.first import FirstCandidates
from autotune.study.gpu_slots import GpuSet
from autotune.study.measuring import MeasureSettings
from autotune.workload.trace import Trace
from autotune.workload.windows import Selection


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
    """Everything that a run needs.

    `study_id` marks every process and container as this study's. `slots`: the GPUs of each of the
    launches that may run at the same time; `target` and `measure` are the first one's. `first`:
    what is tried right after the baseline.

    `sides`: of a study across engines each engine's own study, the baseline's first; then `engine`,
    `target`, `facts` and the like are the first one's, and `on` gives those of another.
    """

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
    slots: tuple[GpuSet, ...] = (None,)
    first: FirstCandidates = field(default_factory=FirstCandidates)
    notes: tuple[str, ...] = ()
    sides: tuple[PreparedStudy, ...] = ()

    def on(self, kind: str | None) -> PreparedStudy:
        """The study as a trial on this engine sees it: its engine, target, facts and metric names;
        space and baseline stay the whole study's. None: the baseline's engine.
        """
        side = next((side for side in self.sides if side.engine.kind == kind), None)
        if side is None:
            return self
        return replace(
            self,
            spec=side.spec,
            engine=side.engine,
            engine_version=side.engine_version,
            target=side.target,
            facts=side.facts,
            measure=replace(
                self.measure,
                metric_names=side.measure.metric_names,
                api_key_env=side.measure.api_key_env,
            ),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The engines of the study, the baseline's first."""
        return tuple(side.engine.kind for side in self.sides) or (self.engine.kind,)

    @property
    def lossy(self) -> frozenset[str]:
        """Parameters that can change answers."""
        names = (knob.name for knob in self.space.knobs if knob.lossy)
        return frozenset(self.space.parameter(name) for name in names)

    def plan(self, candidate: Candidate) -> LaunchPlan:
        """How a candidate is launched. Raises InputError for a value without a form as a flag."""
        own = self.on(candidate.engine)
        return own.engine.plan(candidate, own.target)

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

    @property
    def gpus_per_launch(self) -> int:
        """GPUs that a launch holds; an engine without any counts as one."""
        named = self.target.gpus
        count = self.facts.get("gpu.count") if named is None else len(named)
        return max(1, count or 0)

    def startup_phase(self, line: str) -> str | None:
        """The start-up phase that a log line announces."""
        return startup_phase(line, self.engine.kind)

    def baseline_plan(self) -> LaunchPlan:
        """How today's settings are launched."""
        return self.plan(self.baseline)


def engine_words(study: PreparedStudy) -> str:
    """What runs, in words: `vllm 0.26.0, image vllm/vllm-openai:v0.26.0`."""
    image, version = study.target.image, study.engine_version
    words = f"{study.engine.kind} {version or '(version not known)'}"
    return words + (f", image {image}" if image else "")
