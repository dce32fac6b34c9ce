"""What every launcher must do, whatever it starts servers with."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.engines.plan import LaunchPlan
from autotune.errors import EnvironmentFault, InputError
from autotune.launch.attach import AttachLauncher
from autotune.launch.catalog import launcher_for
from autotune.launch.launcher import Launcher, RunningServer, Ticket
from autotune.launch.readiness import NotReady, wait_ready
from autotune.launch.server_log import log_tail

PlanMaker = Callable[..., LaunchPlan]

KILLED_TUNER = """
import json, os, sys
from pathlib import Path
from autotune.clock import StopSignal, SystemClock
from autotune.engines.plan import LaunchPlan
from autotune.launch.catalog import launcher_for
from autotune.launch.launcher import Ticket
from autotune.launch.readiness import wait_ready

plan = LaunchPlan.from_json(json.loads(sys.argv[1]))
clock, stop = SystemClock(), StopSignal()
launcher = launcher_for(plan.launcher, clock=clock, stop=stop)
ticket = Ticket(study_id=sys.argv[2], trial=5, directory=Path(sys.argv[3]) / "trials" / "0005")
server = launcher.start(plan, ticket)
wait_ready(server, timeout_s=20, clock=clock, stop=stop)
print(server.url, flush=True)
os.kill(os.getpid(), 9)
"""


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/health", trust_env=False, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class LauncherContract:
    """Subclasses give `plan`, a maker of plans, and `launcher`."""

    @pytest.fixture
    def ticket(self, tmp_path: Path) -> Ticket:
        study = f"contract-{os.getpid()}-{time.monotonic_ns()}"
        return Ticket(study_id=study, trial=1, directory=tmp_path / "trials" / "0001")

    @pytest.fixture
    def start(
        self, launcher: Launcher, ticket: Ticket
    ) -> Iterator[Callable[[LaunchPlan], RunningServer]]:
        servers = []

        def begin(plan: LaunchPlan) -> RunningServer:
            servers.append(launcher.start(plan, ticket))
            return servers[-1]

        yield begin
        for server in servers:
            server.stop(forced=True)

    def ready(self, server: RunningServer, timeout_s: float = 20.0) -> float:
        return wait_ready(server, timeout_s=timeout_s, clock=SystemClock(), stop=StopSignal())

    def test_a_started_server_becomes_ready_and_answers_at_its_url(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan())
        assert self.ready(server) >= 0
        assert server.poll() is None
        assert answers(server.url)
        assert server.url.startswith("http://127.0.0.1:")
        server.stop()

    def test_identity_is_stable_and_is_json(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan())
        self.ready(server)
        first = dict(server.identity())
        assert first["kind"] == server.plan.launcher
        assert dict(server.identity()) == first
        server.stop()

    def test_stop_is_idempotent(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan())
        self.ready(server)
        assert server.stop() == server.stop(forced=True)


class LaunchingContract(LauncherContract):
    """For launchers that really start something."""

    def test_after_stop_nothing_answers_and_the_end_was_ours(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan())
        self.ready(server)
        ended = server.stop()
        assert ended.by_us
        assert server.poll() == ended
        assert not answers(server.url)

    def test_a_forced_stop_does_not_wait_for_a_server_that_ignores_sigterm(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan("--ignore-term"))
        self.ready(server)
        began = time.monotonic()
        server.stop(forced=True)
        assert time.monotonic() - began < 8  # the polite wait alone is 10 s
        assert not answers(server.url)

    def test_an_early_exit_is_reported_with_its_code_and_complete_log(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan("--exit-after", "0", "--exit-code", "7", "--waiting-line", "loading"))
        with pytest.raises(NotReady) as caught:
            self.ready(server)
        assert caught.value.kind == "exited"
        assert caught.value.exit_info is not None
        assert caught.value.exit_info.code == 7
        ended = server.stop()
        assert (ended.code, ended.by_us) == (7, False)

    def test_the_log_is_complete_private_and_free_of_secrets(
        self,
        start: Callable[[LaunchPlan], RunningServer],
        plan: PlanMaker,
    ) -> None:
        server = start(
            plan(
                "--say", "non-default args: {'api_key': ['sk-BANNER-0123456789']}",
                "--say-env", "MY_SECRET",
                "--lines", "500",
                secrets={"MY_SECRET": "AUTOTUNE_TEST_SECRET"},
            )
        )  # fmt: skip
        self.ready(server)
        server.stop()
        assert server.log_path is not None
        lines = log_tail(server.log_path, 1000)
        assert sorted(line for line in lines if line.startswith("line ")) == sorted(
            f"line {number}" for number in range(500)
        )
        text = "\n".join(lines)
        assert "BANNER" not in text
        assert "not to be seen" not in text
        assert "api_key" in text
        assert stat.S_IMODE(server.log_path.stat().st_mode) == 0o600

    def test_no_secret_is_in_any_file_of_the_trial(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker, ticket: Ticket
    ) -> None:
        server = start(plan(secrets={"MY_SECRET": "AUTOTUNE_TEST_SECRET"}))
        self.ready(server)
        files = [path for path in ticket.directory.rglob("*") if path.is_file()]
        assert files
        assert not any("not to be seen" in path.read_text() for path in files)
        server.stop()

    def test_a_missing_secret_is_named_before_anything_starts(
        self, launcher: Launcher, plan: PlanMaker
    ) -> None:
        with pytest.raises(InputError, match="AUTOTUNE_NOT_SET"):
            launcher.check(plan(secrets={"HF_TOKEN": "AUTOTUNE_NOT_SET"}))

    def test_a_missing_model_folder_is_named_before_anything_starts(
        self, launcher: Launcher, plan: PlanMaker, tmp_path: Path
    ) -> None:
        made = plan("--model", str(tmp_path / "absent"))
        if made.image is not None:
            pytest.skip("a path inside an image cannot be looked at")
        with pytest.raises(InputError, match="model folder not found"):
            launcher.check(made)

    def test_a_busy_fixed_port_names_its_holder_and_starts_nothing(
        self, launcher: Launcher, plan: PlanMaker, ticket: Ticket
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            port = foreign.getsockname()[1]
            made = plan(port=port)
            with pytest.raises(InputError, match=f"port {port} is busy") as refused:
                launcher.check(made)
            assert f"pid {os.getpid()}" in (refused.value.seen or "")
            with pytest.raises(EnvironmentFault, match=f"port {port} is busy"):
                launcher.start(made, ticket)

    def test_a_fixed_port_can_be_used_again_at_once(
        self, launcher: Launcher, plan: PlanMaker, tmp_path: Path, ticket: Ticket
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as chooser:
            port = chooser.getsockname()[1]
        for trial in range(2):
            again = Ticket(
                study_id=ticket.study_id, trial=trial, directory=tmp_path / f"trials/{trial}"
            )
            server = launcher.start(plan(port=port), again)
            self.ready(server)
            assert server.url.endswith(f":{port}")
            server.stop()

    def test_stop_during_start_leaves_nothing(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        wish = StopSignal()
        wish.request()
        server = start(plan("--waiting-line", "Waiting for 1 core engine proc(s) to start"))
        with pytest.raises(Exception, match="stopped by the user"):
            wait_ready(server, timeout_s=20, clock=SystemClock(), stop=wish)
        assert server.stop().by_us
        assert not answers(server.url)

    def test_sweep_removes_what_a_killed_tuner_left_and_only_that(
        self, launcher: Launcher, plan: PlanMaker, ticket: Ticket, tmp_path: Path
    ) -> None:
        mine = launcher.start(plan(), Ticket(study_id="another", trial=1, directory=tmp_path / "b"))
        made = plan("--ignore-term")
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_TUNER, json.dumps(made.to_json()), ticket.study_id,
             str(tmp_path)],
            capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        url = killed.stdout.strip()
        assert answers(url)
        try:
            removed = launcher.sweep(ticket.study_id, tmp_path)
            assert len(removed) >= 1
            assert "trial 5" in " ".join(removed)
            assert not answers(url)
            assert launcher.sweep(ticket.study_id, tmp_path) == []
            assert mine.poll() is None
        finally:
            mine.stop(forced=True)


class TestProcessLauncher(LaunchingContract):
    @pytest.fixture
    def launcher(self, monkeypatch: pytest.MonkeyPatch) -> Launcher:
        monkeypatch.setenv("AUTOTUNE_TEST_SECRET", "not to be seen")
        return launcher_for("process", clock=SystemClock(), stop=StopSignal())

    @pytest.fixture
    def plan(self, process_plan: PlanMaker) -> PlanMaker:
        return process_plan

    def test_it_listens_on_the_loopback_only(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan())
        self.ready(server)
        listening = [
            connection.laddr.ip
            for connection in psutil.Process(int(str(server.identity()["pid"]))).net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == ["127.0.0.1"]
        server.stop()

    def test_a_missing_program_is_named(self, launcher: Launcher) -> None:
        argv = ("no-such-program",)
        plan = LaunchPlan(engine="generic", launcher="process", argv=argv, model="m")
        with pytest.raises(InputError, match="no-such-program"):
            launcher.check(plan)

    def test_the_gpus_of_the_plan_reach_the_server_as_its_visible_devices(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan("--say-env", "CUDA_VISIBLE_DEVICES", gpus=("1", "3")))
        self.ready(server)
        server.stop()
        assert "value of cud: 1,3" in log_tail(server.log_path)


@pytest.mark.docker
class TestDockerLauncher(LaunchingContract):
    @pytest.fixture
    def launcher(
        self, monkeypatch: pytest.MonkeyPatch, docker_plan: PlanMaker
    ) -> Iterator[Launcher]:
        monkeypatch.setenv("AUTOTUNE_TEST_SECRET", "not to be seen")
        yield launcher_for("docker", clock=SystemClock(), stop=StopSignal())
        launcher_for("docker", clock=SystemClock(), stop=StopSignal()).sweep("another", Path())

    @pytest.fixture
    def plan(self, docker_plan: PlanMaker) -> PlanMaker:
        return docker_plan

    def test_the_port_is_published_on_the_loopback_only_and_labels_tell_whose_it_is(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker, ticket: Ticket
    ) -> None:
        import docker

        server = start(plan())
        self.ready(server)
        client = docker.from_env()
        seen = client.api.inspect_container(server.identity()["container_id"])
        client.close()
        bindings = [b for many in seen["HostConfig"]["PortBindings"].values() for b in many]
        assert [b["HostIp"] for b in bindings] == ["127.0.0.1"]
        assert seen["Config"]["Labels"]["autotune.study"] == ticket.study_id
        assert seen["Config"]["Labels"]["autotune.trial"] == "1"
        assert seen["HostConfig"]["Init"] is True
        server.stop()

    def test_an_absent_image_is_an_input_error_that_names_the_pull_command(
        self, launcher: Launcher, plan: PlanMaker
    ) -> None:
        with pytest.raises(InputError, match="image not present locally: no/such:image") as caught:
            launcher.check(plan(image="no/such:image"))
        assert caught.value.hint == "docker pull no/such:image"

    def test_a_program_that_the_image_lacks_is_named_in_the_log(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        broken = LaunchPlan.from_json({**plan().to_json(), "argv": ["/no/such/engine"]})
        server = start(broken)
        with pytest.raises(NotReady, match="not found or may not be run") as caught:
            self.ready(server)
        assert caught.value.exit_info is not None
        assert caught.value.exit_info.code == 127
        server.stop()
        assert "/no/such/engine" in "".join(log_tail(server.log_path))

    def test_gpus_that_docker_cannot_give_are_an_environment_fault(
        self, launcher: Launcher, plan: PlanMaker, ticket: Ticket, tmp_path: Path
    ) -> None:
        from autotune.launch.gpus import list_gpus

        if list_gpus():
            pytest.skip("this machine has GPUs")
        with pytest.raises(EnvironmentFault, match="cannot give GPUs"):
            launcher.start(plan(gpus=None), ticket)
        assert launcher.sweep(ticket.study_id, tmp_path) == []


class TestAttachLauncher(LauncherContract):
    @pytest.fixture
    def running(self, process_plan: PlanMaker, tmp_path: Path) -> Iterator[RunningServer]:
        """A server that somebody else started."""
        other = launcher_for("process", clock=SystemClock(), stop=StopSignal())
        server = other.start(
            process_plan(), Ticket(study_id="theirs", trial=0, directory=tmp_path / "theirs")
        )
        self.ready(server)
        yield server
        server.stop(forced=True)

    @pytest.fixture
    def launcher(self) -> Launcher:
        return AttachLauncher(clock=SystemClock(), stop=StopSignal())

    @pytest.fixture
    def plan(self, running: RunningServer) -> PlanMaker:
        def make(**fields: object) -> LaunchPlan:
            words = {"url": running.url, "model": "fake/model", **fields}
            return LaunchPlan(engine="generic", launcher="attach", argv=(), **words)

        return make

    def test_stop_leaves_the_server_alone(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        server = start(plan())
        assert not server.stop(forced=True).by_us
        assert answers(server.url)

    def test_identity_tells_models_and_version(
        self, start: Callable[[LaunchPlan], RunningServer], plan: PlanMaker
    ) -> None:
        identity = start(plan()).identity()
        assert identity["models"] == ["fake/model"]
        assert identity["version"] == "0.0-fake"

    def test_a_server_with_another_model_is_refused(
        self, launcher: Launcher, plan: PlanMaker
    ) -> None:
        with pytest.raises(InputError, match="does not serve some/other"):
            launcher.check(plan(model="some/other"))

    def test_a_server_that_went_away_is_noticed(
        self,
        start: Callable[[LaunchPlan], RunningServer],
        plan: PlanMaker,
        launcher: Launcher,
        running: RunningServer,
    ) -> None:
        server = start(plan())
        running.stop(forced=True)
        assert wait_until(lambda: server.poll() is not None)
        with pytest.raises(EnvironmentFault, match="no server answers"):
            launcher.check(plan())

    def test_a_plan_without_address_is_an_input_error(self, launcher: Launcher) -> None:
        with pytest.raises(InputError, match="address of a running server"):
            launcher.check(LaunchPlan(engine="generic", launcher="attach", argv=(), model="m"))
