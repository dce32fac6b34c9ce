"""`workload inspect | convert | synth`."""

from __future__ import annotations

from pathlib import Path

from autotune.canonical import Json
from autotune.cli.console import result, result_json, say
from autotune.cli.inputs import workload_path
from autotune.errors import InputError
from autotune.spec.units import format_duration
from autotune.workload.reader import read_trace
from autotune.workload.scenarios import make
from autotune.workload.statistics import describe
from autotune.workload.trace import Trace
from autotune.workload.writer import write_trace

MOST_LISTED = 10


def inspect(file: str, fmt: str | None, *, strict: bool, as_json: bool) -> int:
    """Print the statistics of a workload."""
    trace = read_trace(workload_path(file), format=fmt, strict=strict)
    about = describe(trace)
    if as_json:
        result_json(about)
    else:
        result(_text(about, trace))
    return 0


def convert(file: str, output: Path, fmt: str | None, *, strict: bool) -> int:
    """Write a workload in the canonical format; print where."""
    trace = read_trace(workload_path(file), format=fmt, strict=strict)
    _write(output, trace)
    _tell_skipped(trace)
    result(str(output))
    return 0


def synth(scenario: str, output: Path, *, seed: int | None, rate: float | None) -> int:
    """Make a synthetic workload; print where it is."""
    trace = make(scenario, seed=seed, rate=rate)
    _write(output, trace)
    say(f"{len(trace.requests):,} requests in {format_duration(round(trace.duration_s))}")
    result(str(output))
    return 0


def _write(output: Path, trace: Trace) -> None:
    try:
        write_trace(output, trace)
    except OSError as error:
        raise InputError(message=f"cannot write {output}", seen=error.strerror) from error


def _text(about: dict[str, Json], trace: Trace) -> str:
    reuse = about["prefix_reuse"]
    rows = [
        ("format", about["format"]),
        ("requests", f"{about['requests']:,} in {format_duration(round(about['duration_s'], 1))}"),
        ("rate", f"{about['rate_mean']:.3g}/s mean, {about['rate_peak_1s']} in the busiest second"),
        ("input", _lengths(about["input_tokens"])),
        ("output", _lengths(about["output_tokens"])),
        ("reuse", "unknown: no prefix information" if reuse is None else f"{reuse:.1%} of tokens"),
        ("sessions", about["sessions"] if about["sessions"] is not None else "none"),
    ]
    lines = [f"{name:<9} {value}" for name, value in rows]
    lines += [f"note: {note}" for note in trace.notes]
    if trace.skipped:
        lines.append(f"skipped   {len(trace.skipped)} lines")
        lines += [
            f"  line {s.line}: {s.reason.replace('_', ' ')}" for s in trace.skipped[:MOST_LISTED]
        ]
        if len(trace.skipped) > MOST_LISTED:
            lines.append(f"  ... and {len(trace.skipped) - MOST_LISTED} more")
    return "\n".join(lines)


def _lengths(about: dict[str, Json]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in about.items()) + " tokens"


def _tell_skipped(trace: Trace) -> None:
    for note in trace.notes:
        say(f"note: {note}")
    if trace.skipped:
        say(f"skipped {len(trace.skipped)} lines; `autotune workload inspect` lists them")
