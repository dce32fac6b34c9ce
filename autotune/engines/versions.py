"""Version numbers of engines as facts use them: "0.17" holds for 0.17.3."""

from __future__ import annotations

import re


def written_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version as written, trailing zeros too: "v0.26.0rc1+cpu" -> (0, 26, 0)."""
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in numbers[1].split(".")) if numbers else ()


def applies(version: str | None, since: str | None = None, until: str | None = None) -> bool:
    """Whether a fact that holds from `since` to `until` (both included, as far as they are written:
    until 0.17 includes 0.17.3) holds for `version`. An unknown version is given the benefit.
    """
    key = written_numbers(version) if version else ()
    if not key:
        return True
    if since is not None and key < written_numbers(since):
        return False
    last = written_numbers(until) if until is not None else None
    return last is None or key[: len(last)] <= last
