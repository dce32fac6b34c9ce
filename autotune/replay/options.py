"""How a replay is run: limits, route and body options, shared by the parent and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.canonical import Json

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """All limits in seconds, each per request except `drain_timeout_s`: the whole replay ends that
    long after its last due time.

    `first_token_timeout_s` runs from the send to the first token-bearing event, `idle_timeout_s`
    between reads afterwards, `request_timeout_s` over the whole request. `cache_salt` keeps passes
    apart in the engine's prefix cache. `extra_body` is merged into every body last. The API key is
    read from the environment variable `api_key_env` by each worker, never written down.
    `fixed_length`: force the planned output length and count any other as a failure.
    `continuous_usage`: ask for cumulative token counts in every event. `send_priority`: engines
    without priority scheduling refuse requests that carry one. `window_s`: (start, end) of the
    measured window by due time; None derives it from the measured requests. `transport`: `wire` is
    our own HTTP client, `aiohttp` the general one. `cores`: where workers may run, one core each
    in turn; empty leaves them to the system.
    """

    workers: int = 1
    route: str = COMPLETIONS
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 120.0
    idle_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    drain_timeout_s: float = 60.0
    cache_salt: str | None = None
    extra_body: Mapping[str, Json] = field(default_factory=dict)
    api_key_env: str | None = None
    fixed_length: bool = True
    continuous_usage: bool = True
    send_priority: bool = False
    window_s: tuple[float, float] | None = None
    transport: Literal["wire", "aiohttp"] = "wire"
    cores: tuple[int, ...] = ()
