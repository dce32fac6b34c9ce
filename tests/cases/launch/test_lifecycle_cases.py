"""Faults of starting and ending servers that cost others their nights, rebuilt with a double."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.engines.plan import HOST, PORT, LaunchPlan
from autotune.errors import Interrupted
from autotune.launch import ports
from autotune.launch.launcher import Ticket
from autotune.launch.process import ProcessLauncher, ProcessServer
from autotune.launch.readiness import NotReady, wait_ready
from autotune.launch.server_log import log_tail

FAKE = Path(__file__).parents[2] / "doubles" / "fake_server.py"


def plan(*words: str, **fields: object) -> LaunchPlan:
    argv = (sys.executable, str(FAKE), "--host", HOST, "--port", PORT, *words)
    return LaunchPlan(engine="generic", launcher="process", model="fake/model", argv=argv, **fields)


@pytest.fixture
def launcher() -> ProcessLauncher:
    return ProcessLauncher(clock=SystemClock(), stop=StopSignal())


@pytest.fixture
def ticket(tmp_path: Path) -> Ticket:
    return Ticket(study_id=f"cases-{time.monotonic_ns()}", trial=0, directory=tmp_path / "trial")


@pytest.fixture
def start(launcher: ProcessLauncher, ticket: Ticket) -> Iterator[Callable[..., ProcessServer]]:
    servers = []

    def begin(*words: str, **fields: object) -> ProcessServer:
        servers.append(launcher.start(plan(*words, **fields), ticket))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop(forced=True)


def ready(server: ProcessServer, timeout_s: float = 20.0) -> float:
    return wait_ready(server, timeout_s=timeout_s, clock=SystemClock(), stop=StopSignal())


def child_pids(lock: Path, count: int) -> list[int]:
    """Pids that the stubborn children wrote into their lock files."""
    deadline = time.monotonic() + 10
    files = [Path(f"{lock}.{number}") for number in range(count)]
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(file.read_text()) for file in files]


def kill_parent(server: ProcessServer) -> None:
    os.kill(int(str(server.identity()["pid"])), signal.SIGKILL)
    while server.poll() is None:
        time.sleep(0.02)


def is_locked(file: Path) -> bool:
    with file.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


class TestChildrenThatOutliveAStop:
    @pytest.mark.parametrize("how", ["parent obeys", "parent ignores too", "parent is dead"])
    def test_children_in_other_sessions_that_ignore_sigterm_are_all_ended(
        self, start: Callable[..., ProcessServer], tmp_path: Path, how: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr("autotune.launch.process.TERM_WAIT_S", 0.5)
        lock = tmp_path / "gpu"
        words = ("--children", "2", "--lock", str(lock))
        server = start(*words, *(["--ignore-term"] if how == "parent ignores too" else []))
        children = child_pids(lock, 2)
        ready(server)
        if how == "parent is dead":  # its children now belong to init
            kill_parent(server)
        assert all(is_locked(Path(f"{lock}.{number}")) for number in range(2))
        ended = server.stop()
        assert not any(runs(pid) for pid in children)
        assert not any(is_locked(Path(f"{lock}.{number}")) for number in range(2))
        assert ended.by_us == (how != "parent is dead")

    def test_an_orphan_that_also_rewrote_its_environment_was_remembered(
        self, start: Callable[..., ProcessServer], tmp_path: Path
    ) -> None:
        lock = tmp_path / "gpu"
        server = start("--children", "1", "--lock", str(lock), "--wiped-environment")
        (child,) = child_pids(lock, 1)
        ready(server)
        kill_parent(server)
        assert runs(child)
        server.stop()
        assert not runs(child)

    def test_such_an_orphan_of_a_killed_tuner_is_swept_by_its_record(
        self, start: Callable[..., ProcessServer], launcher: ProcessLauncher, tmp_path: Path,
        ticket: Ticket,
    ) -> None:  # fmt: skip
        lock = tmp_path / "gpu"
        server = start("--children", "1", "--lock", str(lock), "--wiped-environment")
        (child,) = child_pids(lock, 1)
        ready(server)
        kill_parent(server)
        removed = launcher.sweep(ticket.study_id, tmp_path)
        assert f"process {child} " in " ".join(removed)
        assert not runs(child)
        assert server.stop().by_us is False

    def test_a_stop_by_a_prompt_server_is_quick(self, start: Callable[..., ProcessServer]) -> None:
        server = start()
        ready(server)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 2


class ForeignHandler(BaseHTTPRequestHandler):
    paths: list[str]

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "other"}]}')


@pytest.fixture
def foreign() -> Iterator[ThreadingHTTPServer]:
    """An old server of somebody else: healthy, with another model."""
    ForeignHandler.paths = []
    with ThreadingHTTPServer(("127.0.0.1", 0), ForeignHandler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class TestAForeignServerOnThePort:
    def test_it_gets_no_request_and_lives_on_when_the_launch_lost_the_port(
        self,
        start: Callable[..., ProcessServer],
        foreign: ThreadingHTTPServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(ports, "choose_port", lambda: foreign.server_address[1])
        server = start()
        with pytest.raises(NotReady) as caught:
            ready(server)
        assert caught.value.kind in ("exited", "foreign")
        server.stop()
        assert ForeignHandler.paths == []
        with socket.create_connection(("127.0.0.1", foreign.server_address[1]), timeout=2):
            pass

    def test_a_launched_process_that_does_not_listen_itself_is_not_taken_for_the_answering_one(
        self,
        start: Callable[..., ProcessServer],
        foreign: ThreadingHTTPServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(ports, "choose_port", lambda: foreign.server_address[1])
        server = start("--waiting-line", "loading")
        with pytest.raises(NotReady, match=f"pid {os.getpid()}") as caught:
            ready(server)
        assert caught.value.kind == "foreign"
        assert ForeignHandler.paths == []

    def test_a_server_that_lists_another_model_is_not_ours(
        self, launcher: ProcessLauncher, ticket: Ticket
    ) -> None:
        other = LaunchPlan.from_json({**plan().to_json(), "model": "mine/model"})
        server = launcher.start(other, ticket)
        with pytest.raises(NotReady, match="lists fake/model, not mine/model") as caught:
            ready(server)
        assert caught.value.kind == "foreign"
        server.stop()


class TestNeverReady:
    def test_the_limit_is_hard_whatever_the_log_says(
        self, start: Callable[..., ProcessServer]
    ) -> None:
        line = "Waiting for 1 core engine proc(s) to start"
        server = start("--waiting-line", line)
        began = time.monotonic()
        with pytest.raises(NotReady, match="not ready in time") as caught:
            ready(server, timeout_s=1.0)
        assert caught.value.kind == "timeout"
        assert 1.0 <= caught.value.seconds < 2.0
        server.stop()
        assert time.monotonic() - began < 4
        assert log_tail(server.log_path, 3) == [line] * 3


class TestHealthyIsNotReady:
    def test_ready_means_one_real_generation(
        self, start: Callable[..., ProcessServer], tmp_path: Path
    ) -> None:
        asked = tmp_path / "requests"
        server = start("--unready-for", "1.2", "--requests", str(asked))
        phases: list[str] = []
        seconds = wait_ready(
            server,
            timeout_s=20,
            clock=SystemClock(),
            stop=StopSignal(),
            phase_of=lambda line: "http_up" if "startup complete" in line else None,
            on_phase=phases.append,
        )
        assert seconds > 1.0
        assert asked.read_text().split().count("/v1/completions") >= 2
        assert phases == ["http_up", "first_generation"]
        server.stop()


class TestOnlyWhatWeStarted:
    def test_an_unrelated_process_of_the_same_words_survives_start_failure_and_sweep(
        self, launcher: ProcessLauncher, ticket: Ticket, tmp_path: Path
    ) -> None:
        words = "import time; time.sleep(60)"
        stranger = subprocess.Popen([sys.executable, "-c", words, "vllm", "serve", str(FAKE)])
        try:
            server = launcher.start(plan("--exit-after", "0.1"), ticket)
            with pytest.raises(NotReady):
                ready(server, timeout_s=5)
            server.stop()
            launcher.sweep(ticket.study_id, tmp_path)
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    def test_a_record_whose_pid_now_belongs_to_a_stranger_ends_nobody(
        self, launcher: ProcessLauncher, ticket: Ticket, tmp_path: Path
    ) -> None:
        server = launcher.start(plan(), ticket)
        record = ticket.directory / "server.pid.json"
        text = record.read_text()
        pid = int(str(server.identity()["pid"]))
        server.stop()
        time.sleep(0.03)  # start times are counted in hundredths: no two within one
        stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            record.write_text(text.replace(str(pid), str(stranger.pid)))
            assert launcher.sweep(ticket.study_id, tmp_path) == []
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    def test_records_that_are_torn_or_of_another_study_are_left_alone(
        self, launcher: ProcessLauncher, ticket: Ticket, tmp_path: Path
    ) -> None:
        server = launcher.start(plan(), ticket)
        (tmp_path / "server.pid.json").write_text('{"pid": 1, "study"')
        assert launcher.sweep("somebody-else", tmp_path) == []
        assert server.poll() is None
        server.stop()


class TestInterruptedByTheUser:
    def test_a_stop_during_start_is_noticed_at_once_and_leaves_nothing(
        self, start: Callable[..., ProcessServer], tmp_path: Path
    ) -> None:
        wish = StopSignal()
        server = start(
            "--waiting-line", "loading", "--children", "1", "--lock", str(tmp_path / "g")
        )
        (child,) = child_pids(tmp_path / "g", 1)
        threading.Timer(0.3, wish.request).start()
        began = time.monotonic()
        with pytest.raises(Interrupted):
            wait_ready(server, timeout_s=30, clock=SystemClock(), stop=wish)
        assert time.monotonic() - began < 2
        server.stop()
        assert not runs(child)

    def test_a_second_wish_shortens_the_polite_wait_but_still_ends_everything(
        self, ticket: Ticket, tmp_path: Path
    ) -> None:
        wish = StopSignal()
        launcher = ProcessLauncher(clock=SystemClock(), stop=wish)
        words = ("--ignore-term", "--children", "1", "--lock", str(tmp_path / "g"))
        server = launcher.start(plan(*words), ticket)
        (child,) = child_pids(tmp_path / "g", 1)
        wish.request()
        threading.Timer(0.3, wish.request).start()
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 5  # not the 10 s of politeness
        assert not runs(child)
