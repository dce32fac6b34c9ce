"""Canonical JSON and content hashes: equal values have equal text, in every process."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict of the same. Never NaN or infinity."""


def canonical_json(value: Json) -> str:
    """The one JSON text of a value: sorted keys, no blanks. ValueError on NaN or infinity."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def digest(value: Json, length: int = 12) -> str:
    """The first `length` hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]
