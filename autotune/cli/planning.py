"""What `plan` shows: everything that would happen, and where each value came from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from autotune import __version__
from autotune.canonical import Json
from autotune.cli.estimates import fit_json, fit_of, fit_words
from autotune.cli.precision_words import window_json, window_words
from autotune.engines.memory import MemoryEstimate
from autotune.report.words import setting
from autotune.spec.units import format_duration
from autotune.spec.vocabulary import MetricName
from autotune.study.lossy import check_words
from autotune.study.memory_fit import memory_fit, memory_words
from autotune.study.prepare import PreparedStudy
from autotune.study.snapshot import spec_json, study_json, target_json


def plan_text(
    study: PreparedStudy,
    origins: Mapping[str, str],
    *,
    directory: Path | None = None,
    verbose: bool = False,
) -> str:
    """The plan for people, one fact a line; `verbose` adds every resolved value and the space."""
    spec = study.spec
    simulated = "  SIMULATED: no real engine, no real GPU" if study.engine.simulated else ""
    rows = [
        ("model", f"{spec.model} on {_engines(study)}, {spec.engine.launcher}"),
        ("goal", ", ".join(objective.text for objective in spec.objective)),
        ("limits", ", ".join(c.text for c in spec.constraints) or "none"),
        ("baseline", _settings(study.baseline.params) + " (all else engine default)"),
        ("varies", _varies(study)),
        ("traffic", _traffic(study)),
        ("held out", _held_out(study)),
        *_window(study),
        *_memory(study),
        *_answers(study),
    ]
    if directory is not None:
        rows.append(("writes", f"{directory}   (Ctrl-C is safe: autotune resume {directory})"))
    lines = [f"autotune {__version__}   study {spec.name}{simulated}"]
    lines += [f"  {name:<10} {text}" for name, text in rows]
    if verbose:
        lines += ["", "First launch (the baseline):", f"  {first_launch(study)}"]
        lines += ["", "Knobs:"]
        lines += [
            f"  {knob.name:<32} {', '.join(setting(v) for v in knob.grid())}"
            + (f"   when {knob.when.text}" if knob.when else "")
            for knob in study.space.knobs
        ]
        lines += [f"  rule: {rule.text}" for rule in study.space.rules]
        lines += ["", "Every value and where it came from:"]
        lines += [
            f"  {path:<32} {value}  ({where})" for path, value, where in _values(study, origins)
        ]
        lines += [
            "",
            *[f"note: {note}" for note in (*study.notes, *study.traffic.selection.portrait)],
        ]
    fit = fit_of(study)
    has_gpus = bool(study.facts.get("gpu.count")) or spec.budget.gpu_hours is not None
    lines.append(fit_words(fit, has_gpus=has_gpus))
    return "\n".join(lines)


def first_launch(study: PreparedStudy) -> str:
    """The command line of trial 0, as it could be typed."""
    plan = study.baseline_plan()
    env = [f"{name}={shlex.quote(value)}" for name, value in plan.env.items()]
    env += [f"{name}=$" + "{" + source + "}" for name, source in plan.secrets.items()]
    return " ".join([*env, *(shlex.quote(word) for word in plan.argv_for("127.0.0.1", 8000))])


def plan_json(study: PreparedStudy, origins: Mapping[str, str]) -> dict[str, Json]:
    """The plan for programs."""
    return {
        "study": study_json(study),
        "origins": dict(origins),
        "target": target_json(study.target),
        "first_launch": study.baseline_plan().to_json(),
        "workload": {**study.traffic.description, "notes": list(study.traffic.all_notes)},
        "held_out": study.held_out is not None,
        "precision": window_json(_limited(study), len(study.search_trace.requests)),
        "memory": _memory_json(study),
        "answers": check_words(study.spec, study.space),
        **fit_json(fit_of(study)),
        "combinations": study.space.size(study.facts),
        "engine_version": study.engine_version,
        "simulated": study.engine.simulated,
    }


def _baseline_memory(study: PreparedStudy) -> MemoryEstimate | None:
    fit = memory_fit(study)
    return None if fit is None else fit.estimate(study.baseline)


def _memory(study: PreparedStudy) -> list[tuple[str, str]]:
    found = _baseline_memory(study)
    if found is None:
        return []
    doubt = "; by this estimate the baseline does not fit" if found.cannot_fit else ""
    return [("memory", f"{memory_words(found)} (estimate for the baseline, one GPU){doubt}")]


def _answers(study: PreparedStudy) -> list[tuple[str, str]]:
    words = check_words(study.spec, study.space)
    return [] if words is None else [("answers", words)]


def _memory_json(study: PreparedStudy) -> dict[str, Json] | None:
    found = _baseline_memory(study)
    return None if found is None else found.to_json()


def _engines(study: PreparedStudy) -> str:
    sides = study.sides or (study,)
    return " and ".join(
        f"{side.engine.kind} {side.engine_version}" if side.engine_version else side.engine.kind
        for side in sides
    )


def _settings(params: Mapping[str, Json]) -> str:
    return ", ".join(f"{name} {setting(value)}" for name, value in params.items()) or "nothing set"


def _varies(study: PreparedStudy) -> str:
    varied = [
        knob
        for side in study.sides or (study,)
        for knob in side.space.active(
            side.space.first_values() | dict(side.baseline.params), side.facts
        )
    ]
    lossy = sum(knob.lossy for knob in varied)
    size = study.space.size(study.facts)
    parts = [f"{len(study.sides)} engines"] if study.sides else []
    parts += [f"{len(varied)} knobs"]
    parts += [f"{lossy} lossy"] if lossy else []
    parts += [f"{size:,} combinations"] if size is not None else []
    return ", ".join(parts)


def _traffic(study: PreparedStudy) -> str:
    about = study.traffic.description
    reuse = about["prefix_reuse"]
    return (
        f"{about['requests']:,} requests in {format_duration(round(about['duration_s']))}, "
        f"{about['rate_mean']:.3g}/s, {about['input_tokens']['p50']:,} tokens in, "
        f"{about['output_tokens']['p50']:,} out (medians)"
        + (f"; {reuse:.0%} prefix reuse" if reuse is not None else "")
    )


def _limited(study: PreparedStudy) -> list[MetricName]:
    """Metrics that the study optimises or limits."""
    goals = [objective.metric for objective in study.spec.objective]
    return [*goals, *(constraint.metric for constraint in study.spec.constraints)]


def _window(study: PreparedStudy) -> list[tuple[str, str]]:
    words = window_words(_limited(study), len(study.search_trace.requests))
    if not words:
        return []
    return [
        ("tells", words),
        (
            "",
            "of such traffic; changes are told finer, as all launches replay the same requests",
        ),
    ]


def _held_out(study: PreparedStudy) -> str:
    held_out = study.held_out
    if held_out is None:
        return "nothing: the confirmation replays the same traffic as the search"
    return (
        f"another {format_duration(round(held_out.duration_s))} of the recording "
        f"({len(held_out.requests):,} requests), for the confirmation"
    )


def _values(study: PreparedStudy, origins: Mapping[str, str]) -> list[tuple[str, str, str]]:
    one = study.sides[0] if study.sides else study
    data = spec_json(one.spec, one.space, one.baseline)
    rows = []
    for path, where in sorted(origins.items()):
        value: Json = data
        for step in _steps(path, data):
            value = value.get(step) if isinstance(value, Mapping) else None
        if path == "space":
            value = study.space.name
        rows.append((path, str(value), where))
    return rows


def _steps(path: str, data: Mapping[str, Json]) -> list[str]:
    for prefix in ("engine.args.", "engine.env.", "baseline."):
        if path.startswith(prefix):
            return [*prefix.rstrip(".").split("."), path.removeprefix(prefix)]
    return path.split(".")
