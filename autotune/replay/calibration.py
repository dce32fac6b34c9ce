"""What this machine's replay client can carry, measured against a server that knows; and from that,
how many workers a load needs and where they run.

The figures hold for a machine and a Python, so they are kept for a day in the user's cache folder.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

import autotune
from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.errors import Untrustworthy
from autotune.replay.crew import worker_environment
from autotune.replay.health import nearest_rank
from autotune.replay.options import ReplayOptions
from autotune.replay.records import PlannedRequest, RequestRecord
from autotune.replay.replayer import replay

FLOOR_CHUNKS_PER_S = 10_000.0
"""Events per second that one core carries on any machine worth testing on; slower ones are told
apart by a calibration."""
BUSY_SHARE = 0.4
"""Share of its capacity that a worker is planned for: above, its stamps begin to wait in line."""
WORTH_CALIBRATING = 0.1
"""A load below this share of the floor needs no measurement: one worker carries it anywhere."""
MOST_WORKERS = 16
PINNING_FROM_CORES = 4
DAY_S = 86_400.0
REQUESTS, OVER_S, TOKENS, PACE_S = 240, 1.2, 60, 0.010
"""The calibration's load: about 12,000 events per second at its height, over in two seconds."""
_CLOSE_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """`chunks_per_s`: events per second and core. `ttft_error_p50_s`, `_p99_s`: what this client
    adds to the time to first token here, waiting for its own schedule included. `measured_at`:
    seconds of the epoch.
    """

    chunks_per_s: float
    ttft_error_p50_s: float
    ttft_error_p99_s: float
    measured_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """How a load is sent: `workers` processes, one each on `cores` (empty: anywhere).

    `shared_cores`: client and engine compete for the same few cores. `expected_chunks_per_s`: the
    load if the server keeps up. `capacity`: None where the load is too small to ask.
    """

    workers: int = 1
    cores: tuple[int, ...] = ()
    shared_cores: bool = False
    expected_chunks_per_s: float | None = None
    capacity: Capacity | None = None

    def facts(self) -> dict[str, Json]:
        """For the client block of a measurement."""
        facts: dict[str, Json] = {
            "cores": list(self.cores),
            "shared_cores": self.shared_cores,
            "expected_chunks_per_s": self.expected_chunks_per_s,
        }
        if self.capacity is not None:
            facts["capacity_chunks_per_s"] = self.capacity.chunks_per_s
            facts["ttft_error_p50_s"] = self.capacity.ttft_error_p50_s
            facts["ttft_error_p99_s"] = self.capacity.ttft_error_p99_s
        return facts


def plan_client(
    expected_chunks_per_s: float,
    capacity_of: Callable[[], Capacity | None],
    *,
    cores: Sequence[int],
    local: bool,
) -> ClientPlan:
    """Workers for a load, and their cores. `cores`: those this process may use, ascending.
    `local`: the engine runs on this machine. `capacity_of` is asked only if the load is worth it.
    """
    capacity = None
    if expected_chunks_per_s >= WORTH_CALIBRATING * FLOOR_CHUNKS_PER_S:
        capacity = capacity_of()
    carried = BUSY_SHARE * (capacity.chunks_per_s if capacity else FLOOR_CHUNKS_PER_S)
    workers = min(max(1, math.ceil(expected_chunks_per_s / carried)), spare_cores(len(cores)))
    pinned = local and len(cores) >= PINNING_FROM_CORES
    return ClientPlan(
        workers=workers,
        cores=tuple(cores[-workers:]) if pinned else (),
        shared_cores=local and len(cores) < PINNING_FROM_CORES,
        expected_chunks_per_s=expected_chunks_per_s,
        capacity=capacity,
    )


