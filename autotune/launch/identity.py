"""What a server that answers says of itself."""

from __future__ import annotations

import httpx

TIMEOUT_S = 2.0


def served_version(url: str, route: str) -> str | None:
    """The engine version that a server names at a route such as `/version` (`{"version": ...}`);
    None if it has no such route, does not answer within two seconds, or answers otherwise.
    """
    try:
        answer = httpx.get(url.rstrip("/") + route, timeout=TIMEOUT_S, trust_env=False)
        body = answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    version = body.get("version") if isinstance(body, dict) else None
    return version if isinstance(version, str) and version else None
