"""SGLang."""

from __future__ import annotations

from autotune.engines.known_engine import KnownEngine


class SglangEngine(KnownEngine):
    """An SGLang server. Every launch serves `/metrics` unless the study says otherwise."""

    kind: str = "sglang"
