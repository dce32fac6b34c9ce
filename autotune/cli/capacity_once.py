"""The capacity of one server that runs: for `replay --capacity`, and `verify`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from autotune.cli import replay_progress
from autotune.cli.console import say
from autotune.clock import Clock, StopSignal
from autotune.errors import NoFeasible, Untrustworthy
from autotune.launch.launcher import RunningServer
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import Infeasible, Measured, Outcome, Unmeasurable
from autotune.replay.records import ReplayResult
from autotune.spec.expressions import parse_objective
from autotune.study.capacity import CapacitySearch, CapacityTask
from autotune.study.measurer import Measurer
from autotune.study.measuring import MeasureSession, MeasureSettings
from autotune.study.watching import early_watch
from autotune.workload.trace import Trace

CAPACITY = parse_objective("maximize capacity")
FROM_THE_RECORDED_RATE = CapacityTask()


def replayed(session: MeasureSession, progress: str) -> ReplayResult:
    """Warm up and replay, telling about it on stderr. `progress`: as the option of that name."""
    say("warming up")
    session.warm_up()
    say(f"replaying {len(session.trace.requests):,} requests, about {session.expected_s:.0f} s")
    with replay_progress.listening(progress) as listener:
        return session.replay(deadline_s=None, on_progress=listener)


def measure_capacity(
    server: RunningServer,
    trace: Trace,
    folder: Path,
    settings: MeasureSettings,
    *,
    task: CapacityTask = FROM_THE_RECORDED_RATE,
    clock: Clock,
    stop: StopSignal,
    startup_s: float | None = None,
    held_out: bool = False,
    progress: str = "none",
) -> Measurement:
    """Find the highest rate that meets the limits of `settings`; its measurement has `capacity`
    among its metrics. Raises NoFeasible where no rate does, Untrustworthy where a replay told
    nothing.
    """
    measurer = Measurer(settings, clock=clock, stop=stop)
    salt = uuid.uuid4().hex[:12]

    def session(multiplier: float, place: Path, number: int) -> MeasureSession:
        return measurer.session(
            server, trace, place, startup_s, salt=f"{salt}-{number}", held_out=held_out,
            multiplier=multiplier,
        )  # fmt: skip

    def visit(
        one: MeasureSession, baseline: Mapping[str, float | None] | None, whole: bool
    ) -> Outcome:
        limits = one.settings.constraints
        one.watch = (
            None
            if whole
            else early_watch((), limits, baseline=baseline, to_beat=None, mode="exact")
        )
        outcome = one.judge(replayed(one, progress), baseline=baseline)
        if isinstance(outcome, Unmeasurable) and outcome.measurement is not None:
            again = one.again(outcome.measurement.validity, left_s=None)
            if again is not None:
                say(f"measuring again: {'; '.join(again.repeated_because)}")
                outcome = again.judge(replayed(again, progress), baseline=baseline)
        return outcome

    search = CapacitySearch[Outcome](
        objective=CAPACITY,
        constraints=settings.constraints,
        window_s=trace.duration_s,
        folder=folder,
        clock=clock,
        session=session,
        visit=visit,
        left_s=lambda: None,
        on_step=say,
    )
    return _measurement(search.run(task))


def _measurement(outcome: Outcome) -> Measurement:
    match outcome:
        case Measured(measurement=measurement):
            return measurement
        case Infeasible(diagnosis=diagnosis):
            raise NoFeasible(
                message=f"no rate meets the limits: {diagnosis.message}",
                seen="\n".join(diagnosis.evidence) or None,
            )
        case _:
            raise Untrustworthy(message="the capacity could not be measured", seen=outcome.message)
