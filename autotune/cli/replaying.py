"""`replay`: measure a running server; also the measuring half of `verify`."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from autotune.cli import cross_check
from autotune.cli.capacity_once import measure_capacity, replayed
from autotune.cli.console import result, result_json, say
from autotune.cli.inputs import workload_path
from autotune.cli.signals import stop_on_signals
from autotune.clock import StopSignal, SystemClock
from autotune.engines.catalog import exposed_metrics
from autotune.engines.plan import LaunchPlan
from autotune.errors import EnvironmentFault, InputError, Untrustworthy
from autotune.launch.attach import AttachLauncher
from autotune.launch.launcher import RunningServer, Ticket
from autotune.measure.measurement import Measurement
from autotune.measure.telemetry import scrape
from autotune.report.numbers import Units, quantity
from autotune.spec.expressions import Constraint, parse_constraint
from autotune.spec.units import parse_duration
from autotune.spec.vocabulary import METRICS
from autotune.study.measurer import Measurer
from autotune.study.measuring import MeasureSettings
from autotune.study.prepare import DRAIN_FACTOR, LEAST_DRAIN_S
from autotune.workload.prompts import vocab_of
from autotune.workload.reader import read_trace
from autotune.workload.trace import Trace
from autotune.workload.windows import Selection, select

SHOWN = ("capacity", "ttft_p50", "ttft_p95", "ttft_p99", "tpot_p50", "tpot_p95", "e2e_p95",
         "output_throughput", "request_throughput", "goodput", "success_rate")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutput:
    """What is made of a measurement beside the printed result. `bench`: compare with
    `vllm bench serve`; `bench_command` its program, `tokenizer` its tokenizer.
    """

    as_json: bool = False
    progress: str = "auto"
    html: Path | None = None
    records: Path | None = None
    bench: bool = False
    bench_command: str | None = None
    tokenizer: str | None = None


def replay(
    url: str,
    workload: str,
    *,
    model: str | None,
    window: str | None,
    time_scale: float,
    slo: Sequence[str],
    output: ReplayOutput,
    capacity: bool = False,
) -> int:
    """Replay a workload against a running server and print the measurement. `capacity`: find the
    highest rate that meets the limits.
    """
    clock, stop = SystemClock(), StopSignal()
    _refuse_target(url, time_scale)
    if capacity:
        _refuse_capacity(slo, output)
    _refuse_files(output)
    program = cross_check.find_bench(output.bench_command) if output.bench else None
    window_s, constraints = _limits(window, slo)
    trace = select(
        read_trace(workload_path(workload)),
        window_s=window_s,
        time_scale=time_scale,
        hold_out=False,
    )
    if output.bench:
        cross_check.timed_rows(trace.search)  # refuses what it cannot send before anything is sent
    for note in trace.notes:
        say(f"note: {note}")
    launcher = AttachLauncher(clock=clock, stop=stop)
    plan = LaunchPlan(
        engine="generic", launcher="attach", argv=(), model=model or served_model(url), url=url
    )
    launcher.check(plan)
    settings = _settings(trace, constraints, plan.model, url)
    with stop_on_signals(stop), tempfile.TemporaryDirectory(prefix="autotune-") as scratch:
        folder = Path(scratch)
        server = launcher.start(plan, Ticket(study_id="replay", trial=0, directory=folder))
        measured: Callable[..., Measurement] = measure_capacity if capacity else measure_once
        measurement = measured(
            server, trace.search, folder, settings, clock=clock, stop=stop,
            progress=output.progress,
        )  # fmt: skip
        beside: list[cross_check.Difference] = []
        if program is not None:
            say("the same traffic through vllm bench serve")
            beside = cross_check.cross_check(
                measurement, trace.search, program=program, url=url, model=plan.model,
                tokenizer=output.tokenizer, folder=folder,
                patience_s=trace.search.duration_s + settings.drain_s,
            )  # fmt: skip
        facts = {"server": url, "model": plan.model, "workload": Path(workload).name}
        _hand_over(measurement, folder, beside, facts, output)
    if measurement.validity.verdict == "invalid":
        raise Untrustworthy(
            message="the measurement cannot be trusted",
            seen="\n".join(measurement.validity.reasons),
        )
    return 0


def _settings(
    trace: Selection, constraints: Sequence[Constraint], model: str, url: str
) -> MeasureSettings:
    return MeasureSettings(
        objectives=(),
        constraints=constraints,
        metric_names=exposed_metrics(_page(url)),
        vocab_size=vocab_of(model),
        warmup=None,
        priming=trace.priming,
        drain_s=max(LEAST_DRAIN_S, DRAIN_FACTOR * trace.search.duration_s),
        api_key_env="OPENAI_API_KEY" if os.environ.get("OPENAI_API_KEY") else None,
    )


def _page(url: str) -> list[str]:
    """The names on a server's `/metrics`; a server without one is normal."""
    try:
        return list(scrape(url))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return []


