"""What a replay gives back: one record per request, and the health of the client itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autotune.canonical import Json

Failure = Literal[
    "refused",
    "connect_timeout",
    "http_4xx",
    "http_5xx",
    "over_limit",
    "in_band_error",
    "cut",
    "stall",
    "timeout",
    "wrong_length",
    "empty",
    "garbage",
    "unparsable",
    "no_usage",
    "not_sent",
]
BROKEN_OFF = "the replay was ended: "
"""How the `detail` of a request begins that the client itself broke off or never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of a replay, ready to send.

    `due_s`: seconds after the start of the replay. `prompt`: token ids. `measured`: False for
    ramp-in and warm-up requests, which are sent but never counted. `after` is the index of the
    request whose answer it waits for (then due = that answer's end + `gap_s`, but not before
    `due_s`), or None. `messages` are (role, content) pairs for the chat route, which takes no token
    ids; a plain prompt has the role "". `text` is the same as one such message.
    """

    index: int
    due_s: float
    prompt: Sequence[int]
    output_tokens: int
    measured: bool = True
    after: int | None = None
    gap_s: float = 0.0
    session: str | None = None
    turn: int = 0
    priority: int | None = None
    text: str | None = None
    messages: Sequence[tuple[str, str]] = ()

    @property
    def chat(self) -> list[tuple[str, str]]:
        """The messages to send; empty for token ids."""
        found = list(self.messages) or ([("", self.text)] if self.text is not None else [])
        return [(role or "user", content) for role, content in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What happened to one request. Times are seconds after the start of the replay (monotonic);
    None where the event never came. `failure` None means success.

    `due_s` is the moment the user would have pressed Enter; `sent_s` when the bytes were handed to
    the socket; `first_token_s`/`last_token_s` the first/last token-bearing event (role-only and
    usage-only chunks are not). `output_tokens` comes from the server's usage; `first_event_tokens`
    is the number of tokens in the first token-bearing event (1 where not reported);
    `max_gap_s` the longest gap between token-bearing events. `begun_s` is when the client took the
    request up, before any connecting: `begun_s - due_s` is the client's own lag. `first_visible_s`
    is `first_token_s` without reasoning. `retries` counts silent second attempts on a connection
    that the server had closed while idle. `answered_as` is the model that the answer names.
    """

    index: int
    due_s: float
    measured: bool
    planned_input_tokens: int
    planned_output_tokens: int
    sent_s: float | None = None
    headers_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    end_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    first_event_tokens: int = 1
    events: int = 0
    max_gap_s: float | None = None
    status: int | None = None
    failure: Failure | None = None
    detail: str | None = None
    session: str | None = None
    turn: int = 0
    worker: int = 0
    begun_s: float | None = None
    first_visible_s: float | None = None
    finish_reason: str | None = None
    retries: int = 0
    answered_as: str | None = None

    @property
    def broken_off(self) -> bool:
        """Whether the end of the replay ended it, or kept it from being sent."""
        return self.failure is not None and (self.detail or "").startswith(BROKEN_OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """Proof that the client was not the bottleneck. Lags in seconds; `cpu_share` is CPU time over
    wall time of the busiest worker.
    """

    dispatch_lag_p99_s: float | None
    loop_lag_p99_s: float | None
    cpu_share: float | None
    workers: int = 1
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProgress:
    """A glance at a running replay, for the terminal only; never scored. `total_s` is the last due
    time; answers may take longer.
    """

    elapsed_s: float
    total_s: float
    sent: int
    finished: int
    failed: int
    planned: int
    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """All records of one replay, in index order, one per planned request.

    `window_s` is (start, end) of the measured window by due time. `aborted` says why the replay was
    ended early (`server_died`, `deadline`, `stopped`, `hopeless`) or None.
    """

    records: tuple[RequestRecord, ...]
    health: ClientHealth
    window_s: tuple[float, float]
    wall_s: float
    aborted: str | None = None
