"""Secrets written out in a user's file never reach an error text."""

from __future__ import annotations

import re

SECRET_KEY = re.compile(
    r"(?i)(?:^|[^a-z])(?:token|secret|password|passwd|api[-_]?key|apikey|authorization|credentials?)"
    r"(?:[-_](?:value|id|string))?$"
)
"""Names (flags, variables) whose values are secrets; `max-num-batched-tokens` is not one."""

_PAIR = re.compile(
    r"(?i)((?:^|[^a-z])(?:token|secret|password|passwd|api[-_]?key|apikey|authorization|credentials?)"
    r"[\"']?\s*[:= ]\s*[\"']?)((?:bearer\s+)?[^\s\"'{}\[\],#]{6,})"
)


def mask_secrets(line: str) -> str:
    """The line with the values behind secret names replaced by as many `*` (columns stay)."""
    return _PAIR.sub(lambda match: match[1] + "*" * len(match[2]), line)
