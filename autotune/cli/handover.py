"""After a run: the launch files of the best trial and the report, both from the directory alone."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from autotune import __version__
from autotune.canonical import Json
from autotune.deploy import bash
from autotune.deploy.facts import DeployFacts, MetricFact
from autotune.deploy.files import write_hand_over
from autotune.engines.plan import Deployment, LaunchPlan
from autotune.report.caveats import doubts
from autotune.report.comparison import Side, sides
from autotune.report.html import build_report
from autotune.report.knob_effects import one_changes
from autotune.report.numbers import percent
from autotune.report.verdict_words import tell
from autotune.report.view import StudyView, TrialView, load_view
from autotune.report.words import metric_label
from autotune.space.candidate import MODEL
from autotune.spec.vocabulary import METRICS, MetricName

Role = Literal["best", "baseline", "trial"]
HEADLINE = (
    "ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "e2e_p95", "output_throughput",
    "request_throughput", "success_rate", "startup_seconds", "gpu_memory_peak",
)  # fmt: skip


def finish(directory: Path) -> Path:
    """Write `best/` where there is something to recommend, and the report. Returns its path."""
    write_best(directory)
    return build_report(directory)


def write_best(directory: Path) -> list[Path]:
    """Write the hand-over of the trial to run; remove an older one where there is none.

    The trial is the recommended one; where the advice is to keep today's settings it is the
    baseline. Nothing is written when nothing meets the limits: no file may look like advice then.
    """
    view = load_view(directory)
    folder = directory / "best"
    chosen = trial_to_run(view)
    plan = None if chosen is None else plan_to_run(view, chosen)
    if chosen is None or plan is None:
        shutil.rmtree(folder, ignore_errors=True)
        return []
    baseline = view.baseline
    baseline_plan = None if baseline is None else plan_of(baseline)
    return write_hand_over(
        folder,
        plan,
        baseline_plan,
        facts_of(view, chosen),
        None if baseline is None else facts_of(view, baseline, role="baseline"),
    )


def trial_to_run(view: StudyView) -> TrialView | None:
    """The trial whose launch is handed over, or None if there is none to advise."""
    if view.verdict is not None and view.verdict.verdict == "no_feasible":
        return None
    if view.recommended is not None:
        return view.recommended
    baseline = view.baseline
    holds = baseline is not None and baseline.record.feasible
    return baseline if holds else None


def plan_of(trial: TrialView) -> LaunchPlan | None:
    """The plan that a trial was launched with."""
    return Deployment.from_json(trial.plan).front if trial.plan else None


def plan_to_run(view: StudyView, trial: TrialView) -> LaunchPlan | None:
    """The plan of a trial as it is handed over: on the GPUs that today's settings ran on. Launches
    that ran at the same time had different ones of the same kind, which nobody chose.
    """
    plan = plan_of(trial)
    today = None if view.baseline is None else plan_of(view.baseline)
    if plan is None or today is None or not plan.gpus or not today.gpus:
        return plan
    return replace(plan, gpus=today.gpus)


def role_of(view: StudyView, trial: TrialView) -> Role:
    """How a trial's files call it: `best`, `baseline`, or any other `trial`."""
    chosen = trial_to_run(view)
    if chosen is not None and chosen.number == trial.number:
        return "best"
    return "baseline" if trial.record.role == "baseline" else "trial"


def script_of(plan: LaunchPlan, *, study: str, model: str, number: int, date: str,
              simulated: bool) -> str:  # fmt: skip
    """The launch script as it stands in a trial's folder before anything is measured."""
    facts = DeployFacts(
        study=study,
        trial=number,
        verdict="a trial of the study; nothing was measured yet when this was written",
        metrics=(),
        engine=plan.engine,
        model=model,
        date=date,
        tool_version=__version__,
        role="trial",
        simulated=simulated,
        confirmed=True,
    )
    return bash.render(plan, facts)


def facts_of(view: StudyView, trial: TrialView, *, role: Role = "best") -> DeployFacts:
    """What the files of a trial say of it."""
    machine = _mapping(view.fingerprint.get("machine"))
    engine = _engine_of(view, trial)
    workload = view.workload
    gpus = machine.get("gpus") or []
    own, today = _beside(view, trial)
    startup = trial.metric(METRICS["startup_seconds"])
    story = tell(view)
    return DeployFacts(
        study=view.name,
        trial=trial.number,
        verdict=" ".join([story.headline + ".", *story.sentences[:1]]),
        metrics=tuple(_metric(METRICS[name], own, today) for name in HEADLINE),
        engine=str(engine.get("kind") or view.engine.get("kind") or ""),
        model=str(trial.record.params.get(MODEL) or view.model),
        date=str(view.fingerprint.get("started_at") or ""),
        tool_version=str(view.fingerprint.get("tool") or __version__),
        role=role,
        engine_version=engine.get("version"),
        image_digest=engine.get("image_digest"),
        gpu=f"{len(gpus)} x {gpus[0]['name']}" if gpus else None,
        driver=machine.get("driver"),
        workload=Path(str(workload.get("path") or "")).name or None,
        workload_digest=workload.get("digest"),
        directory=str(view.directory),
        simulated=view.simulated,
        confirmed=view.verdict is not None
        and (view.verdict.confirmed or trial.record.role == "baseline"),
        validity=trial.record.validity,
        caveats=tuple(doubt.text for doubt in doubts(view) if doubt.urgent),
        changed={} if role == "baseline" else dict(trial.changed),
        flag_notes=_flag_notes(view, trial),
        startup_seconds=startup,
        e2e_p99_s=trial.metric(METRICS["e2e_p99"]),
    )


def _engine_of(view: StudyView, trial: TrialView) -> Mapping[str, Json]:
    """The engine that a trial ran on; of several the one that its settings name."""
    own = trial.record.candidate.engine
    found = next((one for one in view.engines if one.get("kind") == own), None)
    return found or view.engine


def _beside(view: StudyView, trial: TrialView) -> tuple[Side, Side | None]:
    """The launches that speak for a trial's settings, and today's on the same traffic: pairs with
    pairs, a launch of the search with the search's baseline. None for today's settings themselves.
    """
    today, new = sides(view)
    if today is not None and _speaks_for(today, trial):
        return today, None
    if new is not None and _speaks_for(new, trial):
        return new, today
    baseline, own = view.baseline, Side(trials=(trial,))
    if baseline is None or baseline.measurement is None or baseline.number == trial.number:
        return own, None
    return own, Side(trials=(baseline,))


def _speaks_for(side: Side, trial: TrialView) -> bool:
    return trial.record.candidate in {one.record.candidate for one in side.trials}


def _metric(metric: MetricName, own: Side, today: Side | None) -> MetricFact:
    return MetricFact(
        name=metric.name,
        unit=metric.unit,
        value=own.value(metric),
        interval=own.interval(metric),
        baseline=None if today is None else today.value(metric),
        baseline_interval=None if today is None else today.interval(metric),
    )


def _flag_notes(view: StudyView, trial: TrialView) -> dict[str, str]:
    notes = {}
    effects = {
        change.knob: percent(change.ratio - 1, signed=True)
        for change in one_changes(view)
        if change.new == trial.record.params.get(change.knob)
    }
    goal = "" if view.metric is None else metric_label(view.metric)
    for knob in view.knobs:
        if knob.name in trial.record.params:
            text = knob.why + (" (lossy: can change answers)" if knob.lossy else "")
            if knob.name in effects:
                text += f"; alone it moved {goal} by {effects[knob.name]}, single launches"
            if text.strip():
                notes[knob.name] = text.strip()
    return notes


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}
