"""One request on the wire, as it happened: stamps and bytes, nothing interpreted yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from autotune.replay.records import Failure


@dataclass(slots=True)
class Exchange:
    """Filled in by a `Transport` while the request runs. Times are absolute seconds of
    `time.monotonic`; `stamps[i]` is when `chunks[i]` was read. `fault` is set when the exchange
    itself failed (not when the answer reports a failure); whoever sets it first is right.
    `reused`: the connection had carried a request before. `retries`: silent second attempts.
    """

    begun: float
    request_id: str = ""
    sent: float | None = None
    headers: float | None = None
    status: int | None = None
    content_type: str = ""
    stamps: list[float] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    end: float | None = None
    fault: Failure | None = None
    detail: str | None = None
    reused: bool = False
    retries: int = 0

    def fail(self, fault: Failure, detail: str) -> None:
        """Record the first fault; later ones are its consequences."""
        if self.fault is None:
            self.fault, self.detail = fault, detail


class Transport(Protocol):
    """How bytes reach the server."""

    async def open(self) -> None:
        """Get ready; called once, before the first `send`."""
        ...

    async def prepare(self, count: int) -> None:
        """Have up to `count` open connections at hand, so that requests due soon need not connect.
        Failing to is no fault; a transport that cannot do it does nothing.
        """
        ...

    async def send(self, body: bytes, exchange: Exchange) -> None:
        """POST `body` and fill `exchange` until the answer ends. Network failures become
        `exchange.fault`, never an exception. Cancelling it closes the connection.
        """
        ...

    async def close(self) -> None:
        """Drop all connections."""
        ...
