"""`verify`: start the emitted script as a user would, replay, compare with what was recorded."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.canonical import Json
from autotune.cli.capacity_once import measure_capacity
from autotune.cli.console import result, result_json, say
from autotune.cli.handover import plan_of, trial_to_run
from autotune.cli.replaying import measure_once
from autotune.cli.signals import stop_on_signals
from autotune.clock import StopSignal, SystemClock
from autotune.engines.engine import ExitInfo
from autotune.errors import EnvironmentFault, InputError, Untrustworthy
from autotune.launch.launcher import RunningServer, Ticket
from autotune.launch.ports import choose_port
from autotune.launch.process import ProcessLauncher
from autotune.launch.readiness import NotReady, wait_ready
from autotune.launch.server_log import log_tail
from autotune.measure.measurement import Measurement
from autotune.report.numbers import Units, quantity
from autotune.report.view import StudyView, TrialView, load_view, metric_of
from autotune.search.capacity import CLOSE
from autotune.spec.vocabulary import MetricName
from autotune.study.capacity import CapacityTask, searched_objective
from autotune.study.conclusion import mean_metrics
from autotune.study.directory import StudyDirectory
from autotune.study.prepare import PreparedStudy
from autotune.study.snapshot import read_snapshot

TOLERANCE = 0.15
"""A single launch differs from the recorded ones by less than this, or the script is not the
measured launch (or the machine is not the measured machine). On top of the study's own noise."""


def verify(path: Path, *, as_json: bool) -> int:
    """Returns 0 when every compared number agrees; raises Untrustworthy when one does not."""
    clock, stop = SystemClock(), StopSignal()
    directory = StudyDirectory.existing(path)
    view = load_view(directory.path)
    script = directory.path.resolve() / "best" / "launch.sh"
    trial = trial_to_run(view)
    plan = None if trial is None else plan_of(trial)
    if trial is None or plan is None or not script.is_file():
        raise InputError(message=f"there is no best/launch.sh in {path}")
    study = read_snapshot(directory, clock=clock, stop=stop).on(trial.record.candidate.engine)
    port = plan.port or choose_port()
    launched = replace(
        plan,
        launcher="process",
        argv=("bash", str(script)),
        env={"HOST": "127.0.0.1", "PORT": str(port)},
        image=None,
        mounts=(),
        port=port,
        gpus=None,
    )
    confirmed = view.verdict is not None and bool(view.verdict.pairs)
    trace = study.held_out if confirmed else None
    launcher = ProcessLauncher(clock=clock, stop=stop)
    with stop_on_signals(stop), tempfile.TemporaryDirectory(prefix="autotune-") as scratch:
        folder = Path(scratch)
        say(f"starting {script}")
        started = launcher.start(
            launched, Ticket(study_id=study.study_id, trial=trial.number, directory=folder)
        )
        # Behind `docker run` the port belongs to the engine of containers, not to the script
        server = started if plan.image is None else Shielded(started)
        try:
            startup_s = wait_ready(
                server, timeout_s=study.spec.engine.startup_timeout, clock=clock, stop=stop
            )
            measurement = _measured(
                view, trial, study, server, folder,
                held_out=trace is not None, startup_s=startup_s, clock=clock, stop=stop,
            )  # fmt: skip
        except NotReady as failure:
            raise EnvironmentFault(
                message=f"best/launch.sh did not give a server that answers: {failure}",
                seen="\n".join(log_tail(started.log_path, 5)) or None,
            ) from failure
        finally:
            started.stop()
    return _tell(compare(view, trial, measurement), measurement, as_json=as_json)


