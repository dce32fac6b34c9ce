"""A replay whose parent is killed must not go on asking the server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .conftest import Script, ScriptedServer

PARENT = """
import sys
from pathlib import Path
from autotune.clock import StopSignal, SystemClock
from autotune.replay.records import PlannedRequest
from autotune.replay.replayer import ReplayOptions, replay

plan = [PlannedRequest(index=k, due_s=k * 0.2, prompt=(1,), output_tokens=1) for k in range(200)]
replay(
    plan, url=sys.argv[1], model="m", options=ReplayOptions(), directory=Path(sys.argv[2]),
    clock=SystemClock(), stop=StopSignal(), alive=lambda: True,
)
"""


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_killed_parent_takes_its_workers_along(
    serve: Callable[..., ScriptedServer], tmp_path: Path
) -> None:
    server = serve(lambda number, body: Script(end="hang"))
    with subprocess.Popen([sys.executable, "-c", PARENT, server.url, str(tmp_path)]) as parent:
        try:
            assert until(lambda: len(server.served) >= 2)
        finally:
            parent.kill()

    assert until(lambda: server.dropped_by_client == len(server.served))
    count = len(server.served)
    time.sleep(0.4)
    assert len(server.served) == count
