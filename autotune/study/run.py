"""Starting and resuming a study: the parts put together, under the lock of its directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.clock import Clock, StopSignal
from autotune.engines.plan import LaunchPlan
from autotune.errors import InputError
from autotune.search.proposer import Proposer
from autotune.study.directory import StudyDirectory
from autotune.study.events import Observer
from autotune.study.memory_fit import memory_fit
from autotune.study.prepare import PreparedStudy
from autotune.study.resume import take_over
from autotune.study.runner import StudyEnd, StudyRunner
from autotune.study.snapshot import write_snapshot
from autotune.study.stream import EventStream
from autotune.study.trial import TrialExecutor


def run_study(
    study: PreparedStudy,
    directory: StudyDirectory,
    *,
    clock: Clock,
    stop: StopSignal,
    observers: Sequence[Observer],
    render_script: Callable[[LaunchPlan, int], str],
    fresh: bool,
) -> StudyEnd:
    """Run a study to its end. `fresh`: the directory is new; else what it holds is continued.

    Raises InputError when another run holds the directory, a fresh one holds a study already, or
    what a launch needs is not there any more, and EnvironmentFault when leftovers of a killed run
    cannot be ended.
    """
    with directory.locked():
        if fresh:
            if (directory.path / "study.json").exists():
                raise InputError(
                    message=f"there is a study in {directory.path} already",
                    so="nothing was started",
                    hint=f"`autotune resume {directory.path}`, or `--out` another folder",
                )
            started_at = clock.utcnow().isoformat(timespec="seconds")
            write_snapshot(study, directory, started_at=started_at)
            notes = []
        else:
            notes = take_over(study, directory)
            study.launcher.check(study.baseline_plan())
        events = EventStream(clock, directory, observers)
        fit = memory_fit(study)
        executor = TrialExecutor(
            study, directory, events, clock=clock, stop=stop, render_script=render_script, fit=fit
        )
        runner = StudyRunner(
            study,
            directory,
            executor,
            _proposer(study, directory.path),
            events,
            clock=clock,
            stop=stop,
            fit=fit,
        )
        for note in notes:
            events.emit("note", message=note)
        return runner.run()


def _proposer(study: PreparedStudy, folder: Path) -> Proposer:
    # Optuna takes half a second to import: not before it is needed
    from autotune.search.optuna_proposer import OptunaProposer

    return OptunaProposer(
        study.space,
        study.facts,
        study.spec.objective,
        study.spec.constraints,
        seed=study.spec.search.seed,
        sampler=study.spec.search.sampler,
        storage_path=folder / "optuna.db",
    )
