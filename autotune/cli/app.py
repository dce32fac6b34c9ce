"""The command line: names, flags and exit codes. What a command does lives in its own module.

Exit codes: 0 a recommendation (or "keep the baseline") stands; 2 bad input; 3 no candidate meets
the limits; 4 environment fault; 5 measurement not trustworthy; 130 interrupted (resumable).
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from autotune import __version__
from autotune.cli.workload_app import workload_app
from autotune.errors import AutotuneError, EnvironmentFault, Interrupted

Progress = Literal["auto", "live", "plain", "none"]

app = typer.Typer(
    name="autotune",
    help="Find the launch settings of an LLM inference server that serve your recorded traffic "
    "best, and prove it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
space_app = typer.Typer(help="Search spaces: what may vary, and why.", no_args_is_help=True)
app.add_typer(workload_app, name="workload")
app.add_typer(space_app, name="space")

StudyFile = Annotated[Path | None, typer.Argument(metavar="[STUDY.yaml]", help="A study file.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A study directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Show = Annotated[Progress, typer.Option("--progress", help="How progress is shown.")]

STUDY_OPTIONS: dict[str, str] = {
    "engine": "engine.kind",
    "launcher": "engine.launcher",
    "image": "engine.image",
    "model": "model",
    "workload": "workload.path",
    "window": "workload.window",
    "space": "space",
    "baseline": "baseline",
    "objective": "objective",
    "slo": "constraints",
    "budget": "budget.time",
    "trials": "budget.trials",
    "seed": "search.seed",
    "repeats": "search.repeats",
    "name": "name",
}
"""Option -> where it goes in the study; a flag outranks the study file."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning"],
        typer.Option(
            "--log-level", help="debug writes the traceback of a fault of autotune's own."
        ),
    ] = "warning",
) -> None:
    """Options of every command."""
    Settings.debug = log_level == "debug"


class Settings:
    """What the root options set for this process."""

    debug = False


def study_flags(values: dict[str, Any]) -> dict[str, Any]:
    """Options as dotted paths of the study; those not given are left out."""
    flags = {STUDY_OPTIONS[name]: value for name, value in values.items() if name in STUDY_OPTIONS}
    given = {path: value for path, value in flags.items() if value not in (None, [])}
    for path in ("objective", "constraints"):
        if path in given:
            given[path] = list(given[path])
    return given


Engine = Annotated[str | None, typer.Option(help="vllm, sglang, generic or a simulated one.")]
LauncherKind = Annotated[str | None, typer.Option(help="process or docker.")]
Image = Annotated[str | None, typer.Option(help="Container image (launcher docker).")]
Model = Annotated[str | None, typer.Option(help="Model name or folder.")]
Workload = Annotated[str | None, typer.Option(help="Workload file, or a shipped one's name.")]
Window = Annotated[str | None, typer.Option(help="Length of the replayed window, such as 120s.")]
Space = Annotated[str | None, typer.Option(help="Search space: a shipped name or a file.")]
Baseline = Annotated[
    str | None, typer.Option(help="What runs today: a launch command, or a script's path.")
]
Objective = Annotated[
    list[str] | None, typer.Option(help="Such as 'minimize ttft_p95'; up to three.")
]
Slo = Annotated[list[str] | None, typer.Option(help="A limit, such as 'ttft_p95 < 500ms'.")]
BudgetTime = Annotated[str | None, typer.Option(help="Time for the whole study, such as 8h.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Trials of the search at most.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the search.")]
Repeats = Annotated[int | None, typer.Option(min=0, help="Paired launches that confirm the best.")]
Name = Annotated[str | None, typer.Option(help="Name of the study.")]


