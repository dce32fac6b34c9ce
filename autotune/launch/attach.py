"""Servers that run already: nothing is started, nothing is ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import httpx

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.engine import ExitInfo
from autotune.engines.plan import LaunchPlan
from autotune.errors import EnvironmentFault, InputError
from autotune.launch.launcher import Ticket

ASK_EVERY_S = 5.0
"""Health is asked at most this often: with some engines the question itself costs a generation."""
GONE_AFTER = 3
"""Refused connections in a row after which the server counts as gone."""

_TIMEOUT = httpx.Timeout(5.0, connect=2.0)


class AttachedServer:
    """A server that somebody else runs."""

    def __init__(self, plan: LaunchPlan, url: str, clock: Clock) -> None:
        self.plan = plan
        self.url = url.rstrip("/")
        self.log_path: Path | None = None
        self._clock = clock
        self._next_ask = 0.0
        self._refused = 0
        self._ended: ExitInfo | None = None

    def identity(self) -> Mapping[str, Json]:
        """Address, listed models and version; the latter two None if they cannot be had."""
        version = _ask(self.url, "/version")
        return {
            "kind": "attach",
            "url": self.url,
            "models": _models(self.url),
            "version": version.get("version") if isinstance(version, dict) else None,
        }

    def poll(self) -> ExitInfo | None:
        now = self._clock.monotonic()
        if self._ended is None and now >= self._next_ask:
            self._next_ask = now + (ASK_EVERY_S if self._refused == 0 else 0.2)
            if _answers(self.url):
                self._refused = 0
            else:
                self._refused += 1
                self._next_ask = now + 0.2
            if self._refused >= GONE_AFTER:
                self._ended = ExitInfo()
        return self._ended

    def stop(self, *, forced: bool = False) -> ExitInfo:
        return self._ended or ExitInfo()


class AttachLauncher:
    """Uses the server at the plan's `url`. A candidate's knobs do not reach it: that is for the
    caller to refuse.
    """

    kind = "attach"

    def __init__(self, *, clock: Clock, stop: StopSignal) -> None:
        self._clock = clock
        self._stop = stop

    def check(self, plan: LaunchPlan) -> None:
        url = _url_of(plan)
        models = _models(url)
        if models is None and not _answers(url):
            raise EnvironmentFault(
                message=f"no server answers at {url}",
                hint=f"curl {url}/health should print nothing",
            )
        if models and plan.model not in models:
            raise InputError(
                message=f"the server at {url} does not serve {plan.model}",
                seen=f"it lists {', '.join(models[:5])}",
                hint=f"--model {models[0]}",
            )

    def start(self, plan: LaunchPlan, ticket: Ticket) -> AttachedServer:
        return AttachedServer(plan, _url_of(plan), self._clock)

    def sweep(self, study_id: str, directory: Path) -> list[str]:
        return []


def _url_of(plan: LaunchPlan) -> str:
    if not plan.url:
        raise InputError(
            message="launcher `attach` needs the address of a running server",
            hint="set `engine: url:`, for example http://127.0.0.1:8000",
        )
    return plan.url.rstrip("/")


def _ask(url: str, path: str) -> Json:
    """The JSON at a path; None if there is none."""
    try:
        answer = httpx.get(url + path, timeout=_TIMEOUT, trust_env=False)
        return answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None


def _models(url: str) -> list[str] | None:
    listed = _ask(url, "/v1/models")
    try:
        return [str(entry["id"]) for entry in listed["data"]]
    except (KeyError, TypeError):
        return None


def _answers(url: str) -> bool:
    """Whether anything answers at all; slow is an answer, a refused connection is not."""
    try:
        httpx.get(f"{url}/health", timeout=_TIMEOUT, trust_env=False)
    except (httpx.ReadTimeout, httpx.RemoteProtocolError):
        return True
    except (httpx.TransportError, httpx.InvalidURL):
        return False
    return True