def _hand_over(
    measurement: Measurement,
    folder: Path,
    beside: Sequence[cross_check.Difference],
    facts: Mapping[str, str],
    output: ReplayOutput,
) -> None:
    """Print the result and write the files that were asked for."""
    if output.records is not None:
        shutil.copyfile(folder / "requests.parquet", output.records)
        say(f"records: {output.records}")
    if output.html is not None:
        from autotune.replay.parquet import read_records
        from autotune.report.replay_page import replay_page

        page = replay_page(
            measurement,
            read_records(folder / "requests.parquet"),
            facts=facts,
            compared=cross_check.cells(beside),
        )
        output.html.write_text(page, encoding="utf-8")
        say(f"page: {output.html}")
    if output.as_json:
        compared = {"vllm_bench": cross_check.as_json(beside)} if beside else {}
        result_json({**measurement.to_json(), **compared})
        return
    result(measurement_text(measurement))
    if beside:
        result(cross_check.table(beside))


def _refuse_files(output: ReplayOutput) -> None:
    """A file that cannot be written is told before the replay, not after it."""
    for path in (output.html, output.records):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(message=f"the folder of {path} does not exist", so="nothing was sent")


def _limits(window: str | None, slo: Sequence[str]) -> tuple[float | None, list[Constraint]]:
    """The window in seconds, and the limits. Raises InputError for what cannot be read."""
    try:
        window_s = None if window is None else parse_duration(window)
        constraints = [parse_constraint(text) for text in slo]
    except ValueError as error:
        raise InputError(message=str(error), so="nothing was sent") from error
    if any(constraint.relative for constraint in constraints):
        raise InputError(
            message="a limit relative to the baseline has no meaning for one server",
            so="nothing was sent",
        )
    return window_s, constraints


def _refuse_capacity(slo: Sequence[str], output: ReplayOutput) -> None:
    if not slo:
        raise InputError(
            message="a capacity is what the limits allow, and there is none",
            so="nothing was sent",
            hint="--slo 'ttft_p95 < 500ms'",
        )
    if output.bench:
        raise InputError(
            message="--capacity replays at many rates, --compare-vllm-bench at the recorded one",
            so="nothing was sent",
        )


def _refuse_target(url: str, time_scale: float) -> None:
    if not url.startswith(("http://", "https://")):
        raise InputError(
            message=f"not the address of a server: {url}",
            so="nothing was sent",
            hint=f"--url http://{url.split('://')[-1]}",
        )
    if not 0 < time_scale < math.inf:
        raise InputError(
            message=f"--time-scale {time_scale:g} is not above 0", so="nothing was sent"
        )


def measure_once(
    server: RunningServer,
    trace: Trace,
    folder: Path,
    settings: MeasureSettings,
    *,
    clock: SystemClock,
    stop: StopSignal,
    startup_s: float | None = None,
    held_out: bool = False,
    progress: str = "none",
) -> Measurement:
    """Warm up, replay, measure, and once more if the client spoiled it; prints what goes on to
    stderr. `held_out`: the trace is. `progress`: as the option of that name.
    """
    measurer = Measurer(settings, clock=clock, stop=stop)
    session = measurer.session(
        server, trace, folder, startup_s, salt=uuid.uuid4().hex[:12], held_out=held_out
    )
    while True:
        measurement = session.measurement(replayed(session, progress))
        again = session.again(measurement.validity, left_s=None)
        if again is None:
            return measurement
        say(f"measuring again: {'; '.join(again.repeated_because)}")
        session = again


def measurement_text(measurement: Measurement) -> str:
    """A measurement for people."""
    units = Units(baseline=measurement.metrics)
    lines = [f"measurement: {measurement.validity.verdict}"]
    lines += [f"  because: {reason}" for reason in measurement.validity.reasons]
    lines.append(f"requests: {measurement.ok} of {measurement.planned} succeeded")
    lines += [f"  failed: {n} {reason}" for reason, n in measurement.failed_by_reason.items()]
    for name in SHOWN:
        metric = METRICS[name]
        value = measurement.metrics.get(metric.key)
        if metric.key in measurement.unbounded:
            lines.append(f"  {name:<20} not met: too many requests failed")
        elif value is not None:
            low, high = measurement.intervals.get(metric.key, (None, None))
            scale = units.scale(metric)
            ends = [quantity(end, scale) if end is not None else "?" for end in (low, high)]
            interval = f"   [{ends[0]}, {ends[1]}]" if (low, high) != (None, None) else ""
            lines.append(f"  {name:<20} {quantity(value, scale)}{interval}")
    return "\n".join(lines)


def served_model(url: str) -> str:
    """The only model that a server lists. Raises EnvironmentFault or InputError."""
    try:
        listed = httpx.get(f"{url.rstrip('/')}/v1/models", timeout=10, trust_env=False)
        names = [str(entry["id"]) for entry in listed.json()["data"]]
    except httpx.HTTPError as error:
        raise EnvironmentFault(
            message=f"no server answers at {url}", seen=str(error) or type(error).__name__
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentFault(message=f"{url}/v1/models does not list models") from error
    if len(names) != 1:
        raise InputError(
            message=f"the server lists {len(names)} models; which one?",
            hint="--model " + (names[0] if names else "NAME"),
        )
    return names[0]
