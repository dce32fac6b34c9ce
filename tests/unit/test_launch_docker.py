"""The Docker launcher against a double of the daemon's client that fails in the known ways."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, NotFound
from requests.exceptions import ReadTimeout

from autotune.clock import StopSignal, VirtualClock
from autotune.engines.plan import HOST, PORT, LaunchPlan, Mount
from autotune.errors import EnvironmentFault, InputError
from autotune.launch import container_log, container_options
from autotune.launch.docker import DockerLauncher, DockerServer
from autotune.launch.launcher import Ticket
from autotune.launch.server_log import log_tail

PLAN = LaunchPlan(
    engine="fake",
    launcher="docker",
    argv=("vllm", "serve", "m", "--host", HOST, "--port", PORT),
    model="m",
    image="fake:1",
    gpus=(),
)


class Containers:
    """Both of the client's `containers`: the collection that creates, and the call that lists."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.create = daemon.create
        self._daemon = daemon

    def __call__(self, **_: Any) -> list[dict[str, Any]]:
        if self._daemon.silent:
            raise ReadTimeout("read timed out")
        gone = self._daemon.removed and self._daemon.listed_after == 0
        self._daemon.listed_after -= self._daemon.removed and not gone
        return [] if gone else [{"Id": "c0ffee"}]


