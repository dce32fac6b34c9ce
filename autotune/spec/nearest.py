"""The nearest known name to one that is unknown: what an error offers instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_CLOSE = 0.7
_AS_CLOSE = 0.03


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """At most two known names, closest first, and only if close enough to be meant.

    A second name is given only when it is about as close as the first. Words in another order
    (`p95_ttft`) count as close.
    """
    scored = [(closeness(name, candidate), candidate) for candidate in dict.fromkeys(known)]
    scored.sort(key=lambda item: (-item[0], item[1]))
    if not scored or scored[0][0] < _CLOSE:
        return []
    best = scored[0][0]
    return [candidate for score, candidate in scored[:2] if score >= best - _AS_CLOSE]


def closeness(left: str, right: str) -> float:
    """How alike two names are, 0 to 1; 1 for the same words in any order and spelling."""
    one, other = (text.lower().replace("_", "-") for text in (left, right))
    if sorted(one.split("-")) == sorted(other.split("-")):
        return 1.0
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def offer(name: str, known: Iterable[str]) -> str:
    """`; nearest: a, b`, or nothing when no known name is close."""
    names = nearest(name, known)
    return f"; nearest: {', '.join(names)}" if names else ""
