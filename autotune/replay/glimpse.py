"""A look into a running replay: what has ended, and what is still open, from all its workers.

A worker that is watched leaves a snapshot beside its records twice or more a second; the parent
reads it. Every figure is a fact that later events cannot take back, so that a replay may be ended
early on the strength of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import orjson

from autotune.replay.exchange import Exchange
from autotune.replay.records import RequestRecord
from autotune.replay.shard import RECORDS_FILE, Job
from autotune.replay.stream import AnswerReader

SNAPSHOT_FILE = "open.json"
LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that was sent and has not ended. Seconds after the start of the replay.

    `first_s`, `last_s`: the earliest moments at which its first and its last token came or can
    still come. `answering`: the first token is there, so `first_s` is its moment. `unfinished`: it
    must get more tokens after `last_s` if it is to succeed; only ever true where answers have a
    fixed length and the server tells the running usage.
    """

    index: int
    due_s: float
    sent_s: float | None
    first_s: float
    last_s: float
    answering: bool
    unfinished: bool
    first_event_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """`at_s`: seconds after the start; of several workers the earliest. `ended`: the records that
    are new since the last glimpse. `open`: everything that is open now, in no order.
    """

    at_s: float
    ended: Sequence[RequestRecord]
    open: Sequence[OpenRequest]


def open_request(
    job: Job,
    exchange: Exchange,
    reader: AnswerReader,
    read: int,
    *,
    due: float,
    start: float,
    now: float,
    fixed_length: bool,
) -> OpenRequest:
    """What is known of a request in flight whose first `read` reads were interpreted.

    `due`, `start`, `now` are absolute monotonic seconds. A token that was not seen yet is in a read
    that waits, in one that is still to come, or in what the last one left incomplete.
    """
    if read < len(exchange.stamps):
        next_token = exchange.stamps[read]
    else:
        next_token = exchange.stamps[-1] if exchange.stamps and reader.incomplete else now
    first = reader.first_token
    tokens = reader.output_tokens
    answering = first is not None
    unfinished = fixed_length and (
        not answering or (tokens is not None and tokens < job.output_tokens)
    )
    last = reader.last_token if answering and not unfinished else next_token
    return OpenRequest(
        index=job.index,
        due_s=job.due_s if job.after is None else due - start,
        sent_s=None if exchange.sent is None else exchange.sent - start,
        first_s=(next_token if first is None else first) - start,
        last_s=(next_token if last is None else last) - start,
        answering=answering,
        unfinished=unfinished and job.output_tokens > 1,
        first_event_tokens=reader.first_event_tokens,
    )


def write_snapshot(
    folder: Path, *, at_s: float, records_bytes: int, requests: Sequence[OpenRequest]
) -> None:
    """Leave a worker's snapshot, which appears whole or not at all.

    `records_bytes`: how much of its records file holds whole records at this moment.
    """
    partial = folder / (SNAPSHOT_FILE + ".part")
    rows = [astuple(request) for request in requests]
    partial.write_bytes(orjson.dumps({"at_s": at_s, "bytes": records_bytes, "open": rows}))
    partial.replace(folder / SNAPSHOT_FILE)


class _Window:
    """The parent's view of one worker's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken = 0
        self.at_s: float | None = None
        self.open: list[OpenRequest] = []

    def look(self) -> list[RequestRecord]:
        """The records that are new, and `open` brought up to date. Nothing new: an empty list."""
        path = self._folder / SNAPSHOT_FILE
        if not path.exists():
            return []
        seen = orjson.loads(path.read_bytes())
        if seen["at_s"] == self.at_s:
            return []
        self.at_s = seen["at_s"]
        self.open = [OpenRequest(*row) for row in seen["open"]]
        with (self._folder / RECORDS_FILE).open("rb") as file:
            file.seek(self._taken)
            data = file.read(seen["bytes"] - self._taken)
        self._taken = seen["bytes"]
        return [RequestRecord(**orjson.loads(line)) for line in data.splitlines()]


class Lookout:
    """Watches the workers of one replay. Not a way to collect records: the reports are."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._windows = [_Window(folder) for folder in folders]
        self._told: list[float | None] = []

    def look(self) -> Glimpse | None:
        """What is to be seen now; None where nothing is new."""
        fresh = [record for window in self._windows for record in window.look()]
        times = [window.at_s for window in self._windows]
        known = [at_s for at_s in times if at_s is not None]
        if times == self._told or not known:
            return None
        self._told = times
        return Glimpse(
            at_s=min(known) if len(known) == len(times) else 0.0,
            ended=fresh,
            open=[request for window in self._windows for request in window.open],
        )
