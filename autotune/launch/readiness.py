"""When a started server may be measured: it is the one launched, and it has really generated.

A health route says little: engines answer 200 while they load, and an old server may hold the port.
Ready means: the launched process or container lives and owns the address, the model is listed, and
one small streamed completion came through by the replay's own route.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import httpx
import orjson

from autotune.clock import Clock, StopSignal
from autotune.engines.engine import ExitInfo
from autotune.launch.launcher import RunningServer
from autotune.launch.server_log import LogFollower, log_tail

__all__ = [
    "Finding",
    "HttpProbe",
    "NotReady",
    "OwnsAddress",
    "Probe",
    "log_tail",
    "wait_ready",
]

POLL_S = 0.1
REFUSED_FOR_S = 30.0
"""How long the first generation may be answered with a client error before that is final."""

_PROBE_TOKENS = (1, 2, 3, 4)  # within every vocabulary
_HEALTH_TIMEOUT_S = 5.0
_RETRY_S = 0.2
_RETRYABLE = frozenset({404, 408, 425, 429})

Kind = Literal["exited", "timeout", "foreign", "refused"]


@dataclass(slots=True, kw_only=True, eq=False)
class NotReady(Exception):
    """A server did not become ready. Stop it before reading its log: only then is that complete.

    `kind`: it exited by itself (`exit_info` says how), time ran out, somebody else answers at its
    address, or it keeps refusing the request. `message` is one sentence; `seconds` were waited.
    """

    kind: Kind
    message: str
    seconds: float
    exit_info: ExitInfo | None = None

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a probe knows by now. `state`: no answer yet, still loading, refusing the request for
    good, serving another model, or ready. `message` is the last answer in words.
    """

    state: Literal["silent", "loading", "refused", "foreign", "ready"]
    message: str = ""


class Probe(Protocol):
    """Asks a server in the background whether it can generate."""

    def look(self) -> Finding:
        """The state now; starts asking at the first call, never blocks."""
        ...

    def close(self) -> None:
        """Stop asking."""
        ...


@runtime_checkable
class OwnsAddress(Protocol):
    """A server that can tell who listens at its address."""

    def listener(self) -> str | None:
        """None: nobody yet; "": this server; else the foreign listener in words."""
        ...


