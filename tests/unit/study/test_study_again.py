"""A measurement that the client spoiled is made once more in the same launch, and only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.clock import StopSignal, VirtualClock
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Measured, Outcome, Score, Unmeasurable
from autotune.replay.calibration import ClientPlan
from autotune.replay.records import ClientHealth, ReplayResult
from autotune.study import client, trial
from autotune.study.measuring import MeasureSession, MeasureSettings
from autotune.study.stream import EventStream
from autotune.study.task import TrialTask
from autotune.study.trial import TrialExecutor
from autotune.workload.trace import Request, Trace

BUSY = Validity(verdict="invalid", reasons=("the client was busy",), causes=("client_busy",))


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasureSession:
    monkeypatch.setattr(client, "own_cores", lambda: tuple(range(8)))
    requests = (Request(at_s=0.0, input_tokens=4, output_tokens=4),)
    return MeasureSession(
        server_url="http://127.0.0.1:9", model="m", alive=lambda: True,
        trace=Trace(requests=requests, source_format="test"), folder=tmp_path, startup_s=1.0,
        salt="s-7",
        settings=MeasureSettings(
            objectives=(), constraints=(), metric_names={}, vocab_size=100, warmup=0
        ),
        clock=VirtualClock(), stop=StopSignal(), client=ClientPlan(workers=2),
    )  # fmt: skip


def test_a_client_that_was_too_slow_gets_more_workers_and_a_cache_state_of_its_own(
    session: MeasureSession,
) -> None:
    again = session.again(BUSY, left_s=None)
    assert again is not None
    assert again.client.workers == 4
    assert again.salt != session.salt
    assert again.repeated_because == ("the client was busy",)
    assert again.again(BUSY, left_s=None) is None  # once


@pytest.mark.parametrize(
    "validity",
    [
        None,
        Validity(verdict="valid"),
        Validity(verdict="suspect", reasons=("a",), causes=("client_busy",)),
        Validity(verdict="invalid", reasons=("a", "b"), causes=("wrong_length", "client_busy")),
        Validity(verdict="invalid", reasons=("a",), causes=("ended_early",)),
        Validity(verdict="invalid", reasons=("an old file",)),
    ],
)
def test_nothing_else_is_repeated(session: MeasureSession, validity: Validity | None) -> None:
    assert session.again(validity, left_s=None) is None


def test_it_is_not_repeated_beyond_the_time_that_is_left(session: MeasureSession) -> None:
    assert session.again(BUSY, left_s=session.expected_s - 0.1) is None
    assert session.again(BUSY, left_s=session.expected_s + 0.1) is not None


def measurement(validity: Validity) -> Measurement:
    return Measurement(
        validity=validity, planned=1, ok=1, failed=0, failed_by_reason={}, metrics={},
        intervals={}, client={},
    )  # fmt: skip


class Scripted:
    """Sessions that end one after another as told."""

    def __init__(self, ends: list[Outcome]) -> None:
        self._ends = ends
        self.calls: list[str] = []
        self.expected_s = 1.0
        self.repeated_because = ("the client was busy",)

    def warm_up(self) -> None:
        self.calls.append("warm_up")

    def replay(self, *, deadline_s: float | None, on_progress: Callable[..., None]) -> ReplayResult:
        self.calls.append("replay")
        health = ClientHealth(dispatch_lag_p99_s=None, loop_lag_p99_s=None, cpu_share=None)
        return ReplayResult(records=(), health=health, window_s=(0.0, 1.0), wall_s=1.0)

    def judge(self, result: ReplayResult, *, baseline: Any) -> Outcome:
        return self._ends.pop(0)

    def again(self, validity: Validity | None, *, left_s: float | None) -> Scripted | None:
        return self if validity is not None and validity.client_limited else None


class Server:
    url = "http://127.0.0.1:9"

    def poll(self) -> None:
        return None


def attempt(lab: Any, make: Any, ends: list[Outcome], monkeypatch: pytest.MonkeyPatch) -> Any:
    lab.prepare()
    executor = TrialExecutor(
        lab.study, lab.directory, EventStream(lab.clock, lab.directory, [lab.heard.append]),
        clock=lab.clock, stop=lab.stop, render_script=lambda plan, number: "",
    )  # fmt: skip
    scripted = Scripted(ends)
    monkeypatch.setattr(executor._visitor._measurer, "session", lambda *a, **k: scripted)
    phases = trial.PhaseClock(executor._events, lab.clock, {}, 0, None)
    task = TrialTask(number=0, role="search", candidate=make.candidate(16))
    found = executor._visitor.run(task, Server(), 1.0, Path(), phases)  # type: ignore[arg-type]
    return found, scripted


SPOILED = Unmeasurable(reason="measurement_invalid", message="busy", measurement=measurement(BUSY))
GOOD = Measured(
    measurement=measurement(Validity(verdict="valid")),
    score=Score(values={}, violations={}, limits={}),
)


def test_a_spoiled_measurement_is_made_again_in_the_same_launch_and_the_user_is_told(
    lab: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, scripted = attempt(lab, make, [SPOILED, GOOD], monkeypatch)
    assert found is GOOD
    assert scripted.calls == ["warm_up", "replay", "warm_up", "replay"]
    notes = [event.data["message"] for event in lab.heard if event.kind == "note"]
    assert notes == ["trial 0 is measured again: the client was busy"]


def test_a_second_spoiled_measurement_stands_and_is_never_scored(
    lab: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, scripted = attempt(lab, make, [SPOILED, SPOILED], monkeypatch)
    assert found is SPOILED
    assert scripted.calls.count("replay") == 2


def test_a_good_measurement_is_made_once(
    lab: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, scripted = attempt(lab, make, [GOOD], monkeypatch)
    assert (found, scripted.calls) == (GOOD, ["warm_up", "replay"])
