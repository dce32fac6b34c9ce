"""Find the launch settings of an LLM inference server that serve a recorded workload best."""

from __future__ import annotations

__version__ = "0.1.0"