def _measured(
    view: StudyView,
    trial: TrialView,
    study: PreparedStudy,
    server: RunningServer,
    folder: Path,
    *,
    held_out: bool,
    startup_s: float,
    clock: SystemClock,
    stop: StopSignal,
) -> Measurement:
    """What the study measured in a trial: one replay, or a search for the capacity."""
    trace = (study.held_out if held_out else None) or study.search_trace
    objective = searched_objective(study.spec.objective)
    if objective is None:
        return measure_once(
            server, trace, folder, study.measure, clock=clock, stop=stop, startup_s=startup_s,
            held_out=held_out,
        )  # fmt: skip
    same = _same_settings(view, trial)
    values = [value for t in same if (value := t.metric(objective.metric)) is not None]
    baseline = view.baseline
    references = [] if baseline is None else _same_settings(view, baseline)
    known = [t.measurement.reference for t in references if t.measurement is not None]
    return measure_capacity(
        server, trace, folder, study.measure,
        task=CapacityTask(
            start=statistics.fmean(values) if values else 1.0,
            stride=CLOSE,
            baseline=mean_metrics(known),
        ),
        clock=clock, stop=stop, startup_s=startup_s, held_out=held_out,
    )  # fmt: skip


class Shielded:
    """A server whose address is held by somebody else on its behalf."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self.url, self.plan, self.log_path = server.url, server.plan, server.log_path

    def identity(self) -> Mapping[str, Json]:
        return self._server.identity()

    def poll(self) -> ExitInfo | None:
        return self._server.poll()

    def stop(self, *, forced: bool = False) -> ExitInfo:
        return self._server.stop(forced=forced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One number, recorded and measured again. Values in base units."""

    metric: MetricName
    recorded: float
    now: float | None
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        """Within what launches of this study differ by, or better."""
        return self.now is not None and self.low <= self.now <= self.high


def compare(view: StudyView, trial: TrialView, measurement: Measurement) -> list[Compared]:
    """The goal and every limit, as recorded for this trial's settings and as measured now.

    The range is that of all recorded launches of these settings, wider by `TOLERANCE`.
    """
    texts = [*view.objectives, *view.constraints]
    metrics = {m.name: m for m in (metric_of(text) for text in texts) if m is not None}
    confirmed = _same_settings(view, trial)
    rows = []
    for metric in metrics.values():
        values = [v for v in (t.metric(metric) for t in confirmed) if v is not None]
        if values:
            rows.append(
                Compared(
                    metric=metric,
                    recorded=statistics.fmean(values),
                    now=measurement.metrics.get(metric.key),
                    low=min(values) * (1 - TOLERANCE),
                    high=max(values) * (1 + TOLERANCE),
                )
            )
    return rows


def _same_settings(view: StudyView, trial: TrialView) -> list[TrialView]:
    """The launches of a trial's settings: those of the confirmation, or all where there is none."""
    same = [t for t in view.trials if t.record.candidate == trial.record.candidate]
    return [t for t in same if t.record.role == "confirm"] or same


def _tell(rows: list[Compared], measurement: Measurement, *, as_json: bool) -> int:
    agrees = all(row.agrees for row in rows) and measurement.validity.verdict != "invalid"
    if as_json:
        result_json(
            {
                "agrees": agrees,
                "tolerance": TOLERANCE,
                "metrics": [
                    {"metric": row.metric.name, "key": row.metric.key, "recorded": row.recorded,
                     "now": row.now, "agrees": row.agrees}
                    for row in rows
                ],
                "measurement": measurement.to_json(),
            }
        )  # fmt: skip
    else:
        units = Units(baseline=measurement.metrics)
        lines = [f"  {'':<20}{'recorded':>12}{'now':>12}"]
        for row in rows:
            scale = units.scale(row.metric)
            lines.append(
                f"  {row.metric.name:<20}{quantity(row.recorded, scale):>12}"
                f"{quantity(row.now, scale):>12}  {'agrees' if row.agrees else 'DIFFERS'}"
            )
        result("\n".join(lines))
    if measurement.validity.verdict == "invalid":
        raise Untrustworthy(
            message="the measurement cannot be trusted",
            seen="\n".join(measurement.validity.reasons),
        )
    if not agrees:
        raise Untrustworthy(
            message="best/launch.sh does not give the recorded numbers on this machine now",
            seen=f"allowed: the recorded launches' range, {TOLERANCE:.0%} wider",
            hint="is anything else running? `autotune doctor`; else measure again with a new study",
        )
    return 0
