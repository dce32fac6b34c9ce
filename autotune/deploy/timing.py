"""Limits derived from measured times: one place for all formats."""

from __future__ import annotations

import math

from autotune.deploy.facts import DeployFacts

UNKNOWN_STARTUP_S = 200.0
UNKNOWN_E2E_P99_S = 40.0
PRE_STOP_S = 30
"""How long a pod goes on serving after it was taken out of the Service."""


def startup_limit_s(facts: DeployFacts) -> int:
    """max(3 x measured start, 120 s), rounded up to 10 s."""
    slowest = UNKNOWN_STARTUP_S if facts.startup_seconds is None else facts.startup_seconds
    return math.ceil(max(3 * slowest, 120.0) / 10) * 10


def drain_s(facts: DeployFacts) -> int:
    """1.5 x measured p99 of end-to-end latency."""
    p99 = UNKNOWN_E2E_P99_S if facts.e2e_p99_s is None else facts.e2e_p99_s
    return math.ceil(1.5 * p99)


def grace_s(facts: DeployFacts, pre_stop_s: int = 0) -> int:
    """Time between the wish to stop and the kill: pre-stop and drain, at least 30 s."""
    return max(30, pre_stop_s + drain_s(facts))


def startup_explained(facts: DeployFacts) -> str:
    """Where the start-up limit comes from, for a comment."""
    known = facts.startup_seconds is not None
    start = f"{facts.startup_seconds:.0f} s" if known else f"unknown, {UNKNOWN_STARTUP_S:.0f} s"
    return f"max(3 x measured start ({start}), 120 s)"


def grace_explained(facts: DeployFacts) -> str:
    """Where the grace comes from, for a comment."""
    known = facts.e2e_p99_s is not None
    p99 = f"{facts.e2e_p99_s:.1f} s" if known else f"unknown, {UNKNOWN_E2E_P99_S:.0f} s"
    return f"1.5 x measured e2e p99 ({p99}), at least 30 s"
