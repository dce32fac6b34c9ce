"""Servers as containers: labelled as ours, published on the loopback only, removed for certain.

A container's end is learned from its state, never from its log stream. A call to the daemon that
times out means "unknown": the state is looked at again, within bounds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.engine import ExitInfo
from autotune.engines.plan import LaunchPlan
from autotune.errors import AutotuneError, EnvironmentFault, InputError
from autotune.launch import ports, preflight
from autotune.launch.container_log import ContainerLog
from autotune.launch.container_options import (
    LABEL_STUDY,
    LABEL_TRIAL,
    container_name,
    container_options,
    image_of,
)
from autotune.launch.launcher import Ticket
from autotune.launch.server_log import MaskedLog

TERM_WAIT_S = 10.0
"""How long a container may take to end after its stop signal."""
KILL_WAIT_S = 20.0
"""How long the daemon may take to end a killed container."""
REMOVE_WAIT_S = 20.0
"""How long the daemon may take to remove an ended container."""
LISTED_WAIT_S = 5.0
"""How long the daemon may go on listing a container that it has removed."""
CALL_TIMEOUT_S = 10
"""Patience with one answer of the daemon."""
CREATE_TIMEOUT_S = 120
"""Patience with the creation and start of a container: GPUs and mounts are prepared in it."""
DAEMON_PATIENCE_S = 60.0
"""How long the daemon may stay silent while a server runs (it may be restarting)."""

_STARTS = 5
_NO_ANSWER = (RequestException, TimeoutError, ConnectionError)
_GPU_TEXTS = (
    "could not select device driver",
    "nvidia-container-cli",
    "unresolvable CDI",
    "nvml error",
)
_PORT_TEXTS = ("port is already allocated", "address already in use")

ClientFactory = Callable[[int], Any]


class DockerServer:
    """A container started by `DockerLauncher`. One thread at a time may use it."""

    def __init__(
        self,
        *,
        plan: LaunchPlan,
        port: int,
        client: Any,
        container_id: str,
        name: str,
        log: ContainerLog,
        clock: Clock,
        stop: StopSignal,
    ) -> None:
        self.plan = plan
        self.url = f"http://{ports.LOOPBACK}:{port}"
        self.log_path: Path | None = log.path
        self._client = client
        self._id = container_id
        self._name = name
        self._log = log
        self._clock = clock
        self._stop = stop
        self._answered = clock.monotonic()
        self._started_at: str | None = None
        self._ended: ExitInfo | None = None

    def identity(self) -> Mapping[str, Json]:
        return {
            "kind": "docker",
            "container_id": self._id,
            "name": self._name,
            "started_at": self._started_at,
        }

    def poll(self) -> ExitInfo | None:
        if self._ended is not None:
            return self._ended
        try:
            state = self._state()
        except NotFound:
            return ExitInfo()
        except (DockerException, *_NO_ANSWER) as error:
            if self._clock.monotonic() - self._answered > DAEMON_PATIENCE_S:
                raise _silent_daemon(error) from None
            return None
        self._answered = self._clock.monotonic()
        return state

    def stop(self, *, forced: bool = False) -> ExitInfo:
        if self._ended is not None:
            return self._ended
        before = self._known_state()
        running = before is None
        if running and not forced:
            self._tell("SIGTERM")
            self._wait_state(TERM_WAIT_S, hurry=lambda: self._stop.forced)
        ended = self._known_state()
        if ended is None:
            self._tell("SIGKILL")
            ended = self._wait_state(KILL_WAIT_S)
        self._log.finish(self._client, self._id)
        if not _remove(self._client, self._id, self._clock):
            raise EnvironmentFault(
                message=f"container {self._name} could not be removed",
                seen=f"id {self._id[:12]}, still there after {KILL_WAIT_S + REMOVE_WAIT_S:g} s",
                so="nothing else is launched while it may hold memory",
                hint=f"docker rm -f {self._name}",
            )
        ended = ended or ExitInfo()
        self._ended = ExitInfo(code=ended.code, oom_killed=ended.oom_killed, by_us=running)
        self._client.close()
        return self._ended

    def listener(self) -> str | None:
        """Who answers at our address: None nobody yet, "" this server.

        The daemon holds the published port, so that it is ours as long as the container runs.
        """
        return "" if self.poll() is None else None

    def _state(self) -> ExitInfo | None:
        """None while it runs, else how it ended. Raises NotFound and the daemon's errors."""
        state = self._client.api.inspect_container(self._id)["State"]
        self._started_at = state.get("StartedAt") or self._started_at
        if state["Status"] in ("exited", "dead"):
            return ExitInfo(code=state["ExitCode"], oom_killed=bool(state.get("OOMKilled")))
        return None

    def _known_state(self) -> ExitInfo | None:
        """Like `_state`; a removed container has ended, a silent daemon means that it may run."""
        try:
            return self._state()
        except NotFound:
            return ExitInfo()
        except (DockerException, *_NO_ANSWER):
            return None

    def _tell(self, name: str) -> None:
        # An error here (already ended, or no answer in time) decides nothing: the state does.
        with contextlib.suppress(DockerException, *_NO_ANSWER):
            self._client.api.kill(self._id, signal=name)

    def _wait_state(
        self, timeout_s: float, hurry: Callable[[], bool] = lambda: False
    ) -> ExitInfo | None:
        deadline = self._clock.monotonic() + timeout_s
        while (ended := self._known_state()) is None:
            if self._clock.monotonic() >= deadline or hurry():
                return None
            self._clock.sleep(0.05)
        return ended


