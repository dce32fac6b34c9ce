"""What the next launch will take: cold starts apart from warm ones. Pure: numbers in, numbers out.

An engine compiles anew for some settings (vLLM: `max-num-batched-tokens`, `max-num-seqs` and what
else is in the key of its compile cache). The first launch of such a setting is a cold start, every
later one finds the cache warm, and the two can differ by minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.canonical import Json, canonical_json
from autotune.search.budget import expected_launch_s

EAGER = "enforce-eager"
"""With this flag on nothing is compiled, whatever the other settings are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLaunch:
    """A launch that served. `start_s`: seconds until it was ready; `total_s`: all of it; `key`: its
    `compile_key`.
    """

    key: str
    start_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a launch is expected to take, in seconds. `cold`: its settings were not compiled yet."""

    start_s: float
    total_s: float
    cold: bool


def compile_key(params: Mapping[str, Json], flags: Sequence[str]) -> str:
    """The part of these settings that decides what is compiled. `flags`: names in that part."""
    if params.get(EAGER) is True:
        return EAGER
    return canonical_json({name: params[name] for name in sorted(flags) if name in params})


def expected(past: Sequence[PastLaunch], key: str) -> Expected | None:
    """What a launch with this key will take; None before the first launch.

    Three of four launches of its kind, cold or warm, took no longer (`expected_launch_s`). Without
    a warm start so far a cold one stands for it: nothing is begun on the hope of a warm cache.
    """
    if not past:
        return None
    seen: set[str] = set()
    cold: list[float] = []
    warm: list[float] = []
    for launch in past:
        (warm if launch.key in seen else cold).append(launch.start_s)
        seen.add(launch.key)
    is_cold = key not in seen
    start_s = expected_launch_s(cold if is_cold or not warm else warm)
    rest_s = expected_launch_s([max(0.0, launch.total_s - launch.start_s) for launch in past])
    assert start_s is not None
    assert rest_s is not None
    return Expected(start_s=start_s, total_s=start_s + rest_s, cold=is_cold)
