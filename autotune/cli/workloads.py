"""`workload inspect | convert | synth`; `workload record` is in `recording`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune.canonical import Json
from autotune.cli.console import result, result_json, say
from autotune.cli.inputs import workload_path
from autotune.errors import InputError
from autotune.spec.units import format_duration, parse_duration
from autotune.workload.columns import Columns, read_columns
from autotune.workload.formats.format import TimeUnit
from autotune.workload.reader import read_trace
from autotune.workload.scenarios import SCENARIOS, make
from autotune.workload.statistics import describe_columns
from autotune.workload.synthesis import Arrivals as ArrivalsKind
from autotune.workload.synthesis import Process
from autotune.workload.timing import Arrivals
from autotune.workload.trace import Trace
from autotune.workload.writer import write_trace

MOST_LISTED = 10
GAMMA = 0.5
"""Shape of gamma arrivals where none is stated: burstier than Poisson."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a file is to be read, as the user said; see `workload.reader.read_trace`."""

    format: str | None = None
    strict: bool = False
    time_unit: TimeUnit | None = None
    block_size: int | None = None
    output_tokens: int | None = None
    tokenizer: Path | None = None
    arrivals: Literal["poisson", "gamma", "constant"] | None = None
    rate: float | None = None
    seed: int = 0

    def options(self) -> dict[str, Any]:
        """Arguments of the readers. Raises InputError for arrivals without a rate."""
        return {
            "format": self.format,
            "strict": self.strict,
            "time_unit": self.time_unit,
            "block_size": self.block_size,
            "output_tokens": self.output_tokens,
            "tokenizer": self.tokenizer,
            "arrivals": self._arrivals(),
        }

    def _arrivals(self) -> Arrivals | None:
        if self.arrivals is None and self.rate is None:
            return None
        if self.rate is None or self.rate <= 0:
            raise InputError(
                message="chosen arrivals need a rate above 0",
                hint=f"--arrivals {self.arrivals} --rate 2",
            )
        kind = self.arrivals or "poisson"
        burstiness = GAMMA if kind == "gamma" else 1.0
        process = Process(kind=kind, rate=self.rate, burstiness=burstiness)
        return Arrivals(process=process, seed=self.seed)


def inspect(file: str, how: Reading, *, as_json: bool) -> int:
    """Print the statistics of a workload, and pictures of it for people."""
    columns = read_columns(workload_path(file), **how.options())
    about = describe_columns(columns)
    if as_json:
        result_json(about)
    else:
        result(_text(about))
        _draw(columns)
    return 0


def convert(file: str, output: Path, how: Reading, *, keep_text: bool) -> int:
    """Write a workload in the canonical format; print where."""
    trace = read_trace(workload_path(file), keep_text=keep_text, **how.options())
    _write(output, trace)
    _tell_skipped(trace)
    result(str(output))
    return 0


def scenarios() -> int:
    """Print the scenarios, one a line."""
    width = max(map(len, SCENARIOS))
    result("\n".join(f"{name:<{width}}  {SCENARIOS[name].title}" for name in sorted(SCENARIOS)))
    return 0


def synth(
    scenario: str | None,
    output: Path | None,
    *,
    seed: int | None,
    rate: float | None,
    duration: str | None,
    arrivals: ArrivalsKind | None,
    arrivals_from: str | None,
) -> int:
    """Make a synthetic workload; print where it is."""
    if scenario is None or output is None:
        raise InputError(
            message="synth needs a scenario and a file to write",
            hint="`autotune workload synth chat-short -o chat.jsonl`; "
            "`autotune workload synth --list` names the scenarios",
        )
    if arrivals_from is not None and arrivals not in (None, "recorded"):
        raise InputError(
            message=f"arrivals are either {arrivals} or those of a file",
            hint="leave out --arrivals or --arrivals-from",
        )
    recorded: list[float] = []
    if arrivals_from is not None:
        recorded = [r.at_s for r in read_trace(workload_path(arrivals_from)).requests]
    try:
        duration_s = None if duration is None else parse_duration(duration)
    except ValueError as error:
        raise InputError(message=f"--duration: {error}", seen=duration) from error
    trace = make(
        scenario,
        seed=seed,
        rate=rate,
        duration_s=duration_s,
        arrivals=arrivals,
        recorded=recorded,
    )
    _write(output, trace)
    say(f"{len(trace.requests):,} requests in {format_duration(round(trace.duration_s))}")
    result(str(output))
    return 0


def _draw(columns: Columns) -> None:
    """The pictures, as wide as the terminal (100 at most), in ASCII where it shows nothing else."""
    from rich.console import Console
    from rich.text import Text

    from autotune.cli.sketches import Pen, sketch

    console = Console(highlight=False, soft_wrap=True)
    ascii_only = not console.encoding.lower().replace("-", "").startswith("utf8")
    pen = Pen(width=min(100, max(60, console.width)), ascii_only=ascii_only)
    console.print()
    for line in sketch(columns, pen):
        text = Text(line)
        text.highlight_regex(f"[{re.escape(pen.bar + pen.sparks[1:])}]+", "cyan")
        console.print(text if console.is_terminal else line, markup=False)


def _write(output: Path, trace: Trace) -> None:
    try:
        write_trace(output, trace)
    except OSError as error:
        raise InputError(message=f"cannot write {output}", seen=error.strerror) from error


def _text(about: dict[str, Json]) -> str:
    reuse, peak = about["prefix_reuse"], about["rate_peak_1s"]
    span = format_duration(round(about["duration_s"], 1))
    mean = "" if about["rate_mean"] is None else f"{about['rate_mean']:.3g}/s mean, "
    rows = [
        ("format", about["format"]),
        ("requests", f"{about['requests']:,}" + ("" if peak is None else f" in {span}")),
        ("rate", "unknown" if peak is None else f"{mean}{peak:,} in the busiest second"),
        ("input", _lengths(about["input_tokens"])),
        ("output", _lengths(about["output_tokens"])),
        ("reuse", "unknown: no prefix information" if reuse is None else f"{reuse:.1%} of tokens"),
        ("sessions", about["sessions"] if about["sessions"] is not None else "none"),
    ]
    lines = [f"{name:<9} {value}" for name, value in rows]
    lines += [f"note: {note}" for note in about["notes"]]
    skipped = about["skipped"]
    if skipped:
        reasons = about["skipped_by_reason"].items()
        told = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in reasons)
        lines.append(f"skipped   {len(skipped):,} lines: {told}")
        lines += [
            f"  line {s['line']}: {s['reason'].replace('_', ' ')}" for s in skipped[:MOST_LISTED]
        ]
        if len(skipped) > MOST_LISTED:
            lines.append(f"  ... and {len(skipped) - MOST_LISTED:,} more")
    return "\n".join(lines)


def _lengths(about: dict[str, Json]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in about.items()) + " tokens"


def _tell_skipped(trace: Trace) -> None:
    for note in trace.notes:
        say(f"note: {note}")
    if trace.skipped:
        say(f"skipped {len(trace.skipped)} lines; `autotune workload inspect` lists them")
