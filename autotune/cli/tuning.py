"""`tune`, `plan` and `resume`: prepare, show, run, hand over."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autotune.canonical import Json
from autotune.cli.closing import closing_block
from autotune.cli.console import result, result_json, say, say_plan, talk
from autotune.cli.dashboard import LiveView
from autotune.cli.handover import finish, script_of
from autotune.cli.plain import PlainLines
from autotune.cli.planning import plan_json, plan_text
from autotune.cli.signals import stop_on_signals
from autotune.clock import Clock, StopSignal, SystemClock
from autotune.engines.plan import LaunchPlan
from autotune.errors import InputError
from autotune.report.show import show_json
from autotune.report.view import load_view
from autotune.space.study_space import open_study
from autotune.study.directory import StudyDirectory
from autotune.study.edited import check_unedited
from autotune.study.events import Observer
from autotune.study.extending import limits_of
from autotune.study.lossy import UNCHECKED
from autotune.study.prepare import PreparedStudy, check, prepare
from autotune.study.run import run_study
from autotune.study.runner import StudyEnd
from autotune.study.snapshot import read_snapshot

MIN_WIDTH, MIN_HEIGHT = 60, 12
"""Smaller terminals get plain lines."""


def plan(file: Path | None, flags: Mapping[str, Any], *, as_json: bool) -> int:
    """Show everything that would happen, then what stands in its way; start nothing."""
    opened = open_study(file, flags)
    study = prepare(opened, clock=SystemClock(), stop=StopSignal())
    if as_json:
        result_json(plan_json(study, opened.study.origins))
    else:
        say_plan(plan_text(study, opened.study.origins, verbose=True), UNCHECKED, as_result=True)
    check(study)
    return 0


def tune(
    file: Path | None,
    flags: Mapping[str, Any],
    *,
    out: Path | None,
    progress: str,
    as_json: bool,
) -> int:
    """Run a new study. Returns the exit code."""
    clock, stop = SystemClock(), StopSignal()
    opened = open_study(file, flags)
    if out is not None:
        refuse_taken(out)
    study = prepare(opened, clock=clock, stop=stop)
    check(study)
    directory = StudyDirectory(out or new_directory(study.spec.name, clock))
    say_plan(plan_text(study, opened.study.origins, directory=directory.path), UNCHECKED)
    return _run(study, directory, clock=clock, stop=stop, progress=progress, fresh=True,
                as_json=as_json)  # fmt: skip


def resume(path: Path, flags: Mapping[str, Any], *, progress: str, as_json: bool) -> int:
    """Continue a study after any kind of end, with a changed budget if flags say so. Returns the
    exit code.
    """
    clock, stop = SystemClock(), StopSignal()
    directory = StudyDirectory.existing(path)
    limits = limits_of(flags)
    check_unedited(directory, limits)
    study = read_snapshot(directory, clock=clock, stop=stop)
    return _run(study, directory, clock=clock, stop=stop, progress=progress, fresh=False,
                limits=limits, as_json=as_json)  # fmt: skip


def new_directory(name: str, clock: Clock) -> Path:
    """`runs/DATE-NAME`, with a number behind it if that is taken."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "study"
    stem = f"{clock.utcnow().astimezone().date().isoformat()}-{safe}"
    folder = Path("runs") / stem
    count = 1
    while folder.exists():
        count += 1
        folder = Path("runs") / f"{stem}-{count}"
    return folder


def _run(
    study: PreparedStudy,
    directory: StudyDirectory,
    *,
    clock: Clock,
    stop: StopSignal,
    progress: str,
    fresh: bool,
    as_json: bool,
    limits: Mapping[str, Json] = MappingProxyType({}),
) -> int:
    date = clock.utcnow().date().isoformat()

    def render(plan: LaunchPlan, number: int) -> str:
        return script_of(
            plan, study=study.spec.name, model=study.spec.model, number=number, date=date,
            simulated=study.engine.simulated,
        )  # fmt: skip

    with stop_on_signals(stop):
        with made(directory.path), observers(directory.path, progress) as watching:
            end = run_study(
                study, directory, clock=clock, stop=stop, observers=watching,
                render_script=render, fresh=fresh, limits=limits,
            )  # fmt: skip
        finish(directory.path)
    return conclude(directory.path, end, as_json=as_json)


def refuse_taken(folder: Path) -> None:
    """Raises InputError unless a new study may be written to this folder."""
    if (folder / "study.json").exists():
        raise InputError(
            message=f"there is a study in {folder} already",
            so="nothing was started",
            hint=f"`autotune resume {folder}`, or `--out` another folder",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            message=f"{folder} is {'not empty' if folder.is_dir() else 'a file'}",
            so="nothing was started",
            hint="`--out` takes a new folder",
        )


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make the study's folder; if the run fails before its study is written, remove what was made.
    Raises InputError where no folder can be made.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            message=f"cannot make the folder {folder}", seen=error.strerror,
            so="nothing was started", hint="`--out` takes a folder that can be written",
        ) from error  # fmt: skip
    try:
        yield
    finally:
        if missing and not (folder / "study.json").exists():
            shutil.rmtree(missing[-1], ignore_errors=True)


def conclude(directory: Path, end: StudyEnd, *, as_json: bool) -> int:
    """Say how it ended: the closing block for people, the directory for scripts."""
    say()
    talk().print(closing_block(load_view(directory), end.stopped_because), soft_wrap=True)
    if as_json:
        result_json(show_json(load_view(directory)))
    else:
        result(str(directory))
    if end.error is not None:
        raise end.error
    return end.exit_code


@contextmanager
def observers(directory: Path, progress: str) -> Iterator[Sequence[Observer]]:
    """The views that a run feeds: one on screen, and plain lines in `tune.log` always."""
    log = (directory / "tune.log").open("a", encoding="utf-8", buffering=1)

    def keep(line: str) -> None:
        log.write(f"{line}\n")

    to_file = PlainLines(keep)
    console = talk()
    live = progress == "live" or (
        progress == "auto"
        and console.is_terminal
        and not console.is_dumb_terminal
        and not os.environ.get("CI")
        and console.width >= MIN_WIDTH
        and console.height >= MIN_HEIGHT
    )
    screen: LiveView | PlainLines | None = None
    try:
        if live:
            with LiveView(console) as screen:
                yield [to_file, screen]
        elif progress != "none":
            screen = PlainLines(say)
            yield [to_file, screen]
            screen.close()
        else:
            yield [to_file]
    finally:
        to_file.close()
        if isinstance(screen, PlainLines):
            screen.close()
        log.close()


def refuse_both(file: Path | None, flags: Mapping[str, Any]) -> None:
    """A study needs a file or at least engine, model and workload by flag."""
    given = {name for name, value in flags.items() if value is not None}
    if file is None and not {"model", "workload.path"} <= given:
        raise InputError(
            message="no study: neither a study file nor `--model` and `--workload`",
            hint="`autotune tune STUDY.yaml`, or `autotune tune --engine vllm --model M "
            "--workload W --slo 'ttft_p95 < 500ms' --budget 8h`",
        )