class DockerLauncher:
    """Starts plans as containers of the local daemon. Never pulls, never touches foreign ones."""

    kind = "docker"

    def __init__(
        self,
        *,
        clock: Clock,
        stop: StopSignal,
        environ: Mapping[str, str] | None = None,
        connect: ClientFactory | None = None,
    ) -> None:
        self._clock = clock
        self._stop = stop
        self._environ = dict(os.environ if environ is None else environ)
        self._connect = connect or _connect

    def check(self, plan: LaunchPlan) -> None:
        preflight.resolve_secrets(plan, self._environ)
        image = image_of(plan)
        with self._client() as client:
            try:
                client.images.get(image)
            except ImageNotFound:
                raise InputError(
                    message=f"image not present locally: {image}",
                    so="nothing was started; images are never pulled unasked",
                    hint=f"docker pull {image}",
                ) from None
        preflight.check_folders(plan)
        preflight.check_fixed_port(plan)

    def start(self, plan: LaunchPlan, ticket: Ticket) -> DockerServer:
        environment = {**plan.env, **preflight.resolve_secrets(plan, self._environ)}
        ticket.directory.mkdir(parents=True, exist_ok=True)
        hidden = preflight.secret_values(plan, self._environ, inherited=False)
        log = MaskedLog(ticket.directory / f"{plan.member}.log", hidden)
        client = self._connect(CREATE_TIMEOUT_S)
        try:
            port, name, container_id = self._started(client, plan, ticket, environment)
        except AutotuneError:
            log.close()
            client.close()
            raise
        client.api.timeout = CALL_TIMEOUT_S
        reader = ContainerLog(log, connect=self._connect)
        reader.follow(container_id)
        return DockerServer(
            plan=plan,
            port=port,
            client=client,
            container_id=container_id,
            name=name,
            log=reader,
            clock=self._clock,
            stop=self._stop,
        )

    def sweep(self, study_id: str, directory: Path) -> list[str]:
        with self._client() as client:
            try:
                found = client.api.containers(
                    all=True, filters={"label": f"{LABEL_STUDY}={study_id}"}
                )
            except (DockerException, *_NO_ANSWER) as error:
                raise _silent_daemon(error) from None
            lines = []
            for entry in found:
                if not _is_known(client, entry["Id"]):
                    continue
                name = entry["Names"][0].lstrip("/") if entry.get("Names") else entry["Id"][:12]
                if not _remove(client, entry["Id"], self._clock):
                    raise EnvironmentFault(
                        message=f"container {name} could not be removed",
                        seen="it carries this study's label and is left over from an earlier run",
                        hint=f"docker rm -f {name}",
                    )
                trial = entry.get("Labels", {}).get(LABEL_TRIAL, "?")
                lines.append(f"removed container {name}, left over from trial {trial}")
            return lines

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        client = self._connect(CALL_TIMEOUT_S)
        try:
            yield client
        finally:
            client.close()

    def _started(
        self, client: Any, plan: LaunchPlan, ticket: Ticket, environment: Mapping[str, str]
    ) -> tuple[int, str, str]:
        """Create and start; returns port, name and container id. Another port or name is taken if
        the first is not to be had.
        """
        problem: Exception | None = None
        for _ in range(_STARTS):
            port = self._port(plan)
            name = container_name(ticket)
            options = container_options(plan, ticket, port=port, name=name)
            try:
                container_id = client.containers.create(environment=dict(environment), **options).id
            except APIError as error:
                if error.status_code == 409:  # the name is taken, by whomever
                    problem = error
                    continue
                raise _start_fault(error) from None
            except (DockerException, *_NO_ANSWER) as error:
                self._discard(client, name)
                raise _start_fault(error) from None
            try:
                client.api.start(container_id)
            except (DockerException, *_NO_ANSWER) as error:
                _remove(client, container_id, self._clock)
                if plan.port is None and any(text in str(error) for text in _PORT_TEXTS):
                    problem = error
                    continue
                raise _start_fault(error) from None
            return port, name, container_id
        assert problem is not None
        raise _start_fault(problem)

    def _discard(self, client: Any, name: str) -> None:
        """Remove what an unanswered call may have created; the random name proves it ours."""
        with contextlib.suppress(DockerException, *_NO_ANSWER):
            _remove(client, client.api.inspect_container(name)["Id"], self._clock)

    def _port(self, plan: LaunchPlan) -> int:
        if plan.port is None:
            return ports.choose_port()
        if not ports.wait_free(plan.port, timeout_s=ports.FREE_WAIT_S, clock=self._clock):
            raise EnvironmentFault(
                message=f"port {plan.port} is busy",
                seen=f"held by {ports.holder_of(plan.port)}",
                so="nothing was started and the other server was left alone",
                hint="leave `port` out to use a free one",
            )
        return plan.port


