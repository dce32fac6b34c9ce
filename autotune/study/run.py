"""Starting and resuming a study: the parts put together, under the lock of its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.plan import LaunchPlan
from autotune.errors import InputError
from autotune.search.catalog import make_proposer
from autotune.search.forecast import Forecast
from autotune.search.proposer import Proposer
from autotune.study.directory import StudyDirectory
from autotune.study.engine_judges import EngineFits
from autotune.study.events import Observer
from autotune.study.extending import extend
from autotune.study.memory_fit import Fits, memory_fit
from autotune.study.phases import phase_history
from autotune.study.prepared import PreparedStudy
from autotune.study.resume import take_over
from autotune.study.runner import StudyEnd, StudyRunner
from autotune.study.slots import Run, SlotExecutor, share
from autotune.study.snapshot import write_snapshot
from autotune.study.stream import EventStream
from autotune.study.trial import TrialExecutor
from autotune.study.version_watch import VersionWatch


def run_study(
    study: PreparedStudy,
    directory: StudyDirectory,
    *,
    clock: Clock,
    stop: StopSignal,
    observers: Sequence[Observer],
    render_script: Callable[[LaunchPlan, int], str],
    fresh: bool,
    limits: Mapping[str, Json] = MappingProxyType({}),
) -> StudyEnd:
    """Run a study to its end. `fresh`: the directory is new; else what it holds is continued, with
    other `limits` (of `extending.limits_of`) where some are given.

    Raises InputError when another run holds the directory, a fresh one holds a study already, or
    what a launch needs is not there any more, and EnvironmentFault when leftovers of a killed run
    cannot be ended.
    """
    with directory.locked():
        notes = _written(study, directory, clock) if fresh else _taken_over(study, directory)
        study, changed = extend(study, directory, limits)
        events = EventStream(clock, directory, observers)
        fits = _fits(study)
        fit: Fits | None = EngineFits(fits) if study.sides else fits[None]
        history = phase_history(directory)
        engines = [_Engine(study.on(kind), fits.get(kind, fit)) for kind in study.kinds]
        executors = [
            _by_engine(
                {
                    one.kind: TrialExecutor(
                        share(one.study, slot), directory, events, clock=clock, stop=stop,
                        render_script=render_script, fit=one.fit, history=history,
                        versions=one.versions,
                    )
                    for one in engines
                },
                study.engine.kind,
            )
            for slot in range(len(study.slots))
        ]  # fmt: skip
        runner = StudyRunner(
            study,
            directory,
            SlotExecutor(executors),
            _proposer(study, directory, fit),
            events,
            clock=clock,
            stop=stop,
            fit=fit,
            reasons=study.first.reasons,
        )
        for note in (*notes, *changed):
            events.emit("note", message=note)
        return runner.run()


def _written(study: PreparedStudy, directory: StudyDirectory, clock: Clock) -> list[str]:
    """Write a new study's own files; nothing to say of it."""
    if (directory.path / "study.json").exists():
        raise InputError(
            message=f"there is a study in {directory.path} already",
            so="nothing was started",
            hint=f"`autotune resume {directory.path}`, or `--out` another folder",
        )
    started_at = clock.utcnow().isoformat(timespec="seconds")
    write_snapshot(study, directory, started_at=started_at)
    return []


def _taken_over(study: PreparedStudy, directory: StudyDirectory) -> list[str]:
    """End what an earlier run left; one sentence per thing done."""
    notes = take_over(study, directory)
    for side in study.sides or (study,):
        side.launcher.check(side.baseline_plan())
    return notes


class _Engine:
    """One engine of a study: the study as its trials see it, and what they learn together."""

    def __init__(self, study: PreparedStudy, fit: Fits | None) -> None:
        self.kind = study.engine.kind
        self.study = study
        self.fit = fit
        self.versions = VersionWatch(study.engine.kind, study.engine_version)


def _fits(study: PreparedStudy) -> Mapping[str | None, Fits | None]:
    """What can be told of memory, by the engine that candidates name."""
    if not study.sides:
        return {None: memory_fit(study)}
    return {kind: memory_fit(study.on(kind)) for kind in study.kinds}


def _by_engine(executors: Mapping[str, TrialExecutor], own: str) -> Run:
    """Each trial by the executor of its engine; `own`: the one where none is named."""
    return lambda task: executors[task.candidate.engine or own].run(task)


def _proposer(study: PreparedStudy, directory: StudyDirectory, fit: Fits | None) -> Proposer:
    def forecast() -> Forecast | None:
        from autotune.study.forecasting import study_forecast  # only the guided search needs scipy

        return study_forecast(study, directory, fit=fit)

    return make_proposer(
        study.spec.search.sampler,
        study.space,
        study.facts,
        study.spec.objective,
        study.spec.constraints,
        seed=study.spec.search.seed,
        storage_path=directory.path / "optuna.db",
        forecast=forecast,
        first=tuple(study.first.reasons),
    )
