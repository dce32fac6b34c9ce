"""The wait for readiness in virtual time, with doubles of server and probe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.clock import StopSignal, VirtualClock
from autotune.engines.engine import ExitInfo
from autotune.engines.plan import LaunchPlan
from autotune.errors import Interrupted
from autotune.launch.readiness import Finding, NotReady, wait_ready

PLAN = LaunchPlan(engine="fake", launcher="process", argv=("x",), model="m")


@dataclass
class FakeServer:
    """A double: ends and is listened at by the clock."""

    clock: VirtualClock
    ends_at: float | None = None
    ended: ExitInfo = field(default_factory=lambda: ExitInfo(code=3))
    url: str = "http://127.0.0.1:1"
    plan: LaunchPlan = PLAN
    log_path: Path | None = None

    def identity(self) -> dict[str, object]:
        return {}

    def poll(self) -> ExitInfo | None:
        gone = self.ends_at is not None and self.clock.monotonic() >= self.ends_at
        return self.ended if gone else None

    def stop(self, *, forced: bool = False) -> ExitInfo:
        return self.ended


@dataclass
class OwnedServer(FakeServer):
    """A double that knows who listens."""

    who: Callable[[float], str | None] = lambda _: ""

    def listener(self) -> str | None:
        return self.who(self.clock.monotonic())


@dataclass
class FakeProbe:
    """A double: what a probe finds at each time."""

    clock: VirtualClock
    finds: Callable[[float], Finding]
    looks: int = 0
    closed: bool = False

    def look(self) -> Finding:
        self.looks += 1
        return self.finds(self.clock.monotonic())

    def close(self) -> None:
        self.closed = True


def loading_until(seconds: float) -> Callable[[float], Finding]:
    return lambda now: Finding(state="ready" if now >= seconds else "loading", message="503")


def wait(server: FakeServer, probe: FakeProbe, timeout_s: float = 60.0, **more: object) -> float:
    return wait_ready(
        server, timeout_s=timeout_s, clock=server.clock, stop=more.pop("stop", StopSignal()),
        probe=lambda _: probe, **more,
    )  # fmt: skip


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def test_the_seconds_until_the_first_generation_are_returned(clock: VirtualClock) -> None:
    probe = FakeProbe(clock, loading_until(12.0))
    assert wait(FakeServer(clock), probe) == pytest.approx(12.0, abs=0.2)
    assert probe.closed


def test_an_early_exit_is_noticed_within_a_second(clock: VirtualClock) -> None:
    server = FakeServer(clock, ends_at=5.0)
    with pytest.raises(NotReady, match="exited with code 3") as caught:
        wait(server, FakeProbe(clock, loading_until(99)))
    assert caught.value.kind == "exited"
    assert caught.value.seconds < 6.0


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (ExitInfo(code=-9), "killed by signal 9"),
        (ExitInfo(code=137, oom_killed=True), "out of memory"),
        (ExitInfo(), "is gone"),
        (ExitInfo(code=127), "not found"),
    ],
)
def test_the_way_it_ended_is_told(clock: VirtualClock, ended: ExitInfo, words: str) -> None:
    with pytest.raises(NotReady, match=words):
        wait(FakeServer(clock, ends_at=0.0, ended=ended), FakeProbe(clock, loading_until(9)))


def test_the_limit_is_hard_and_the_last_answer_is_told(clock: VirtualClock) -> None:
    with pytest.raises(NotReady, match=r"not ready in time \(8 s\); last: 503") as caught:
        wait(FakeServer(clock), FakeProbe(clock, loading_until(99)), timeout_s=8)
    assert caught.value.kind == "timeout"
    assert clock.monotonic() == pytest.approx(8.0, abs=0.01)


def test_nothing_is_asked_before_the_server_itself_listens(clock: VirtualClock) -> None:
    probe = FakeProbe(clock, loading_until(0))
    server = OwnedServer(clock, who=lambda now: None if now < 3 else "")
    assert wait(server, probe) == pytest.approx(3.0, abs=0.2)
    assert probe.looks == 1


def test_a_foreign_listener_ends_the_wait_without_a_request(clock: VirtualClock) -> None:
    probe = FakeProbe(clock, loading_until(0))
    with pytest.raises(NotReady, match=r"pid 7 \(old server\)") as caught:
        wait(OwnedServer(clock, who=lambda _: "pid 7 (old server)"), probe)
    assert caught.value.kind == "foreign"
    assert probe.looks == 0


@pytest.mark.parametrize("state", ["foreign", "refused"])
def test_final_findings_end_the_wait_at_once(clock: VirtualClock, state: str) -> None:
    with pytest.raises(NotReady, match="because") as caught:
        wait(FakeServer(clock), FakeProbe(clock, lambda _: Finding(state=state, message="because")))
    assert caught.value.kind == state


def test_the_users_wish_to_stop_ends_the_wait(clock: VirtualClock) -> None:
    stop = StopSignal()
    stop.request()
    probe = FakeProbe(clock, loading_until(0))
    with pytest.raises(Interrupted):
        wait(FakeServer(clock), probe, stop=stop)
    assert probe.closed


def test_phases_are_told_once_each_in_their_order(clock: VirtualClock, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("load\nload more\ncompile\nnoise\n")
    told: list[str] = []
    lines: list[str] = []
    wait(
        FakeServer(clock, log_path=log),
        FakeProbe(clock, loading_until(1)),
        on_phase=told.append,
        on_line=lines.append,
        phase_of=lambda line: {"load": "weights", "comp": "compile"}.get(line[:4]),
    )
    assert told == ["weights", "compile", "first_generation"]
    assert len(lines) == 4
