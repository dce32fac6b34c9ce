"""`workload record`: the recording proxy in the foreground."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import uvloop

from autotune.canonical import Json
from autotune.cli.console import result, result_json, say
from autotune.errors import EnvironmentFault, InputError
from autotune.spec.units import format_duration
from autotune.workload.recording.options import (
    RecordOptions,
    listen_address,
    output_path,
    size_bytes,
    upstream_url,
)
from autotune.workload.recording.serving import Recording, record


def run(
    output: Path,
    *,
    listen: str,
    upstream: str,
    rotate: str,
    session_header: str,
    allow_remote: bool,
    as_json: bool,
) -> int:
    """Record until Ctrl-C or SIGTERM; print the files written, or the summary as JSON."""
    host, port = listen_address(listen, allow_remote=allow_remote)
    options = RecordOptions(
        host=host,
        port=port,
        upstream=upstream_url(upstream),
        output=output_path(output),
        rotate_bytes=size_bytes(rotate),
        session_header=session_header,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            recording = runner.run(_until_stopped(options))
    except OSError as error:
        raise InputError(
            message=f"cannot write {output}", seen=error.strerror or str(error)
        ) from error
    say(summary_text(recording))
    if as_json:
        result_json(summary_json(recording))
    else:
        result("\n".join(str(path) for path in recording.paths))
    return EnvironmentFault.exit_code if recording.summary.lost else 0


async def _until_stopped(options: RecordOptions) -> Recording:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def ready(host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        say(f"listening on http://{shown}:{port}, passing everything to {options.upstream}")
        say(f"recording to {options.output}: lengths, times and opaque ids, never text")
        say("Ctrl-C ends the recording (answers under way have 5 s)")

    return await record(options, stop, on_ready=ready)


def summary_text(recording: Recording) -> str:
    """What was recorded, for people; one fact a line, nothing that did not happen."""
    seen = recording.summary
    span = format_duration(round(recording.duration_s, 1))
    shares = f"recorded {seen.recorded:,} of {seen.requests:,} requests in {span}"
    lines = [f"{shares}, {seen.sessions:,} sessions"]
    facts = [
        (seen.cut, "were cut by their client; the answer is as long as it got"),
        (seen.estimated, "came without token counts; their lengths are estimated"),
        (seen.lost, "could not be written"),
        (recording.down, "found no engine and got 502"),
        (seen.unaccounted, "left no record: a fault of autotune's own"),
        (seen.other, "to other routes were passed on, not recorded"),
    ]
    lines += [f"  {count:,} {text}" for count, text in facts if count]
    lines += [
        f"  {count:,} not recorded: {reason.replace('_', ' ')}"
        for reason, count in sorted(seen.skipped.items())
    ]
    return "\n".join(lines)


def summary_json(recording: Recording) -> dict[str, Json]:
    """The same for programs."""
    seen = recording.summary
    return {
        "files": [str(path) for path in recording.paths],
        "duration_s": round(recording.duration_s, 3),
        "requests": seen.requests,
        "recorded": seen.recorded,
        "skipped_by_reason": dict(seen.skipped),
        "sessions": seen.sessions,
        "cut": seen.cut,
        "estimated": seen.estimated,
        "lost": seen.lost,
        "unreachable": recording.down,
        "other": seen.other,
    }