def wait_ready(
    server: RunningServer,
    *,
    timeout_s: float,
    clock: Clock,
    stop: StopSignal,
    probe: Callable[[RunningServer], Probe] | None = None,
    on_phase: Callable[[str], None] | None = None,
    phase_of: Callable[[str], str | None] | None = None,
    on_line: Callable[[str], None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> float:
    """Wait until the server has generated; returns the seconds that took.

    `phase_of` reads a start-up phase from a log line, `on_phase` hears each new one (and
    `first_generation`), `on_line` every line. `headers` go with each request. `timeout_s` is hard:
    neither log output nor answers extend it. Raises NotReady, Interrupted.
    """
    started = clock.monotonic()
    asking = (probe or (lambda s: HttpProbe(s, limit_s=timeout_s, headers=headers)))(server)
    phases = _Phases(LogFollower(server.log_path), on_phase, phase_of, on_line)
    finding = Finding(state="silent")
    try:
        while True:
            stop.check()
            ended = server.poll()
            seconds = clock.monotonic() - started
            phases.read()
            if ended is not None:
                phases.settle(clock)
                raise NotReady(
                    kind="exited", message=_exit_words(ended), seconds=seconds, exit_info=ended
                )
            if _address_is_ours(server, seconds):
                phases.tell("first_generation" if finding.state == "loading" else None)
                finding = asking.look()
            _judge(finding, server, seconds)
            if finding.state == "ready" and server.poll() is None:
                return seconds
            if seconds >= timeout_s:
                raise NotReady(
                    kind="timeout", message=_timeout_words(timeout_s, finding), seconds=seconds
                )
            clock.sleep(min(POLL_S, timeout_s - seconds))
    finally:
        asking.close()


class HttpProbe:
    """Asks over HTTP from a thread of its own, so that a slow answer hides no early exit."""

    def __init__(
        self,
        server: RunningServer,
        *,
        limit_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = server.url.rstrip("/")
        self._model = server.plan.model
        self._health = server.plan.health
        self._limit_s = limit_s
        self._headers = dict(headers or {})
        self._finding = Finding(state="silent")
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> Finding:
        if self._thread is None:
            self._thread = threading.Thread(target=self._ask, name="readiness", daemon=True)
            self._thread.start()
        return self._finding

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_RETRY_S)

    def _ask(self) -> None:
        timeout = httpx.Timeout(_HEALTH_TIMEOUT_S, connect=2.0)
        with httpx.Client(
            base_url=self._url, trust_env=False, timeout=timeout, headers=self._headers
        ) as client:
            refused = 0.0
            while not self._closed.is_set():
                finding = self._attempt(client)
                if finding.state == "refused" and refused < REFUSED_FOR_S:
                    refused += _RETRY_S
                    finding = Finding(state="loading", message=finding.message)
                elif finding.state == "loading":
                    refused = 0.0
                self._finding = finding
                if finding.state in ("ready", "foreign", "refused"):
                    return
                self._closed.wait(_RETRY_S)

    def _attempt(self, client: httpx.Client) -> Finding:
        try:
            health = client.get(self._health)
            if health.status_code >= 500:
                answer = f"{self._health} answers {health.status_code}"
                return Finding(state="loading", message=answer)
            listed = client.get("/v1/models")
            if listed.status_code == 200 and (other := _other_models(listed, self._model)):
                return Finding(state="foreign", message=other)
            self._finding = Finding(state="loading", message="waiting for the first generation")
            return self._generate(client)
        except httpx.TransportError as error:
            return Finding(state="silent", message=f"{type(error).__name__}: {error}".rstrip(": "))

    def _generate(self, client: httpx.Client) -> Finding:
        body = {
            "model": self._model,
            "prompt": list(_PROBE_TOKENS),
            "max_tokens": 2,
            "temperature": 0,
            "stream": True,
        }
        # The first generation may compile, so it may take all the time there is.
        patient = httpx.Timeout(self._limit_s, connect=2.0)
        with client.stream("POST", "/v1/completions", json=body, timeout=patient) as answer:
            if answer.status_code != 200:
                answer.read()
                words = f"/v1/completions answers {answer.status_code}: {answer.text[:200]}"
                final = 400 <= answer.status_code < 500 and answer.status_code not in _RETRYABLE
                return Finding(state="refused" if final else "loading", message=words)
            return _read_stream(answer, self._closed)


def _read_stream(answer: httpx.Response, closed: threading.Event) -> Finding:
    """Whether a streamed completion holds at least one choice, no error, and a proper end."""
    choices = 0
    rest = b""
    for data in answer.iter_bytes():
        if closed.is_set():
            return Finding(state="loading", message="given up")
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            payload = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or not payload:
                continue
            if payload == b"[DONE]":
                state: Literal["ready", "loading"] = "ready" if choices else "loading"
                return Finding(state=state, message="" if choices else "the completion was empty")
            try:
                event = orjson.loads(payload)
            except orjson.JSONDecodeError:
                return Finding(state="loading", message="the completion stream is not JSON")
            if isinstance(event, dict) and event.get("error"):
                return Finding(
                    state="loading", message=f"error in the stream: {event['error']}"[:300]
                )
            choices += bool(isinstance(event, dict) and event.get("choices"))
    return Finding(state="loading", message="the completion stream ended early")


def _other_models(listed: httpx.Response, model: str) -> str:
    """Empty if the model is listed (or the list says nothing), else what is listed, in words."""
    try:
        names = [str(entry["id"]) for entry in listed.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return ""
    if not names or model in names:
        return ""
    return f"the server lists {', '.join(names[:5])}, not {model}"


def _address_is_ours(server: RunningServer, seconds: float) -> bool:
    """Whether a request may go out. Raises NotReady if somebody else listens at the address."""
    if not isinstance(server, OwnsAddress):
        return True
    listener = server.listener()
    if not listener:
        return listener is not None
    ended = server.poll()
    raise NotReady(
        kind="foreign" if ended is None else "exited",
        message=f"another server listens at {server.url}: {listener}",
        seconds=seconds,
        exit_info=ended,
    )


def _judge(finding: Finding, server: RunningServer, seconds: float) -> None:
    if finding.state == "foreign":
        raise NotReady(
            kind="foreign",
            message=f"the server at {server.url} is not the one launched: {finding.message}",
            seconds=seconds,
        )
    if finding.state == "refused":
        raise NotReady(
            kind="refused",
            message=f"the server refuses the first generation: {finding.message}",
            seconds=seconds,
        )


def _exit_words(ended: ExitInfo) -> str:
    if ended.oom_killed:
        return "the server was killed during start-up: the container ran out of memory"
    if ended.code is None:
        return "the server is gone"
    if ended.code < 0:
        return f"the server was killed by signal {-ended.code} during start-up"
    if ended.code in (126, 127):  # of a shell or of a container's init
        return f"the program to start was not found or may not be run (exit code {ended.code})"
    return f"the server exited with code {ended.code} during start-up"


def _timeout_words(timeout_s: float, finding: Finding) -> str:
    last = f"; last: {finding.message}" if finding.message else ""
    return f"not ready in time ({timeout_s:g} s){last}"


class _Phases:
    """Follows the log and tells each start-up phase once it begins."""

    def __init__(
        self,
        follower: LogFollower,
        on_phase: Callable[[str], None] | None,
        phase_of: Callable[[str], str | None] | None,
        on_line: Callable[[str], None] | None,
    ) -> None:
        self._follower = follower
        self._on_phase = on_phase
        self._phase_of = phase_of
        self._on_line = on_line
        self._current: str | None = None

    def read(self) -> None:
        if self._phase_of is None and self._on_line is None:
            return
        for line in self._follower.new_lines():
            if self._on_line is not None:
                self._on_line(line)
            self.tell(self._phase_of(line) if self._phase_of is not None else None)

    def settle(self, clock: Clock) -> None:
        """Let the log of an ended server come to its end, for at most a second."""
        until = clock.monotonic() + 1.0
        size = -1
        while (grown := self._follower.size()) != size and clock.monotonic() < until:
            size = grown
            clock.sleep(0.1)
        self.read()

    def tell(self, phase: str | None) -> None:
        if phase is not None and phase != self._current:
            self._current = phase
            if self._on_phase is not None:
                self._on_phase(phase)