class FakeDaemon:
    """A double of the daemon and its client. Times are virtual seconds."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.exits_after_kill: dict[str, float | None] = {"SIGTERM": 0.0, "SIGKILL": 0.0}
        self.exit_at: float | None = None
        self.exit_code = 0
        self.oom = False
        self.removed = False
        self.removable = True
        self.kill_times_out = False
        self.silent = False
        self.create_errors: list[Exception] = []
        self.start_errors: list[Exception] = []
        self.stream: Callable[[], Iterator[bytes]] = lambda: iter([b"hello\n"])
        self.whole = b"hello\nand the rest\n"
        self.signals: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.timeout = 0
        self.api = self
        self.containers = Containers(self)
        self.listed_after = 0

    def connect(self, timeout_s: int) -> FakeDaemon:
        return self

    def close(self) -> None:
        return

    def create(self, **options: Any) -> SimpleNamespace:
        self.created.append(options)
        if self.create_errors:
            raise self.create_errors.pop(0)
        return SimpleNamespace(id="c0ffee")

    def start(self, _: str) -> None:
        if self.start_errors:
            raise self.start_errors.pop(0)

    def inspect_container(self, _: str) -> dict[str, Any]:
        if self.silent:
            raise ReadTimeout("read timed out")
        if self.removed:
            raise NotFound("no such container")
        ended = self.exit_at is not None and self.clock.monotonic() >= self.exit_at
        state = {"Status": "exited" if ended else "running", "ExitCode": self.exit_code}
        return {"State": {**state, "OOMKilled": self.oom, "StartedAt": "t"}}

    def kill(self, _: str, signal: str) -> None:
        self.signals.append(signal)
        delay = self.exits_after_kill[signal]
        if delay is not None:
            self.exit_at = self.clock.monotonic() + delay
        if self.kill_times_out:
            raise ReadTimeout("read timed out")

    def remove_container(self, _: str, v: bool, force: bool) -> None:
        assert v
        assert force
        if self.removable:
            self.removed = True
        else:
            raise APIError("removal already in progress")

    def logs(self, _: str, stream: bool, follow: bool) -> Any:
        return self.stream() if stream else self.whole


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def daemon(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    monkeypatch.setattr(container_log, "CATCH_UP_S", 0.2)
    return FakeDaemon(clock)


@pytest.fixture
def launcher(clock: VirtualClock, daemon: FakeDaemon) -> DockerLauncher:
    return DockerLauncher(
        clock=clock, stop=StopSignal(), environ={"TOKEN": "s3cret-value"}, connect=daemon.connect
    )


@pytest.fixture
def start(
    launcher: DockerLauncher, daemon: FakeDaemon, tmp_path: Path
) -> Iterator[Callable[[], DockerServer]]:
    servers = []

    def begin() -> DockerServer:
        ticket = Ticket(study_id="s", trial=4, directory=tmp_path)
        servers.append(launcher.start(PLAN, ticket))
        return servers[-1]

    yield begin
    daemon.silent, daemon.removable = False, True
    daemon.exits_after_kill = {"SIGTERM": 0.0, "SIGKILL": 0.0}
    for server in servers:
        server.stop(forced=True)


def test_a_kill_call_that_times_out_means_unknown_and_the_state_decides(
    start: Callable[[], DockerServer], daemon: FakeDaemon, clock: VirtualClock
) -> None:
    daemon.kill_times_out = True
    daemon.exits_after_kill = {"SIGTERM": None, "SIGKILL": 15.0}
    ended = start().stop()
    assert ended.by_us
    assert daemon.removed
    assert daemon.signals == ["SIGTERM", "SIGKILL"]
    assert clock.monotonic() < 60


def test_a_container_that_cannot_be_removed_is_an_environment_fault_in_bounded_time(
    start: Callable[[], DockerServer], daemon: FakeDaemon, clock: VirtualClock
) -> None:
    daemon.exits_after_kill = {"SIGTERM": None, "SIGKILL": None}
    daemon.removable = False
    with pytest.raises(EnvironmentFault, match="autotune-s-4-"):
        start().stop()
    assert clock.monotonic() < 90


def test_a_container_that_ended_by_itself_keeps_its_code_and_the_memory_verdict(
    start: Callable[[], DockerServer], daemon: FakeDaemon
) -> None:
    server = start()
    daemon.exit_at, daemon.exit_code, daemon.oom = 0.0, 137, True
    ended = server.stop()
    assert (ended.code, ended.oom_killed, ended.by_us) == (137, True, False)
    assert daemon.signals == []


def test_a_forced_stop_kills_at_once(start: Callable[[], DockerServer], daemon: FakeDaemon) -> None:
    start().stop(forced=True)
    assert daemon.signals == ["SIGKILL"]


def test_a_stream_that_breaks_off_is_no_failure_and_the_log_is_complete(
    start: Callable[[], DockerServer], daemon: FakeDaemon
) -> None:
    def broken() -> Iterator[bytes]:
        yield b"hello\n"
        raise ReadTimeout("read timed out")

    daemon.stream = broken
    server = start()
    assert server.poll() is None
    server.stop()
    assert log_tail(server.log_path) == ["hello", "and the rest"]


def test_a_stream_that_never_ends_does_not_hold_up_the_end(
    start: Callable[[], DockerServer], daemon: FakeDaemon
) -> None:
    released = threading.Event()

    class Endless:
        def __iter__(self) -> Iterator[bytes]:
            yield b"hello\n"
            released.wait(10)

        def close(self) -> None:
            released.set()

    daemon.stream = Endless
    server = start()
    assert server.stop().by_us
    assert released.is_set()
    assert log_tail(server.log_path) == ["hello", "and the rest"]


def test_a_daemon_that_restarts_is_waited_for_but_not_for_ever(
    start: Callable[[], DockerServer], daemon: FakeDaemon, clock: VirtualClock
) -> None:
    server = start()
    daemon.silent = True
    clock.sleep(30)
    assert server.poll() is None
    clock.sleep(31)
    with pytest.raises(EnvironmentFault, match="daemon does not answer"):
        server.poll()


def test_a_removed_container_has_ended(
    start: Callable[[], DockerServer], daemon: FakeDaemon
) -> None:
    server = start()
    daemon.removed = True
    assert server.poll() is not None
    assert not server.stop().by_us


def test_a_container_is_gone_once_the_daemon_lists_it_no_more(
    start: Callable[[], DockerServer], launcher: DockerLauncher, daemon: FakeDaemon, tmp_path: Path
) -> None:
    """A sweep that comes at once must not find what was just removed."""
    server = start()
    daemon.listed_after = 3
    server.stop()
    assert daemon.listed_after == 0
    assert launcher.sweep("s", tmp_path) == []


def test_a_listing_that_keeps_what_is_gone_holds_nothing_up(
    start: Callable[[], DockerServer],
    launcher: DockerLauncher,
    daemon: FakeDaemon,
    clock: VirtualClock,
    tmp_path: Path,
) -> None:
    server = start()
    daemon.listed_after = 1_000_000
    assert server.stop().by_us
    assert launcher.sweep("s", tmp_path) == []
    assert clock.monotonic() < 30


def test_a_taken_name_is_left_to_its_owner_and_another_is_used(
    start: Callable[[], DockerServer], daemon: FakeDaemon
) -> None:
    answer = SimpleNamespace(status_code=409, reason="Conflict", url="")
    daemon.create_errors = [APIError("name in use", response=answer)]
    start()
    first, second = (options["name"] for options in daemon.created)
    assert first != second
    assert not daemon.removed


def test_a_port_that_was_taken_meanwhile_is_replaced(
    start: Callable[[], DockerServer], daemon: FakeDaemon
) -> None:
    daemon.start_errors = [APIError("driver failed: Bind failed: port is already allocated")]
    server = start()
    assert len(daemon.created) == 2
    assert server.url.endswith(str(daemon.created[1]["ports"]["8000/tcp"][1]))


def test_a_missing_gpu_driver_is_an_environment_fault(
    start: Callable[[], DockerServer], daemon: FakeDaemon
) -> None:
    text = 'could not select device driver "" with capabilities: [[gpu]]'
    daemon.start_errors = [APIError(text)]
    with pytest.raises(EnvironmentFault, match="cannot give GPUs"):
        start()
    assert daemon.removed


def test_secrets_reach_the_container_by_value_and_nothing_else(
    launcher: DockerLauncher, daemon: FakeDaemon, tmp_path: Path
) -> None:
    plan = LaunchPlan.from_json({**PLAN.to_json(), "secrets": {"HF_TOKEN": "TOKEN"}})
    daemon.stream = lambda: iter([b"using s3cret-value\n"])
    server = launcher.start(plan, Ticket(study_id="s", trial=4, directory=tmp_path))
    server.stop()
    (options,) = daemon.created
    assert options.pop("environment") == {"HF_TOKEN": "s3cret-value"}
    assert "s3cret-value" not in repr(options)
    assert log_tail(server.log_path) == ["using ***"]


def test_a_plan_without_image_is_an_input_error(launcher: DockerLauncher) -> None:
    with pytest.raises(InputError, match="needs an image"):
        launcher.check(LaunchPlan.from_json({**PLAN.to_json(), "image": None}))


class TestContainerOptions:
    def options(self, **fields: Any) -> dict[str, Any]:
        plan = LaunchPlan.from_json({**PLAN.to_json(), **fields})
        ticket = Ticket(study_id="s/1", trial=4, directory=Path(), attempt=1)
        return container_options.container_options(
            plan, ticket, port=18111, name=container_options.container_name(ticket)
        )

    def test_the_entry_point_is_overridden_and_every_word_stands_alone(self) -> None:
        options = self.options()
        assert options["entrypoint"] == ["vllm"]
        assert options["command"] == ["serve", "m", "--host", "0.0.0.0", "--port", "8000"]

    def test_the_port_is_published_on_the_loopback_only(self) -> None:
        assert self.options()["ports"] == {"8000/tcp": ("127.0.0.1", 18111)}

    def test_labels_prove_whose_it_is_and_the_name_is_legal(self) -> None:
        options = self.options()
        assert options["labels"]["autotune.study"] == "s/1"
        assert options["labels"]["autotune.attempt"] == "1"
        assert options["name"].startswith("autotune-s-1-4-")

    @pytest.mark.parametrize(
        ("gpus", "count", "ids"), [(None, -1, None), (["0", "GPU-x"], 0, ["0", "GPU-x"])]
    )
    def test_gpus_become_device_requests(
        self, gpus: list[str] | None, count: int, ids: list[str] | None
    ) -> None:
        (request,) = self.options(gpus=gpus)["device_requests"]
        assert request["Count"] == count
        assert request["DeviceIDs"] == (ids or [])

    def test_no_gpu_asks_for_none(self) -> None:
        assert "device_requests" not in self.options(gpus=[])

    def test_mounts_are_bound_or_named(self) -> None:
        folder = Mount(source="/models", target="/m")
        volume = Mount(source="cache", target="/c", read_only=False)
        mounts = self.options(
            mounts=[
                {"source": m.source, "target": m.target, "read_only": m.read_only}
                for m in (folder, volume)
            ]
        )["mounts"]
        assert [(m["Type"], m["ReadOnly"]) for m in mounts] == [("bind", True), ("volume", False)]
        # The caches of engines outlive all studies, and can be told as ours
        assert set(mounts[1]["VolumeOptions"]["Labels"]) == {"autotune.cache"}
        assert "VolumeOptions" not in mounts[0]

    def test_shared_memory_is_either_the_hosts_or_sized(self) -> None:
        assert self.options(ipc_host=True, shm_size="1g")["ipc_mode"] == "host"
        assert self.options(shm_size="1g")["shm_size"] == "1g"
