"""A trace: what was asked of the server, when, without any text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.canonical import Json

Message = tuple[str, str]
"""(role, content) of a chat message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One recorded request.

    `at_s`: seconds from the start of the trace. `input_tokens`, `output_tokens`: token counts.
    `blocks`: one opaque id per `block_size` prompt tokens (the last may be partial); an id stands
    for the block and everything before it, so equal leading ids are equal prompt prefixes; empty
    when unknown. `session`, `turn`, `gap_s`: turn k+1 follows the answer of turn k after `gap_s`
    seconds; a later turn without a gap follows it at once, but not before `at_s`. `messages`:
    (role, content) pairs, only when the user asked for the text to be kept. `line` is where it
    stood in the source file (from 1).
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    session: str | None = None
    turn: int = 0
    gap_s: float | None = None
    priority: int | None = None
    line: int = 0
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A source line that was not used, and why (snake_case reason)."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A whole recording: requests ordered by time (ties in file order), first at 0 s.

    `block_size` is the number of prompt tokens per id of `Request.blocks`. `source_format` names
    the reader. `notes` are sentences a user should read (units inferred, buckets found).
    """

    requests: tuple[Request, ...]
    block_size: int = 512
    source_format: str = "canonical"
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    meta: Mapping[str, Json] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """Time from the first to the last arrival; 0 for fewer than two requests."""
        return self.requests[-1].at_s - self.requests[0].at_s if self.requests else 0.0

    @property
    def has_text(self) -> bool:
        """Whether every request carries its text, so that real prompts can be sent."""
        return bool(self.requests) and all(request.messages for request in self.requests)
