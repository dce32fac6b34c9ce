"""`show`, `report`, `script`: a study on the terminal, as a page, as a launch artefact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autotune.cli.console import result, result_json, say
from autotune.cli.front_table import front_table
from autotune.cli.handover import facts_of, finish, plan_to_run, role_of, trial_to_run
from autotune.deploy.formats import FORMATS
from autotune.errors import InputError, NoFeasible
from autotune.launch.server_log import log_tail
from autotune.report.figure import changes_text, state_word
from autotune.report.numbers import duration, quantity
from autotune.report.report_json import report_json
from autotune.report.show import show_json, trial_json
from autotune.report.trial_table import TableFormat, csv_text, write_table
from autotune.report.two_studies import compare_studies, headline, render, to_json
from autotune.report.verdict_words import tell
from autotune.report.view import StudyView, TrialView, load_view, metric_of
from autotune.study.directory import StudyDirectory, write_text

LOG_LINES = 15


def report(paths: Sequence[Path], output: Path | None, *, as_json: bool) -> int:
    """Build the report (and the launch files it links to); print its path, or its numbers."""
    if len(paths) != 1 or output is not None:
        raise InputError(
            message="a report is of one study, and stands in its directory",
            seen=" ".join(map(str, paths)),
            hint="`autotune report --compare DIR DIR -o FILE` puts two side by side",
        )
    directory = StudyDirectory.existing(paths[0])
    page = finish(directory.path)
    if as_json:
        result_json(report_json(load_view(directory.path)))
    else:
        result(str(page))
    return 0


def compare(paths: Sequence[Path], output: Path | None, *, as_json: bool) -> int:
    """Put two studies side by side; print the page's path, or the numbers."""
    if len(paths) != 2:
        raise InputError(
            message=f"--compare takes two study directories, not {len(paths)}",
            hint="`autotune report --compare DIR DIR`",
        )
    two = compare_studies(*(load_view(StudyDirectory.existing(path).path) for path in paths))
    if as_json:
        result_json(to_json(two))
        return 0
    page = output or Path(f"compare-{two.first.directory.name}-{two.second.directory.name}.html")
    write_text(page, render(two))
    say(headline(two) + ".")
    for text in two.obstacles:
        say(f"  {text}")
    result(str(page))
    return 0


def table(path: Path, fmt: TableFormat, output: Path | None, *, one: bool) -> int:
    """All trials as CSV (to stdout, or to a file) or as a Parquet file."""
    if one:
        raise InputError(
            message=f"--format {fmt} writes all trials", hint="leave out `--trial`, or use `--json`"
        )
    view = load_view(StudyDirectory.existing(path).path)
    if output is not None:
        write_table(view, output, fmt)
        result(str(output))
    elif fmt == "csv":
        result(csv_text(view).rstrip("\n"))
    else:
        raise InputError(
            message="a Parquet table is a file", hint="say where it goes: `-o trials.parquet`"
        )
    return 0


def script(path: Path, number: int | None, fmt: str) -> int:
    """Print an artefact of the trial to run, or of trial `number`."""
    view = load_view(StudyDirectory.existing(path).path)
    trial = trial_to_run(view) if number is None else trial_of(view, number)
    if trial is None:
        raise NoFeasible(
            message="there is no launch to recommend: " + tell(view).headline,
            hint=f"`autotune script {path} --trial N` prints any trial's launch",
        )
    plan = plan_to_run(view, trial)
    if plan is None:
        raise InputError(message=f"trial {trial.number} was never launched: it has no plan")
    result(FORMATS[fmt](plan, facts_of(view, trial, role=role_of(view, trial))))
    return 0


def show(path: Path, number: int | None, *, as_json: bool) -> int:
    """Show all trials, or one with its log excerpt."""
    view = load_view(StudyDirectory.existing(path).path)
    if number is None:
        if as_json:
            result_json(show_json(view))
        else:
            _show_all(view)
        return 0
    trial = trial_of(view, number)
    log = log_tail(trial.folder / "server.log", LOG_LINES)
    if as_json:
        result_json({**(trial_json(view, number) or {}), "log": log})
    else:
        _show_one(view, trial, log)
    return 0


def trial_of(view: StudyView, number: int) -> TrialView:
    """A finished trial by number. Raises InputError naming those that there are."""
    trial = view.trial(number)
    if trial is None:
        known = [t.number for t in view.trials]
        seen = f"finished trials: {known[0]} to {known[-1]}" if known else "none has finished"
        raise InputError(message=f"no finished trial {number} in {view.directory}", seen=seen)
    return trial


def _show_all(view: StudyView) -> None:
    metrics = [metric_of(text) for text in (*view.objectives, *view.constraints)]
    columns = list({metric.name: metric for metric in metrics if metric is not None}.values())[:3]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("#", justify="right")
    table.add_column("end")
    table.add_column("time", justify="right")
    for metric in columns:
        table.add_column(metric.name.replace("_", " "), justify="right")
    table.add_column("changed from baseline")
    table.add_column("note")
    for trial in view.trials:
        numbers = []
        for metric in columns:
            value = trial.metric(metric)
            numbers.append("-" if value is None else quantity(value, view.units.scale(metric)))
        record = trial.record
        table.add_row(
            str(trial.number),
            state_word(trial),
            duration(record.seconds.get("total")),
            *numbers,
            changes_text(trial),
            (record.reason or "").replace("_", " "),
        )
    Console(highlight=False).print(table)
    front = front_table(view)
    if front is not None:
        say()
        say("Beaten by no other setting in every goal:")
        Console(highlight=False).print(front)
    say()
    story = tell(view)
    say(story.headline + ".")
    if view.verdict is not None and view.verdict.nearest:
        for sentence in story.sentences:
            say(f"  {sentence}")
    for end in view.dead_ends:
        say(f"  {end.sentence}")
    for name in view.unfinished:
        say(f"  {name}: running, or its run was killed")


def _show_one(view: StudyView, trial: TrialView, log: list[str]) -> None:
    record = trial.record
    lines = [f"trial {trial.number} ({record.role}): {state_word(trial)}"]
    lines += [f"  {name:<32} {value}" for name, value in record.params.items()]
    if record.message:
        lines.append(f"  why      {record.message}")
    if record.remedy:
        lines.append(f"  remedy   {record.remedy.replace('_', ' ')}")
    lines += [f"  log      {line}" for line in record.evidence]
    for text, value in record.values.items():
        metric = metric_of(text)
        lines.append(f"  {text:<32} {quantity(value, view.units.scale(metric))}")
    for text, violation in record.constraints.items():
        lines.append(f"  {text:<32} {'holds' if violation <= 0 else 'broken'}")
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in record.seconds.items())
    lines += [f"  time     {phases}", f"  folder   {trial.folder}", ""]
    lines += (trial.launch or "").splitlines()
    if log:
        lines += ["", f"last lines of server.log ({trial.folder / 'server.log'}):"]
        lines += [f"  {line}" for line in log]
    result("\n".join(lines))
