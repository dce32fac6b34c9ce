"""Runs a recording from the first connection to the last line."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from autotune.errors import EnvironmentFault
from autotune.workload.recording.options import RecordOptions
from autotune.workload.recording.proxy import Proxy
from autotune.workload.recording.record_file import RecordFile
from autotune.workload.recording.recorder import Recorder, Summary

_SILENT = logging.getLogger("autotune.recording")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
GRACE_S = 5.0
"""After the end was asked for, answers that are under way may go on for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """How a recording ended. `down`: requests that found no engine."""

    summary: Summary
    down: int
    paths: tuple[Path, ...]
    duration_s: float


async def record(
    options: RecordOptions, stop: asyncio.Event, *, on_ready: Callable[[str, int], None]
) -> Recording:
    """Listen, pass on and record until `stop` is set. `on_ready` is told the host and the port.

    Raises EnvironmentFault when the address is taken or not this machine's, OSError when the file
    cannot be begun.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    file = RecordFile(options.output, rotate_bytes=options.rotate_bytes)
    proxy: Proxy | None = None
    try:
        recorder = Recorder(file.write)
        proxy = Proxy(options, recorder, lambda: loop.time() - start)
        runner = web.AppRunner(
            proxy.application(),
            access_log=None,
            logger=_SILENT,
            handler_cancellation=True,
            shutdown_timeout=GRACE_S,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, options.host, options.port)
            await _listen(site, options)
            on_ready(options.host, runner.addresses[0][1])
            await stop.wait()
        finally:
            await runner.cleanup()
    except EnvironmentFault:
        file.close()
        options.output.unlink(missing_ok=True)
        raise
    finally:
        file.close()
    return Recording(
        summary=recorder.summary,
        down=proxy.gate.down,
        paths=tuple(file.paths),
        duration_s=loop.time() - start,
    )


async def _listen(site: web.TCPSite, options: RecordOptions) -> None:
    try:
        await site.start()
    except OSError as error:
        where = f"{options.host}:{options.port}"
        busy = error.errno == errno.EADDRINUSE
        raise EnvironmentFault(
            message=f"cannot listen on {where}",
            seen="another process listens there" if busy else error.strerror or str(error),
            so="nothing was recorded",
            hint="name another port with --listen" if busy else None,
        ) from error