def spare_cores(count: int) -> int:
    """How many of `count` cores the client may take beside an engine: half, at least one."""
    return max(1, min(count // 2, MOST_WORKERS))


def own_cores() -> tuple[int, ...]:
    """The cores that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def capacity_here(
    directory: Path, *, clock: Clock, stop: StopSignal, cache: Path | None = None
) -> Capacity | None:
    """The capacity of this machine: from the cache if it is a day young, else measured (about 3 s).

    `directory`: an existing folder for temporary files. None where it cannot be measured (the
    machine is too busy, no port to be had); never raises for that. Raises Interrupted.
    """
    path = cache or cache_file()
    now = clock.utcnow().timestamp()
    known = _cached(path)
    if known is not None and 0 <= now - known.measured_at < DAY_S:
        return known
    try:
        capacity = calibrate(directory, clock=clock, stop=stop)
    except (Untrustworthy, OSError, ValueError):
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps({"machine": machine(), **asdict(capacity)}))
    except OSError:  # a home that cannot be written costs three seconds each time, nothing else
        return capacity
    return capacity


def cache_file() -> Path:
    """Where this user's figures are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "autotune" / "client-capacity.json"


def machine() -> dict[str, Json]:
    """What the figures depend on; of another machine or Python they say nothing."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        named = (line.partition(":")[2].strip() for line in lines if "model name" in line)
        model = next(named, model)
    except OSError:
        pass
    return {
        "host": platform.node(), "cpu": model, "cores": len(own_cores()),
        "python": platform.python_version(), "autotune": autotune.__version__,
    }  # fmt: skip


def _cached(path: Path) -> Capacity | None:
    try:
        found = orjson.loads(path.read_bytes())
        if found.pop("machine") != machine():
            return None
        return Capacity(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def calibrate(directory: Path, *, clock: Clock, stop: StopSignal) -> Capacity:
    """Put a known load on a bundled server and compare. Raises Untrustworthy, OSError, Interrupted,
    and ValueError if hardly anything was answered.
    """
    plan = [
        PlannedRequest(
            index=k, due_s=k * OVER_S / REQUESTS, prompt=range(128), output_tokens=TOKENS
        )
        for k in range(REQUESTS)
    ]
    cores = own_cores()
    apart = len(cores) > 1
    with truth_server(pace_s=PACE_S, core=cores[0] if apart else None) as (url, log):
        result = replay(
            plan, url=url, model="truth", directory=directory, clock=clock, stop=stop,
            options=ReplayOptions(drain_timeout_s=3.0, cores=cores[-1:] if apart else ()),
            alive=lambda: True,
        )  # fmt: skip
    errors = sorted(ttft_errors(result.records, log))
    chunks = sum(record.events for record in result.records)
    median, tail = nearest_rank(errors, 0.5), nearest_rank(errors, 0.99)
    cpu_s = float(result.health.extra["cpu_s"])
    if median is None or tail is None or len(errors) < REQUESTS // 2 or cpu_s <= 0:
        raise ValueError("the calibration's requests were not answered")
    return Capacity(
        chunks_per_s=chunks / cpu_s,
        ttft_error_p50_s=median,
        ttft_error_p99_s=tail,
        measured_at=clock.utcnow().timestamp(),
    )


def ttft_errors(
    records: Sequence[RequestRecord], truths: Sequence[Mapping[str, Any]]
) -> Iterator[float]:
    """Per answered request, seconds: our `ttft` (from its due time) minus the server's."""
    served = {int(truth["id"].rpartition("-")[2]): truth for truth in truths}
    for record in records:
        truth = served.get(record.index)
        if record.failure is None and record.first_token_s is not None and truth is not None:
            yield (record.first_token_s - record.due_s) - (truth["first"] - truth["arrived"])


@contextmanager
def truth_server(
    *, pace_s: float = 0.020, core: int | None = None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A running truth server: its address, and a list that holds its log once the context is left.

    Raises OSError if it cannot be started.
    """
    command = [sys.executable, "-P", "-m", "autotune.replay.truth_server"]
    command += ["--pace-ms", f"{1000 * pace_s:g}"]
    if core is not None:
        command += ["--core", str(core)]
    with tempfile.TemporaryDirectory(prefix="autotune-truth-") as scratch:
        log = Path(scratch) / "log.json"
        process = subprocess.Popen(
            [*command, "--log", str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, start_new_session=True, env=worker_environment(),
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        truths: list[dict[str, Any]] = []
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise OSError("the truth server did not start")
            yield address, truths
            process.stdin.close()
            process.wait(_CLOSE_WITHIN_S)
            truths.extend(orjson.loads(log.read_bytes()))
        except subprocess.TimeoutExpired as error:
            raise OSError("the truth server did not end") from error
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
