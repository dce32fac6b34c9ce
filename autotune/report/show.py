"""The study as JSON: the contract of `show --json`, and what the page carries for scripts."""

from __future__ import annotations

from autotune.canonical import Json
from autotune.engines.redaction import mask
from autotune.report.caveats import doubts
from autotune.report.engines_compared import engines_json
from autotune.report.figure import state_word
from autotune.report.reading import clean, finite
from autotune.report.several_words import front
from autotune.report.verdict_words import tell
from autotune.report.view import StudyView, TrialView
from autotune.study.early_totals import saving

# Never the whole engine section: its environment may hold values that are nobody's business.
_ENGINE_KEYS = ("kind", "version", "launcher", "image", "image_digest")


def show_json(view: StudyView) -> dict[str, Json]:
    """The study, its trials, the best trial's number and the verdict (None before the end).

    Numbers are in base units and always finite; a missing one is null.
    """
    verdict = view.verdict
    best = view.best
    value: dict[str, Json] = {
        "study": {
            "name": view.name,
            "model": view.model,
            "engine": {key: view.engine[key] for key in _ENGINE_KEYS if key in view.engine},
            "objective": list(view.objectives),
            "constraints": list(view.constraints),
            "baseline": dict(view.baseline_params),
            "simulated": view.simulated,
            "started_at": view.fingerprint.get("started_at"),
        },
        "trials": [trial_summary(view, trial) for trial in view.trials],
        "unfinished": list(view.unfinished),
        "early_stops": saving([trial.record for trial in view.trials]),
        "best": None if best is None else best.number,
        "engines": engines_json(view),
        "pareto": [trial.number for trial in front(view)] if len(view.objectives) > 1 else [],
        "verdict": None if verdict is None else verdict.verdict,
        "confirmed": verdict is not None and verdict.confirmed,
        "interrupted": verdict is not None and verdict.interrupted,
        "change": None,
        "finalists": [] if verdict is None else [one.to_json() for one in verdict.finalists],
        "nearest": [] if verdict is None else [one.to_json() for one in verdict.nearest],
        "headline": tell(view).headline,
        "caveats": [
            {"code": doubt.code, "text": doubt.text, "urgent": doubt.urgent}
            for doubt in doubts(view)
        ],
        "problems": list(view.problems),
    }
    if verdict is not None and verdict.change is not None:
        value["change"] = verdict.change.to_json()
    return dict(finite(value))


def trial_summary(view: StudyView, trial: TrialView) -> dict[str, Json]:
    """One entry of `trials`: the trial's record, evidence masked once more, and what it changed."""
    record = trial.record.to_json()
    record["evidence"] = evidence(trial)
    record["message"] = None if trial.record.message is None else mask(trial.record.message)
    record["changed"] = {name: list(pair) for name, pair in trial.changed.items()}
    record["word"] = state_word(trial)
    record["metrics"] = _headline_metrics(view, trial)
    return record


def trial_json(view: StudyView, number: int) -> dict[str, Json] | None:
    """One trial in full: summary, measurement, launch script, files; None if there is none."""
    trial = view.trial(number)
    if trial is None:
        return None
    measurement = trial.measurement
    folder = trial.folder
    files = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    value = {
        **trial_summary(view, trial),
        "measurement": None if measurement is None else measurement.to_json(),
        "launch": trial.launch,
        "folder": f"trials/{folder.name}",
        "files": files,
    }
    return dict(finite(value))


def evidence(trial: TrialView) -> list[str]:
    """The decisive log lines, with secrets and prompts masked (again: a record may be older)."""
    return [clean(mask(line)) for line in trial.record.evidence]


def _headline_metrics(view: StudyView, trial: TrialView) -> dict[str, Json]:
    if trial.measurement is None or trial.measurement.stopped_early:
        return {}
    wanted = ("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s",
              "output_throughput_tps", "success_rate")  # fmt: skip
    metrics = trial.measurement.metrics
    keys = [*wanted, *([view.metric.key] if view.metric else [])]
    return {key: metrics[key] for key in dict.fromkeys(keys) if key in metrics}
