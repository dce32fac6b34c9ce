"""The search for the capacity of one server: what it replays, keeps, and says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from autotune.clock import VirtualClock
from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement, Validity
from autotune.measure.outcome import Infeasible, Measured, Outcome, Unmeasurable
from autotune.measure.scoring import score
from autotune.search.capacity import RESOLUTION, multiplier_of, rung_of
from autotune.space.candidate import Candidate
from autotune.spec.expressions import parse_constraint, parse_objective
from autotune.study.capacity import (
    FILE,
    USUAL_STEPS,
    CapacitySearch,
    CapacityTask,
    capacity_task,
    searched_objective,
    usual_replay_s,
)
from autotune.study.measuring import MeasureSession, MeasureSettings
from autotune.study.task import TrialTask
from autotune.workload.scenarios import make as recording

CAPACITY = parse_objective("maximize capacity")
WINDOW_S = 60.0


@dataclass
class Session:
    multiplier: float
    folder: Path
    settings: MeasureSettings


@dataclass
class Server:
    """TTFT grows with the rate: `ttft_1` at the recorded one; above `holds` requests fail."""

    folder: Path
    limit: str = "ttft_p95 <= 300ms"
    ttft_1: float = 0.1
    fails_above: float = 1e9
    answers: Callable[[float], Outcome | str | None] = lambda multiplier: None
    left_s: float | None = None
    clock: VirtualClock = field(default_factory=VirtualClock)
    tried: list[tuple[float, bool, Mapping[str, float | None] | None, int | None]] = field(
        default_factory=list
    )
    words: list[str] = field(default_factory=list)

    def measured(self, multiplier: float) -> Measurement:
        failed = 20 if multiplier > self.fails_above else 0
        metrics = {"ttft_p95_s": self.ttft_1 * multiplier, "success_rate": 1 - failed / 100}
        return Measurement(
            validity=Validity(verdict="valid"), planned=100, ok=100 - failed, failed=failed,
            failed_by_reason={}, metrics=metrics, intervals=dict.fromkeys(metrics, (None, None)),
            client={},
        )  # fmt: skip

    def visit(
        self, session: Any, baseline: Mapping[str, float | None] | None, whole: bool
    ) -> Outcome | str:
        self.tried.append((session.multiplier, whole, baseline, session.settings.warmup))
        self.clock.sleep(WINDOW_S / session.multiplier + 5)
        (session.folder / "requests.parquet").write_text(f"{session.multiplier}")
        given = self.answers(session.multiplier)
        if given is not None:
            return given
        found = self.measured(session.multiplier)
        settings = session.settings
        reference = found.metrics if baseline is None else baseline
        verdict = score(found, settings.objectives, settings.constraints, reference)
        assert not isinstance(verdict, Infeasible | Unmeasurable)
        return Measured(measurement=found, score=verdict)

    def search(self, **task: Any) -> Outcome | str:
        constraints = [parse_constraint(self.limit)]
        settings = MeasureSettings(
            objectives=[CAPACITY], constraints=constraints, metric_names={}, vocab_size=100,
            warmup=None,
        )  # fmt: skip

        def session(multiplier: float, folder: Path, number: int) -> MeasureSession:
            assert number == len(self.tried) + 1
            return cast("MeasureSession", Session(multiplier, folder, settings))

        search = CapacitySearch[str](
            objective=CAPACITY,
            constraints=constraints,
            window_s=WINDOW_S,
            folder=self.folder,
            clock=self.clock,
            session=session,
            visit=self.visit,
            left_s=lambda: None if self.left_s is None else self.left_s - self.clock.monotonic(),
            on_step=self.words.append,
        )
        return search.run(CapacityTask(**task))

    @property
    def kept(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder / FILE).read_text())
        return data


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(folder=tmp_path)


def test_the_measurement_at_the_capacity_is_kept_with_it(server: Server) -> None:
    found = server.search()
    assert isinstance(found, Measured)
    capacity = found.score.values["maximize capacity"]
    assert 3.0 / (1 + RESOLUTION) <= capacity <= 3.0
    metrics = found.measurement.metrics
    assert metrics["capacity"] == capacity
    assert metrics["ttft_p95_s"] == pytest.approx(0.1 * capacity)
    assert found.measurement.intervals["capacity"] == (capacity, server.kept["failed_at"])
    assert found.measurement.context["rate_multiplier"] == capacity
    assert found.score.feasible
    assert found.score.cautious == {}
    assert set(found.score.observed) == {"ttft_p95 <= 300ms"}
    assert (server.folder / "requests.parquet").read_text() == str(capacity)
    assert not (server.folder / "steps").exists()


def test_the_file_tells_every_step(server: Server) -> None:
    server.search()
    kept = server.kept
    assert (kept["ended"], kept["resolution"], kept["start"]) == ("found", RESOLUTION, 1.0)
    assert [step["multiplier"] for step in kept["steps"]] == [t[0] for t in server.tried]
    first, last = kept["steps"][0], kept["steps"][2]
    assert (first["met"], first["worst"]) == (True, pytest.approx(0.1 / 0.3 - 1))
    assert (last["met"], last["worst"] > 0) == (False, True)
    assert first["seconds"] == pytest.approx(65)
    assert server.words[0] == "at 1x the recorded rate"
    assert server.words[1] == "at 2x the recorded rate (1x held)"


def test_steps_have_no_objectives_and_only_the_first_wakes_the_kernels(server: Server) -> None:
    server.search()
    assert [warmup for _, _, _, warmup in server.tried[:3]] == [None, 0, 0]
    assert {whole for _, whole, _, _ in server.tried} == {False}


def test_it_begins_at_what_is_to_be_beaten(server: Server) -> None:
    best = multiplier_of(rung_of(2.5))
    found = server.search(start=best, to_beat=best)
    assert server.tried[0][0] == best
    assert isinstance(found, Measured)
    assert found.score.values["maximize capacity"] > best


def test_a_candidate_far_below_the_best_is_infeasible_with_its_violations(server: Server) -> None:
    server.ttft_1 = 0.075
    found = server.search(start=8.0, to_beat=8.0)
    assert isinstance(found, Measured)
    assert found.score.values["maximize capacity"] <= 4.0  # half of it: found on the way down
    server = Server(folder=server.folder, ttft_1=0.29)
    far = server.search(start=8.0, to_beat=8.0)
    assert isinstance(far, Infeasible)
    assert (far.diagnosis.reason, far.diagnosis.fault) == ("cannot_beat_best", "candidate")
    assert "the best so far holds 8 times" in far.diagnosis.message
    assert far.score is None
    assert far.stopped is not None
    assert (far.stopped.limit, far.stopped.target) == (8.0, "maximize capacity")
    assert far.stopped.best is not None
    assert server.kept["failed_at"] == multiplier_of(rung_of(far.stopped.best) + 1)
    assert far.violations == {"cannot_beat_best": pytest.approx(1 - far.stopped.best / 8)}
    assert server.kept["capacity"] is None


def test_limits_that_no_rate_meets_are_told_with_the_nearest(server: Server) -> None:
    server.limit = "ttft_p95 <= 1ms"
    found = server.search()
    assert isinstance(found, Infeasible)
    assert found.diagnosis.reason == "no_capacity"
    assert found.measurement is not None
    assert set(found.violations) == {"ttft_p95 <= 1ms"}
    assert found.diagnosis.evidence[0].startswith("ttft_p95 <= 1ms: missed by")
    assert server.kept["ended"] == "never_met"


def test_a_rate_at_which_requests_fail_does_not_hold(server: Server) -> None:
    server.fails_above = 2.2
    found = server.search()
    assert isinstance(found, Measured)
    assert 2.2 / (1 + RESOLUTION) <= found.score.values["maximize capacity"] <= 2.2
    lax = Server(folder=server.folder, fails_above=2.2, limit="success_rate >= 50%")
    unbounded = lax.search()
    assert isinstance(unbounded, Measured)
    assert lax.kept["ended"] == "always_met"


def test_relative_limits_refer_to_the_recorded_rate(server: Server) -> None:
    server.limit = "ttft_p95 <= 2 x baseline"
    own = server.search(start=1.7, recorded_rate=True)
    assert isinstance(own, Measured)
    assert server.tried[0] == (1.0, True, None, None)
    assert {t[0] for t in server.tried[1:] if t[2] is None} == set()
    assert 2.0 / (1 + RESOLUTION) <= own.score.values["maximize capacity"] <= 2.0
    assert own.measurement.reference["ttft_p95_s"] == pytest.approx(0.1)
    assert own.measurement.metrics["ttft_p95_s"] > 0.15

    other = Server(folder=server.folder, limit=server.limit, ttft_1=0.05)
    found = other.search(start=2.0, baseline=own.measurement.reference)
    assert isinstance(found, Measured)
    assert 4.0 / (1 + RESOLUTION) <= found.score.values["maximize capacity"] <= 4.0


def test_a_server_that_dies_ends_the_search_as_it_is(server: Server) -> None:
    server.answers = lambda multiplier: "died" if multiplier > 1.5 else None
    assert server.search() == "died"
    assert not (server.folder / FILE).exists()
    assert not (server.folder / "steps").exists()
    assert (server.folder / "requests.parquet").exists()


def test_a_replay_without_a_verdict_ends_with_what_is_known(server: Server) -> None:
    void = Unmeasurable(reason="measurement_invalid", message="the client was late")
    server.answers = lambda multiplier: void if multiplier > 1.5 else None
    found = server.search()
    assert isinstance(found, Measured)
    assert found.score.values["maximize capacity"] == 1.0
    assert server.kept["ended"] == "unjudged"
    server.answers = lambda multiplier: void
    server.tried.clear()
    assert server.search() == void


def test_a_replay_that_was_given_up_counts_as_missed(server: Server) -> None:
    hopeless = Infeasible(
        diagnosis=Diagnosis(
            fault="candidate", phase="load", reason="limit_out_of_reach", remedy=None, message="",
        )
    )  # fmt: skip
    server.answers = lambda multiplier: hopeless if multiplier > 1.3 else None
    found = server.search()
    assert isinstance(found, Measured)
    assert 1.3 / (1 + RESOLUTION) <= found.score.values["maximize capacity"] <= 1.3


def test_no_replay_is_begun_that_cannot_end_in_time(server: Server) -> None:
    server.left_s = 110.0  # 65 s at the recorded rate, 35 s at twice of it, not another 45 s
    found = server.search()
    assert isinstance(found, Measured)
    assert found.score.values["maximize capacity"] == multiplier_of(rung_of(2.0))
    assert server.kept["ended"] == "time"
    late = Server(folder=server.folder, left_s=10.0)
    assert isinstance(late.search(), Unmeasurable)


def test_only_capacity_is_searched_for() -> None:
    assert searched_objective([CAPACITY]) == CAPACITY
    assert searched_objective([parse_objective("minimize ttft_p95")]) is None


def test_an_estimate_knows_of_the_replays_of_a_search() -> None:
    trace = recording("quickstart")
    one = usual_replay_s(trace, [parse_objective("minimize ttft_p95")])
    assert usual_replay_s(trace, [CAPACITY]) == USUAL_STEPS * one


@pytest.mark.parametrize("relative", [False, True])
def test_a_trial_begins_at_what_is_known(lab: Any, relative: bool) -> None:
    limit = "tpot_p95 <= 2 x baseline" if relative else "ttft_p95 <= 1s"
    study = lab.prepare(objective="maximize capacity", constraints=[limit]).study

    def task(seqs: int, **more: Any) -> CapacityTask:
        candidate = Candidate({"max-num-seqs": seqs})
        return capacity_task(TrialTask(number=1, role="search", candidate=candidate, **more), study)

    assert task(16) == CapacityTask()
    assert task(16, to_beat=2.0) == CapacityTask(start=2.0, to_beat=2.0)
    again = task(16, seen=1.5, to_beat=2.0)
    assert (again.start, again.to_beat) == (1.5, None)
    assert task(8, seen=1.5).recorded_rate == relative
    assert task(16, seen=1.5).recorded_rate is False
