"""The commands of `autotune workload`: names and flags. What they do lives in `workloads` and
`recording`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

workload_app = typer.Typer(
    help="Recorded workloads: look at them, convert them, make them, record them.",
    no_args_is_help=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
WorkloadFile = Annotated[str, typer.Argument(help="Workload file, or a shipped one's name.")]
Canonical = typer.Option("--output", "-o", help="Canonical .jsonl or .jsonl.zst.")
Format = Annotated[str | None, typer.Option("--format", help="Read as this format.")]
Strict = Annotated[bool, typer.Option(help="Refuse a file with unusable lines.")]
TimeUnit = Annotated[
    Literal["ms", "s"] | None, typer.Option("--time-unit", help="Unit of plain numbers of time.")
]
BlockSize = Annotated[
    int | None, typer.Option("--block-size", min=1, help="Prompt tokens per block id.")
]


OutputTokens = Annotated[
    int | None, typer.Option(min=1, help="Answer length of rows that state none.")
]
TokenizerPath = Annotated[
    Path | None, typer.Option(help="Model folder or tokenizer.json that counts text.")
]
ChosenArrivals = Annotated[
    Literal["poisson", "gamma", "constant"] | None,
    typer.Option("--arrivals", help="Choose arrivals, for files that record none."),
]
Rate = Annotated[float | None, typer.Option(help="Requests per second.")]
Seed = Annotated[int, typer.Option(help="Seed of chosen arrivals.")]


@workload_app.command("inspect")
def workload_inspect(
    file: WorkloadFile,
    fmt: Format = None,
    strict: Strict = False,
    time_unit: TimeUnit = None,
    block_size: BlockSize = None,
    output_tokens: OutputTokens = None,
    tokenizer: TokenizerPath = None,
    arrivals: ChosenArrivals = None,
    rate: Rate = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Look at a workload: rate, lengths, arrivals, prefix reuse, what was skipped."""
    from autotune.cli import workloads

    how = workloads.Reading(
        format=fmt, strict=strict, time_unit=time_unit, block_size=block_size,
        output_tokens=output_tokens, tokenizer=tokenizer, arrivals=arrivals, rate=rate, seed=seed,
    )  # fmt: skip
    raise typer.Exit(workloads.inspect(file, how, as_json=as_json))


@workload_app.command("convert")
def workload_convert(
    file: WorkloadFile,
    output: Annotated[Path, Canonical],
    fmt: Format = None,
    strict: Strict = False,
    time_unit: TimeUnit = None,
    block_size: BlockSize = None,
    output_tokens: OutputTokens = None,
    tokenizer: TokenizerPath = None,
    arrivals: ChosenArrivals = None,
    rate: Rate = None,
    seed: Seed = 0,
    keep_text: Annotated[
        bool, typer.Option("--keep-text", help="Keep the text of prompts in the output.")
    ] = False,
) -> None:
    """Write a workload in the canonical format: lengths and opaque block ids, no text unasked."""
    from autotune.cli import workloads

    how = workloads.Reading(
        format=fmt, strict=strict, time_unit=time_unit, block_size=block_size,
        output_tokens=output_tokens, tokenizer=tokenizer, arrivals=arrivals, rate=rate, seed=seed,
    )  # fmt: skip
    raise typer.Exit(workloads.convert(file, output, how, keep_text=keep_text))


@workload_app.command("synth")
def workload_synth(
    scenario: Annotated[str | None, typer.Argument(help="Which scenario; see --list.")] = None,
    output: Annotated[Path | None, Canonical] = None,
    seed: Annotated[int | None, typer.Option(help="Seed.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second.")] = None,
    duration: Annotated[str | None, typer.Option(help="How long, such as 5m.")] = None,
    arrivals: Annotated[
        Literal["poisson", "gamma", "constant", "recorded"] | None,
        typer.Option(help="How requests (pairs, dialogues, bursts) come."),
    ] = None,
    arrivals_from: Annotated[
        str | None, typer.Option(help="A workload whose arrival times are taken.")
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="Name the scenarios.")] = False,
) -> None:
    """Make a synthetic workload of a known scenario."""
    from autotune.cli import workloads

    if names:
        raise typer.Exit(workloads.scenarios())
    raise typer.Exit(
        workloads.synth(
            scenario, output, seed=seed, rate=rate, duration=duration, arrivals=arrivals,
            arrivals_from=arrivals_from,
        )
    )  # fmt: skip


@workload_app.command("record")
def workload_record(
    upstream: Annotated[str, typer.Option(help="Base address of the running engine.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new .jsonl file.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT for clients.")] = "127.0.0.1:9000",
    rotate: Annotated[str, typer.Option(help="Begin a new file at this size.")] = "64MB",
    session_header: Annotated[
        str, typer.Option(help="Header that names a client's session.")
    ] = "x-session-id",
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Let other machines reach the proxy.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Record live traffic through a pass-through proxy: lengths, times, opaque ids, never text."""
    from autotune.cli import recording

    raise typer.Exit(
        recording.run(
            output, listen=listen, upstream=upstream, rotate=rotate,
            session_header=session_header, allow_remote=allow_remote, as_json=as_json,
        )
    )  # fmt: skip
