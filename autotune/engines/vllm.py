"""vLLM."""

from __future__ import annotations

from autotune.engines.known_engine import KnownEngine


class VllmEngine(KnownEngine):
    """A vLLM server."""

    kind: str = "vllm"