def _connect(timeout_s: int) -> Any:
    """A client of the daemon that the environment names. Raises EnvironmentFault."""
    try:
        client = docker.from_env(timeout=timeout_s)
    except (DockerException, *_NO_ANSWER) as error:
        raise _silent_daemon(error) from None
    try:
        client.ping()
    except (DockerException, *_NO_ANSWER) as error:
        client.close()
        raise _silent_daemon(error) from None
    return client


def _is_known(client: Any, container_id: str) -> bool:
    """Whether the daemon has this container; True where it does not say. Its listings do not
    answer this: they come from a copy that may lag behind and keep what is gone.
    """
    try:
        client.api.inspect_container(container_id)
    except NotFound:
        return False
    except (DockerException, *_NO_ANSWER):
        pass
    return True


def _remove(client: Any, container_id: str, clock: Clock) -> bool:
    """Remove a container of ours, running or not; True once it is gone. Bounded."""
    deadline = clock.monotonic() + REMOVE_WAIT_S
    while True:
        with contextlib.suppress(DockerException, *_NO_ANSWER):
            client.api.remove_container(container_id, v=True, force=True)
        if not _is_known(client, container_id):
            break
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(0.2)
    # So that nobody who looks at the listing sees it again; a stale entry holds nothing
    deadline = clock.monotonic() + LISTED_WAIT_S
    while _is_listed(client, container_id) and clock.monotonic() < deadline:
        clock.sleep(0.2)
    return True


def _is_listed(client: Any, container_id: str) -> bool:
    try:
        listed = client.api.containers(all=True, quiet=True)
    except (DockerException, *_NO_ANSWER):
        return False
    return any(entry["Id"] == container_id for entry in listed)


def _silent_daemon(error: Exception) -> EnvironmentFault:
    return EnvironmentFault(
        message="the Docker daemon does not answer",
        seen=str(error)[:300],
        hint="`autotune doctor` tells what is wrong; `docker info` should list a server",
    )


def _start_fault(error: Exception) -> EnvironmentFault:
    """What a failed creation or start means."""
    text = str(getattr(error, "explanation", None) or error)[:400]
    if any(known in text for known in _GPU_TEXTS):
        return EnvironmentFault(
            message="Docker cannot give GPUs to containers",
            seen=text,
            hint="install the NVIDIA container toolkit, or set `gpus: []` to run without GPU",
        )
    return EnvironmentFault(message="the container could not be started", seen=text)
