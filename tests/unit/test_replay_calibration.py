from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.clock import StopSignal, VirtualClock
from autotune.errors import Untrustworthy
from autotune.replay import calibration
from autotune.replay.calibration import (
    BUSY_SHARE,
    DAY_S,
    FLOOR_CHUNKS_PER_S,
    Capacity,
    capacity_here,
    plan_client,
    spare_cores,
    ttft_errors,
)
from autotune.replay.records import RequestRecord

FAST = Capacity(
    chunks_per_s=50_000.0, ttft_error_p50_s=0.0002, ttft_error_p99_s=0.001, measured_at=0.0
)
MANY = tuple(range(16))


def never() -> Capacity | None:
    raise AssertionError("a small load is not worth a calibration")


def test_a_small_load_has_one_worker_and_asks_nothing() -> None:
    plan = plan_client(900.0, never, cores=MANY, local=True)
    assert (plan.workers, plan.capacity, plan.shared_cores) == (1, None, False)


@pytest.mark.parametrize(
    ("load", "workers"), [(1_000.0, 1), (20_000.0, 1), (20_001.0, 2), (90_000.0, 5), (1e9, 8)]
)
def test_workers_follow_from_the_load_and_the_capacity(load: float, workers: int) -> None:
    assert BUSY_SHARE * FAST.chunks_per_s == 20_000
    assert plan_client(load, lambda: FAST, cores=MANY, local=True).workers == workers


def test_a_machine_that_cannot_be_measured_is_taken_for_a_slow_one() -> None:
    plan = plan_client(2.5 * BUSY_SHARE * FLOOR_CHUNKS_PER_S, lambda: None, cores=MANY, local=True)
    assert (plan.workers, plan.capacity) == (3, None)


def test_workers_are_pinned_only_beside_an_engine_with_cores_to_spare() -> None:
    beside = plan_client(30_000.0, lambda: FAST, cores=MANY, local=True)
    assert (beside.workers, beside.cores, beside.shared_cores) == (2, (14, 15), False)
    small = plan_client(30_000.0, lambda: FAST, cores=(0, 1), local=True)
    assert (small.workers, small.cores, small.shared_cores) == (1, (), True)
    away = plan_client(30_000.0, lambda: FAST, cores=(0, 1), local=False)
    assert (away.cores, away.shared_cores) == ((), False)


def test_the_engine_keeps_half_of_the_cores() -> None:
    assert [spare_cores(n) for n in (1, 2, 3, 4, 8, 64)] == [1, 1, 1, 2, 4, 16]


def test_the_facts_of_a_plan_say_what_the_machine_can() -> None:
    facts = plan_client(30_000.0, lambda: FAST, cores=MANY, local=True).facts()
    assert facts["capacity_chunks_per_s"] == 50_000
    assert facts["cores"] == [14, 15]
    assert "capacity_chunks_per_s" not in plan_client(9.0, never, cores=MANY, local=True).facts()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Instants at which a calibration ran."""
    times: list[float] = []

    def calibrate(directory: Path, *, clock: VirtualClock, stop: StopSignal) -> Capacity:
        times.append(clock.monotonic())
        return Capacity(
            chunks_per_s=1e4, ttft_error_p50_s=0.0, ttft_error_p99_s=0.0,
            measured_at=clock.utcnow().timestamp(),
        )  # fmt: skip

    monkeypatch.setattr(calibration, "calibrate", calibrate)
    return times


def test_figures_are_kept_for_a_day_and_for_this_machine_only(
    asked: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, cache = VirtualClock(), tmp_path / "deep" / "capacity.json"

    def ask() -> Capacity | None:
        return capacity_here(tmp_path, clock=clock, stop=StopSignal(), cache=cache)

    first = ask()
    assert ask() == first
    clock.sleep(DAY_S - 1)
    assert ask() == first
    assert len(asked) == 1
    clock.sleep(2)
    ask()
    assert len(asked) == 2
    monkeypatch.setattr(calibration, "machine", lambda: {"host": "another"})
    ask()
    assert len(asked) == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": {}}', "\x00\x01"])
def test_a_broken_cache_is_measured_again(asked: list[float], tmp_path: Path, text: str) -> None:
    cache = tmp_path / "capacity.json"
    cache.write_text(text)
    found = capacity_here(tmp_path, clock=VirtualClock(), stop=StopSignal(), cache=cache)
    assert found is not None
    assert len(asked) == 1


def raising(error: Exception) -> Callable[..., Capacity]:
    def calibrate(directory: Path, *, clock: VirtualClock, stop: StopSignal) -> Capacity:
        raise error

    return calibrate


@pytest.mark.parametrize(
    "error", [Untrustworthy(message="no"), OSError("no port"), ValueError("nothing answered")]
)
def test_a_machine_that_cannot_be_measured_stops_nothing(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "calibrate", raising(error))
    cache = tmp_path / "capacity.json"
    assert capacity_here(tmp_path, clock=VirtualClock(), stop=StopSignal(), cache=cache) is None
    assert not cache.exists()


def test_errors_are_ours_minus_the_servers_waiting_for_the_schedule_included() -> None:
    record = RequestRecord(
        index=7, due_s=1.0, measured=True, planned_input_tokens=1, planned_output_tokens=1,
        sent_s=1.002, first_token_s=1.103,
    )  # fmt: skip
    lost = RequestRecord(
        index=8, due_s=1.0, measured=True, planned_input_tokens=1, planned_output_tokens=1,
        failure="cut",
    )  # fmt: skip
    truths = [{"id": "run-7", "arrived": 50.0, "first": 50.1}, {"id": "run-8", "arrived": 50.0}]
    assert list(ttft_errors([record, lost], truths)) == [pytest.approx(0.003)]
