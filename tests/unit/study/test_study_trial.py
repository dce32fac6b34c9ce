"""One trial, whatever happens to its server: always a closed folder, always the right verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.canonical import Json
from autotune.engines.engine import ExitInfo
from autotune.engines.plan import LaunchPlan
from autotune.errors import EnvironmentFault, InputError, Interrupted, Untrustworthy
from autotune.launch.launcher import Ticket
from autotune.study import trial, visit
from autotune.study.directory import StudyDirectory
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.trial import TrialExecutor

UNKNOWN_FLAG = (
    "usage: autotune.simulator serve [-h]\n"
    "autotune.simulator serve: error: unrecognized arguments: --max-num-sequences 8\n"
)


class Server:
    """A server that never serves: it has ended as told, or runs and stays silent."""

    def __init__(self, launcher: Launcher, plan: LaunchPlan, folder: Path) -> None:
        self.url = "http://127.0.0.1:9"
        self.plan = plan
        self.log_path: Path | None = folder / "server.log"
        self._launcher = launcher

    def identity(self) -> Mapping[str, Json]:
        return {}

    def listener(self) -> str | None:
        return None

    def poll(self) -> ExitInfo | None:
        return self._launcher.exit

    def stop(self, *, forced: bool = False) -> ExitInfo:
        self._launcher.stopped.append(forced)
        assert self.log_path is not None
        self.log_path.write_text(self._launcher.log)
        if self._launcher.survives:
            raise EnvironmentFault(message="processes of the server could not be ended")
        return self._launcher.exit or ExitInfo(code=-15, by_us=True)


class Launcher:
    """Starts such servers, or refuses."""

    kind = "process"

    def __init__(self) -> None:
        self.exit: ExitInfo | None = None
        self.log = ""
        self.refusal: Exception | None = None
        self.survives = False
        self.stopped: list[bool] = []

    def check(self, plan: LaunchPlan) -> None:
        return

    def start(self, plan: LaunchPlan, ticket: Ticket) -> Server:
        if self.refusal is not None:
            raise self.refusal
        return Server(self, plan, ticket.directory)

    def sweep(self, study_id: str, directory: Path) -> list[str]:
        return []


@pytest.fixture
def launcher() -> Launcher:
    return Launcher()


def executor(lab: Any, launcher: Launcher, **changes: Any) -> TrialExecutor:
    lab.prepare(**changes)
    return TrialExecutor(
        replace(lab.study, launcher=launcher),
        lab.directory,
        EventStream(lab.clock, lab.directory, [lab.heard.append]),
        clock=lab.clock,
        stop=lab.stop,
        render_script=lambda plan, number: f"#!/bin/sh\n# trial {number}\n",
    )


def task(make: Any, **changes: Any) -> TrialTask:
    return TrialTask(**{"number": 0, "role": "search", "candidate": make.candidate(16)} | changes)


def test_start_that_fails_is_a_fault_of_the_machine(
    lab: Any, make: Any, launcher: Launcher
) -> None:
    launcher.refusal = EnvironmentFault(message="no space left", seen="/var/lib is full")
    record, _ = executor(lab, launcher).run(task(make))
    assert (record.state, record.fault, record.reason) == (
        "unmeasurable",
        "environment",
        "environment",
    )
    assert record.message == "no space left: /var/lib is full"
    assert lab.directory.records() == [record]
    assert launcher.stopped == []


def test_launch_files_are_there_even_when_the_start_failed(
    lab: Any, make: Any, launcher: Launcher
) -> None:
    launcher.refusal = EnvironmentFault(message="no")
    executor(lab, launcher).run(task(make))
    folder = lab.directory.trial(0)
    plan = json.loads((folder / "plan.json").read_text())["members"][0]
    assert plan["argv"][-2:] != []
    assert "--max-num-seqs" in plan["argv"]
    assert (folder / "launch.sh").stat().st_mode & 0o111


def test_secret_that_is_gone_closes_the_trial_and_ends_the_study(
    lab: Any, make: Any, launcher: Launcher
) -> None:
    launcher.refusal = InputError(message="environment variable HF_TOKEN is not set")
    with pytest.raises(InputError, match="HF_TOKEN"):
        executor(lab, launcher).run(task(make))
    assert lab.states() == ["search interrupted"]
    assert lab.directory.partial_trials() == []


def test_log_is_read_after_the_server_was_ended(lab: Any, make: Any, launcher: Launcher) -> None:
    launcher.exit, launcher.log = ExitInfo(code=2), UNKNOWN_FLAG
    record, _ = executor(lab, launcher).run(task(make))
    assert (record.state, record.fault, record.phase) == ("infeasible", "study", "arguments")
    assert any("--max-num-sequences" in line for line in record.evidence)
    assert launcher.stopped == [False]


def test_server_that_never_answers_is_given_up_at_the_limit(
    lab: Any, make: Any, launcher: Launcher
) -> None:
    engine = {"kind": "simulated", "startup_timeout": "5s"}
    record, _ = executor(lab, launcher, engine=engine).run(task(make))
    assert (record.state, record.reason) == ("infeasible", "not_ready_in_time")
    assert record.seconds["launching"] == pytest.approx(5.0, abs=0.2)


def test_server_given_up_since_the_budget_ended_is_no_bad_candidate(
    lab: Any, make: Any, launcher: Launcher
) -> None:
    record, _ = executor(lab, launcher).run(task(make, deadline_s=3.0))
    assert (record.state, record.reason, record.fault) == ("unmeasurable", "budget_ended", None)
    assert record.seconds["launching"] == pytest.approx(3.0, abs=0.2)


def test_interrupt_ends_the_server_and_closes_the_trial(
    lab: Any, make: Any, launcher: Launcher
) -> None:
    runner = executor(lab, launcher)
    lab.heard.clear()
    begun = lab.clock.sleep

    def sleep(seconds: float) -> None:
        begun(seconds)
        lab.stop.request()

    lab.clock.sleep = sleep
    with pytest.raises(Interrupted):
        runner.run(task(make))
    assert lab.states() == ["search interrupted"]
    assert launcher.stopped == [False]


def test_second_interrupt_skips_the_polite_wait_but_not_the_removal(
    lab: Any, make: Any, launcher: Launcher
) -> None:
    runner = executor(lab, launcher)
    begun = lab.clock.sleep

    def sleep(seconds: float) -> None:
        begun(seconds)
        lab.stop.request()
        lab.stop.request()

    lab.clock.sleep = sleep
    with pytest.raises(Interrupted):
        runner.run(task(make))
    assert launcher.stopped == [True]


def test_server_that_survives_an_interrupt_is_told_and_the_trial_is_interrupted(
    lab: Any, make: Any, launcher: Launcher
) -> None:
    launcher.survives = True
    runner = executor(lab, launcher)
    begun = lab.clock.sleep

    def sleep(seconds: float) -> None:
        begun(seconds)
        lab.stop.request()

    lab.clock.sleep = sleep
    with pytest.raises(EnvironmentFault, match="could not be ended"):
        runner.run(task(make))
    assert lab.states() == ["search interrupted"]


class Session:
    """A measurement that ends as told."""

    expected_s = 2.0

    def __init__(self, ends: Any) -> None:
        self._ends = ends
        self.deadline_s: float | None = None

    def warm_up(self) -> None:
        return

    def replay(self, *, deadline_s: float | None, on_progress: Any) -> Any:
        self.deadline_s = deadline_s
        if isinstance(self._ends, Exception):
            raise self._ends
        return self

    aborted = None
    records: tuple[Any, ...] = ()

    def judge(self, result: Any, *, baseline: Any) -> Any:
        return self._ends


def serving(monkeypatch: pytest.MonkeyPatch, runner: TrialExecutor, ends: Any, clock: Any) -> Any:
    """Let every server be ready after four seconds and every measurement end so."""
    session = Session(ends)

    def ready(server: Any, **_: Any) -> float:
        clock.sleep(4.0)
        return 4.0

    monkeypatch.setattr(trial, "wait_ready", ready)
    monkeypatch.setattr(runner._visitor._measurer, "session", lambda *a, **k: session)
    return session


def test_client_that_fails_gives_no_verdict_on_the_settings(
    lab: Any, make: Any, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = executor(lab, launcher)
    broken = Untrustworthy(message="a replay worker process broke", seen="exit status 1")
    serving(monkeypatch, runner, broken, lab.clock)
    record, _ = runner.run(task(make))
    assert (record.state, record.fault, record.reason) == ("unmeasurable", "tool", "client_failed")
    assert record.message == "a replay worker process broke: exit status 1"
    assert launcher.stopped == [False]


def test_replay_gets_what_the_start_up_left_of_the_time(
    lab: Any, make: Any, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = executor(lab, launcher)
    session = serving(
        monkeypatch, runner, make.diagnosis("candidate", "requests_failed"), lab.clock
    )
    record, _ = runner.run(task(make, deadline_s=30.0))
    assert session.deadline_s == pytest.approx(26.0)
    assert list(record.seconds) == [
        "launching", "warming", "replaying", "scoring", "stopping", "total",
    ]  # fmt: skip
    assert record.seconds["total"] == 4.0


def test_result_is_kept_when_the_server_survives_its_end(
    lab: Any, make: Any, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.survives = True
    runner = executor(lab, launcher)
    serving(monkeypatch, runner, make.diagnosis("candidate", "requests_failed"), lab.clock)
    with pytest.raises(EnvironmentFault):
        runner.run(task(make))
    assert lab.states() == ["search infeasible"]


def test_server_is_ended_even_when_the_disk_takes_no_event_any_more(
    lab: Any, make: Any, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = executor(lab, launcher)
    serving(monkeypatch, runner, make.served(0.1), lab.clock)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        Session, "warm_up", lambda _: monkeypatch.setattr(StudyDirectory, "append_event", full)
    )
    with pytest.raises(OSError, match="No space left"):
        runner.run(task(make))
    assert launcher.stopped == [False]


class Broken:
    """A request that was answered with the error of a dying server."""

    failure = "http_5xx"
    measured = True
    broken_off = False


class Cut:
    """Load behind the window, broken off by the client once the last answer was there."""

    failure = "cut"
    measured = False


def test_load_that_the_client_broke_off_itself_makes_nobody_wait(
    lab: Any, make: Any, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = executor(lab, launcher)
    session = serving(
        monkeypatch, runner, make.diagnosis("candidate", "requests_failed"), lab.clock
    )
    session.records = (Cut(),)
    record, _ = runner.run(task(make))
    assert record.reason == "requests_failed"
    assert record.seconds["total"] == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize("dies_after_s", [0.0, 2.0])
def test_server_that_dies_as_the_replay_ends_is_explained_by_its_log(
    lab: Any, make: Any, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, dies_after_s: float
) -> None:
    runner = executor(lab, launcher)
    session = serving(monkeypatch, runner, make.served(0.1), lab.clock)
    session.records = (Broken(),)
    launcher.log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.\n"

    def poll(server: Server) -> ExitInfo | None:
        gone = lab.clock.monotonic() >= 4.0 + dies_after_s
        return ExitInfo(code=1) if gone else None

    monkeypatch.setattr(Server, "poll", poll)
    record, _ = runner.run(task(make))
    assert (record.state, record.reason, record.phase) == ("infeasible", "oom_under_load", "load")
    assert record.values == {}


def test_server_that_answers_badly_but_lives_is_judged_by_its_answers(
    lab: Any, make: Any, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = executor(lab, launcher)
    session = serving(
        monkeypatch, runner, make.diagnosis("candidate", "requests_failed"), lab.clock
    )
    session.records = (Broken(),)
    record, _ = runner.run(task(make))
    assert record.reason == "requests_failed"
    assert record.seconds["total"] == pytest.approx(4.0 + visit.DEATH_WAIT_S, abs=0.1)
