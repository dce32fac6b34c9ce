"""A worker's share of a replay on disk: what it needs to know, and the bodies ready to send.

`shard.json` holds the limits, `jobs.jsonl` one job a line, `bodies.bin` the serialised bodies one
after another, which the worker maps into memory. None holds an API key. What comes back is
`records.jsonl`, written while the replay runs, and `report.json` at its end.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import orjson

from autotune.canonical import Json
from autotune.replay.records import PlannedRequest, RequestRecord

SHARD_FILE = "shard.json"
BODIES_FILE = "bodies.bin"
JOBS_FILE = "jobs.jsonl"
RECORDS_FILE = "records.jsonl"
REPORT_FILE = "report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A planned request without its prompt. `body_at`, `body_bytes`: where its body lies."""

    index: int
    due_s: float
    measured: bool
    input_tokens: int
    output_tokens: int
    after: int | None = None
    gap_s: float = 0.0
    session: str | None = None
    turn: int = 0
    body_at: int = 0
    body_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One worker's orders. `deadline_s`: seconds after the start when everything must be over.
    `run`: opaque prefix of request ids. `cores`: the only ones it may run on; empty: any.
    `scored`: the plan has measured requests, so that the others are background: it ends when the
    last measured one has. A worker knows that by itself only if it is `alone`. `watched`: it leaves
    snapshots of what is open (`glimpse.py`).
    """

    worker: int
    run: str
    url: str
    jobs: tuple[Job, ...]
    deadline_s: float
    connect_timeout_s: float
    first_token_timeout_s: float
    idle_timeout_s: float
    request_timeout_s: float
    fixed_length: bool
    api_key_env: str | None = None
    transport: str = "wire"
    scored: bool = False
    alone: bool = True
    cores: tuple[int, ...] = ()
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker hands back: its records, and figures about itself (seconds, bytes, counts)."""

    records: tuple[RequestRecord, ...]
    aborted: str | None
    health: Mapping[str, Json]


def jobs_of(
    requests: Sequence[PlannedRequest], bodies: Sequence[bytes]
) -> tuple[tuple[Job, ...], bytes]:
    """The jobs for `requests` and the joined bodies they point into."""
    jobs = []
    at = 0
    for request, body in zip(requests, bodies, strict=True):
        jobs.append(
            Job(
                index=request.index,
                due_s=request.due_s,
                measured=request.measured,
                input_tokens=len(request.prompt),
                output_tokens=request.output_tokens,
                after=request.after,
                gap_s=request.gap_s,
                session=request.session,
                turn=request.turn,
                body_at=at,
                body_bytes=len(body),
            )
        )
        at += len(body)
    return tuple(jobs), b"".join(bodies)


def write_shard(folder: Path, shard: Shard, bodies: bytes) -> None:
    """Write a shard into an existing folder."""
    (folder / BODIES_FILE).write_bytes(bodies)
    with (folder / JOBS_FILE).open("wb") as file:
        file.writelines(orjson.dumps(job, option=orjson.OPT_APPEND_NEWLINE) for job in shard.jobs)
    (folder / SHARD_FILE).write_bytes(orjson.dumps(replace(shard, jobs=())))


def read_shard(folder: Path) -> Shard:
    """The shard in a folder."""
    data = orjson.loads((folder / SHARD_FILE).read_bytes())
    with (folder / JOBS_FILE).open("rb") as file:
        data["jobs"] = tuple(Job(**orjson.loads(line)) for line in file)
    data["cores"] = tuple(data["cores"])
    return Shard(**data)


class Bodies:
    """The bodies of a shard, mapped from disk. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        path = folder / BODIES_FILE
        self._map: mmap.mmap | None = None
        if path.stat().st_size:  # an empty file cannot be mapped
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def of(self, job: Job) -> bytes:
        """A copy of one body."""
        if self._map is None:
            return b""
        return self._map[job.body_at : job.body_at + job.body_bytes]

    def __enter__(self) -> Bodies:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._map is not None:
            self._map.close()


class RecordLog:
    """Records on disk as they come, so that a long replay does not fill the memory. A context
    manager; nothing is readable before `close_report`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / RECORDS_FILE).open("wb", buffering=1 << 16)

    def add(self, record: RequestRecord) -> None:
        """Append one record."""
        self._file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))

    def flush(self) -> int:
        """Put on disk what was added so far. Returns the bytes of whole records there."""
        self._file.flush()
        return self._file.tell()

    def close_report(self, aborted: str | None, health: Mapping[str, Json]) -> None:
        """All records are there: leave the report, which appears whole or not at all."""
        self._file.close()
        partial = self._folder / (REPORT_FILE + ".part")
        partial.write_bytes(orjson.dumps({"aborted": aborted, "health": health}))
        partial.replace(self._folder / REPORT_FILE)

    def __enter__(self) -> RecordLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read_report(folder: Path) -> WorkerReport | None:
    """A worker's report with its records, or None if it left none."""
    path = folder / REPORT_FILE
    if not path.exists():
        return None
    data = orjson.loads(path.read_bytes())
    with (folder / RECORDS_FILE).open("rb") as file:
        records = tuple(RequestRecord(**orjson.loads(line)) for line in file)
    return WorkerReport(records=records, aborted=data["aborted"], health=data["health"])