@app.command()
def tune(
    study: StudyFile = None,
    engine: Engine = None,
    launcher: LauncherKind = None,
    image: Image = None,
    model: Model = None,
    workload: Workload = None,
    window: Window = None,
    space: Space = None,
    baseline: Baseline = None,
    objective: Objective = None,
    slo: Slo = None,
    budget: BudgetTime = None,
    trials: Trials = None,
    seed: Seed = None,
    repeats: Repeats = None,
    name: Name = None,
    out: Annotated[
        Path | None, typer.Option(help="Study directory; default runs/DATE-NAME.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="As `plan`: start nothing.")] = False,
    progress: Show = "auto",
    as_json: AsJson = False,
) -> None:
    """Plan, check, run and report a study; print its directory."""
    from autotune.cli import tuning

    flags = study_flags(locals())
    tuning.refuse_both(study, flags)
    if dry_run:
        raise typer.Exit(tuning.plan(study, flags, as_json=as_json))
    raise typer.Exit(tuning.tune(study, flags, out=out, progress=progress, as_json=as_json))


@app.command()
def plan(
    study: StudyFile = None,
    engine: Engine = None,
    launcher: LauncherKind = None,
    image: Image = None,
    model: Model = None,
    workload: Workload = None,
    window: Window = None,
    space: Space = None,
    baseline: Baseline = None,
    objective: Objective = None,
    slo: Slo = None,
    budget: BudgetTime = None,
    trials: Trials = None,
    seed: Seed = None,
    repeats: Repeats = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that `tune` would do; start nothing."""
    from autotune.cli import tuning

    flags = study_flags(locals())
    tuning.refuse_both(study, flags)
    raise typer.Exit(tuning.plan(study, flags, as_json=as_json))


@app.command()
def resume(
    directory: Directory,
    budget: BudgetTime = None,
    trials: Trials = None,
    repeats: Repeats = None,
    progress: Show = "auto",
    as_json: AsJson = False,
) -> None:
    """Continue a study after any kind of death, or beyond its end with a larger budget."""
    from autotune.cli import tuning

    flags = study_flags(locals())
    raise typer.Exit(tuning.resume(directory, flags, progress=progress, as_json=as_json))


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(help="A study directory; two to compare.")],
    compare: Annotated[
        bool, typer.Option("--compare", help="Two studies of the same traffic, side by side.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where the comparison goes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build report.html (again), also while the study runs; print its path."""
    from autotune.cli import showing

    if compare:
        raise typer.Exit(showing.compare(directories, output, as_json=as_json))
    raise typer.Exit(showing.report(directories, output, as_json=as_json))


@app.command()
def script(
    directory: Directory,
    trial: Annotated[int | None, typer.Option(help="Any trial instead of the best.")] = None,
    fmt: Annotated[
        Literal["bash", "docker", "compose", "k8s", "systemd", "argv"],
        typer.Option("--format", help="Which artefact."),
    ] = "bash",
) -> None:
    """Print the launch artefact of the best trial, or of any other."""
    from autotune.cli import showing

    raise typer.Exit(showing.script(directory, trial, fmt))


@app.command()
def show(
    directory: Directory,
    trial: Annotated[int | None, typer.Option(help="One trial, with its log excerpt.")] = None,
    fmt: Annotated[
        Literal["text", "json", "csv", "parquet"],
        typer.Option("--format", help="All trials as text, JSON or a table file."),
    ] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the table there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the trials of a study, or one of them."""
    from autotune.cli import showing

    if fmt in ("csv", "parquet"):
        raise typer.Exit(showing.table(directory, fmt, output, one=trial is not None))
    raise typer.Exit(showing.show(directory, trial, as_json=as_json or fmt == "json"))


@app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Start best/launch.sh as a user would, replay, compare with the recorded numbers."""
    from autotune.cli import verifying

    raise typer.Exit(verifying.verify(directory, as_json=as_json))


@app.command()
def replay(
    url: Annotated[str, typer.Option(help="Base address of a running server.")],
    workload: Annotated[str, typer.Option(help="Workload file, or a shipped one's name.")],
    model: Annotated[str | None, typer.Option(help="Served model; asked for if left out.")] = None,
    window: Window = None,
    time_scale: Annotated[float, typer.Option(help="Above 1: faster than recorded.")] = 1.0,
    slo: Slo = None,
    html: Annotated[Path | None, typer.Option(help="Write a page of its own.")] = None,
    records: Annotated[
        Path | None, typer.Option(help="Keep the record of every request (Parquet).")
    ] = None,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="Find the highest rate that meets the limits.")
    ] = False,
    compare_vllm_bench: Annotated[
        bool, typer.Option("--compare-vllm-bench", help="Ask vLLM's own client, too.")
    ] = False,
    bench_command: Annotated[str | None, typer.Option(help="Its program; default: vllm.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Default: the model.")] = None,
    progress: Show = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure a running server; launch nothing."""
    from autotune.cli import replaying

    output = replaying.ReplayOutput(
        as_json=as_json, progress=progress, html=html, records=records, bench=compare_vllm_bench,
        bench_command=bench_command, tokenizer=tokenizer,
    )  # fmt: skip
    raise typer.Exit(
        replaying.replay(
            url, workload, model=model, window=window, time_scale=time_scale, slo=slo or [],
            output=output, capacity=capacity,
        )
    )  # fmt: skip


@app.command()
def diagnose(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="An engine's log file.")],
    engine: Annotated[str, typer.Option(help="vllm, sglang, generic or a simulated one.")] = "vllm",
    exit_code: Annotated[int | None, typer.Option(help="How the process ended.")] = None,
    phase: Annotated[
        Literal["startup", "load"] | None, typer.Option(help="When; read from the log if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say why an engine failed, from its log."""
    from autotune.cli import diagnosing

    raise typer.Exit(diagnosing.diagnose(log, engine, exit_code, phase, as_json=as_json))


@app.command()
def doctor(
    engine: Annotated[str | None, typer.Option(help="Look for this engine, too.")] = None,
    command: Annotated[str | None, typer.Option(help="How the engine is started.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the machine: docker, GPU, ports, disk, limits, leftovers; each with what to type."""
    from autotune.cli import doctoring

    raise typer.Exit(doctoring.doctor(engine=engine, command=command, as_json=as_json))


@space_app.command("show")
def space_show(
    space: Annotated[str, typer.Argument(help="A shipped space's name, or a file.")],
    as_json: AsJson = False,
) -> None:
    """Show a space: knobs, values, conditions, rules, and why."""
    from autotune.cli import spaces

    raise typer.Exit(spaces.show(space, as_json=as_json))


@space_app.command("check")
def space_check(
    space: Annotated[str, typer.Argument(help="A shipped space's name, or a file.")],
    engine: Annotated[str | None, typer.Option(help="Engine; default: the space's own.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Such as 0.26.0.")] = None,
    command: Annotated[str | None, typer.Option(help="Ask this program for its flags.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a space: its form, and flags that an engine version does not have."""
    from autotune.cli import spaces

    raise typer.Exit(spaces.check(space, engine, engine_version, command, as_json=as_json))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the one place where exceptions become messages and exit codes."""
    try:
        app(args=arguments)
    except AutotuneError as error:
        from autotune.cli.console import say, show_error

        if isinstance(error, Interrupted):
            say(error.message)
        else:
            show_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        from autotune.cli.console import show_error

        show_error(_machine_fault(error))
        sys.exit(EnvironmentFault.exit_code)
    except Exception as error:  # noqa: BLE001 - the one boundary: a user never sees a traceback
        sys.exit(_own_fault(error))


def _machine_fault(error: OSError) -> EnvironmentFault:
    """A full disk, a folder that may not be written: whatever a command did not foresee."""
    where = f": {error.filename}" if error.filename else ""
    return EnvironmentFault(message=f"{(error.strerror or str(error)).lower()}{where}")


def _own_fault(error: Exception) -> int:
    """Say that this is a fault of autotune's own; the traceback goes to a file on request."""
    from autotune.cli.console import say

    say(f"error: autotune met a fault of its own: {type(error).__name__}: {error}")
    if Settings.debug:
        log = Path("autotune-fault.log")
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        say(f"  seen: the traceback is in {log}")
    else:
        say("\nhint: `autotune --log-level debug ...` writes the traceback to autotune-fault.log")
    return 1
