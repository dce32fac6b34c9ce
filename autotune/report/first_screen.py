"""What the first screen shows besides the verdict: command, settings, goal and limits, price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from autotune.canonical import Json
from autotune.report import reading
from autotune.report.caveats import noise_text
from autotune.report.certainty import agreement, luck
from autotune.report.comparison import (
    LimitState,
    Row,
    Side,
    compare,
    limit_states,
    row_place,
    sides,
)
from autotune.report.numbers import Scale, bounds, count, duration, quantity, share
from autotune.report.small_charts import change_axis, change_strip, strip_span
from autotune.report.verdict_words import limit_text, traffic_words
from autotune.report.view import StudyView, TrialView
from autotune.report.words import change_cell, metric_label, plural, setting
from autotune.spec.vocabulary import METRICS

_SUCCESS = METRICS["success_rate"]
STANDING_WORDS = {"holds": "holds", "not_shown": "not shown", "broken": "broken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting that differs: today's value and the new one as text."""

    name: str
    today: str
    new: str
    lossy: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalRow:
    """One row of the goal-and-limits table, as text. `distinct` False greys the change."""

    kind: str
    label: str
    target: str
    today: str
    new: str
    today_range: str
    new_range: str
    change: str
    distinct: bool
    state: str
    standing: str
    strip: Markup | None


def identity(view: StudyView) -> list[str]:
    """Model, engine, hardware, traffic, date: in the order a reader asks."""
    parts = [model_name(view), view.engine_words, hardware(view)]
    traffic = view.workload.get("path")
    if traffic:
        parts.append(f"traffic {str(traffic).rsplit('/', 1)[-1]}")
    started = str(view.fingerprint.get("started_at") or "")
    if started:
        parts.append(f"run {started[:10]}")
    return [part for part in parts if part]


def model_name(view: StudyView) -> str:
    """The model as people call it: a folder by its last part, so that no home path is shown."""
    is_path = view.model.startswith(("/", "~", "."))
    return view.model.rstrip("/").rsplit("/", 1)[-1] if is_path else view.model


def hardware(view: StudyView) -> str:
    """The GPUs in words, or the simulated one's name, or the processor where there is none."""
    machine = reading.mapping(view.fingerprint.get("machine"))
    gpus = machine.get("gpus")
    names = [_gpu_name(gpu) for gpu in gpus] if isinstance(gpus, list) else []
    names = [name for name in names if name]
    if names:
        kinds = dict.fromkeys(names)
        return ", ".join(f"{names.count(kind)} x {kind}" for kind in kinds)
    cores = machine.get("cpu_count")
    return f"no GPU, {cores} CPU cores" if isinstance(cores, int) else ""


def _gpu_name(gpu: Json) -> str:
    if isinstance(gpu, dict):
        return str(gpu.get("name") or gpu.get("model") or "")
    return str(gpu)


def settings(view: StudyView) -> list[Setting]:
    """The settings of the shown candidate that differ from today's."""
    rival = view.rival
    knobs = {knob.name: knob for knob in view.knobs}
    changed = rival.changed if rival else {}
    return [
        Setting(
            name=name,
            today=setting(old),
            new=setting(new),
            lossy=name in knobs and knobs[name].lossy,
            why=knobs[name].why if name in knobs else "",
        )
        for name, (old, new) in changed.items()
    ]


def command(view: StudyView) -> str | None:
    """The command that starts what is advised, relative to the study's folder; None for none."""
    verdict = view.verdict
    if verdict is not None and verdict.verdict == "no_feasible":
        return None
    if "launch.sh" in view.scripts and (view.recommended or verdict is not None):
        return "bash best/launch.sh"
    trial = view.recommended
    if trial is not None and trial.launch is not None:
        return f"bash trials/{trial.folder.name}/launch.sh"
    return None


def script(view: StudyView) -> tuple[str, str] | None:
    """(file, whole text) of the launch script that `command` starts."""
    line = command(view)
    if line is None:
        return None
    path = line.removeprefix("bash ")
    if path.startswith("best/"):
        return path, view.scripts["launch.sh"]
    trial = view.recommended
    return (path, trial.launch) if trial is not None and trial.launch is not None else None


def goal_rows(view: StudyView) -> list[GoalRow]:
    """Goals first, then limits, then nothing else."""
    today, new = sides(view)
    rows = compare(view)
    span = strip_span([row.change for row in rows if row.group in {"goal", "limits"}])
    goal = next((row for row in rows if row.group == "goal"), None)
    found = [_goal_row(view, goal, (today, new), span, None)]
    others = [row for row in rows if row.group == "goal" and row is not goal]
    found += [_goal_row(view, row, (today, new), span, None) for row in others]
    for state in limit_states(view, new or today):
        own = next((row for row in rows if row.metric == state.metric), None)
        found.append(_goal_row(view, own, (today, new), span, state))
    return found


def strip_head(view: StudyView) -> Markup | None:
    """The axis of the change strips; None where no change is known."""
    rows = [row.change for row in compare(view) if row.group in {"goal", "limits"} and row.change]
    return change_axis(strip_span(rows)) if rows else None


def _goal_row(
    view: StudyView,
    row: Row | None,
    both: tuple[Side | None, Side | None],
    span: tuple[float, float],
    state: LimitState | None,
) -> GoalRow:
    metric = row.metric if row else state.metric if state else view.metric
    scale = view.units.scale(metric)
    samples = [side.requests[0] // len(side.trials) if side else None for side in both]
    shown = _sides_text(row, scale, samples)
    change = row.change if row else None
    has_new = row is not None and row.new is not None
    if state is not None and state.unbounded and both[1] is not None:
        shown = (shown[0], "not met (failures)", shown[2], "")
    words = change_cell(metric, change) if metric and has_new else "nothing to compare"
    if metric is not None and metric.name == "success_rate":
        words, change = _failures_text(both[1] or both[0]), None
    return GoalRow(
        kind="limit" if state else "goal",
        label=metric_label(metric) if metric else (state.text if state else ""),
        target=_target(view, state),
        today=shown[0],
        new=shown[1],
        today_range="" if view.finalist_pairs else shown[2],
        new_range="" if view.finalist_pairs else shown[3],
        change=words,
        distinct="not distinguishable" not in words,
        state=_state_words(state),
        standing=state.standing if state else "",
        strip=change_strip(change, span, metric_label(metric)) if metric and change else None,
    )


def _sides_text(
    row: Row | None, scale: Scale, samples: Sequence[int | None]
) -> tuple[str, str, str, str]:
    if row is None:
        return "not measured", "not measured", "", ""
    place = row_place(row, scale)
    return (
        quantity(row.today, scale, place=place),
        quantity(row.new, scale, place=place),
        bounds(row.today, scale, row.today_interval, samples=samples[0], place=place),
        bounds(row.new, scale, row.new_interval, samples=samples[1], place=place),
    )


def _target(view: StudyView, state: LimitState | None) -> str:
    if state is None:
        return ""
    sign = "\N{LESS-THAN OR EQUAL TO}" if state.upper else "\N{GREATER-THAN OR EQUAL TO}"
    if state.limit is None:
        return state.text.partition("=")[2].strip() and f"{sign} {state.text.partition('= ')[2]}"
    return f"{sign} {limit_text(view, state)}"


def _failures_text(side: Side | None) -> str:
    if side is None:
        return "not measured"
    planned, failed = side.requests
    interval = side.interval(_SUCCESS)
    low = interval[0] if interval else None
    tail = f": shown to {share(low)}" if low is not None else ""
    return f"{count(failed)} of {count(planned)} failed{tail}"


def _state_words(state: LimitState | None) -> str:
    if state is None:
        return ""
    if state.standing == "not_shown":
        return "met, not shown" if state.met else "missed, not shown"
    return STANDING_WORDS.get(state.standing, "not measured")


def sure(view: StudyView) -> list[str]:
    """How sure: kind of repeats, traffic, noise, agreement, the luck of the search."""
    verdict = view.verdict
    pairs = len(view.finalist_pairs)
    if pairs:
        lines = [f"{plural(pairs, 'launch', 'launches')} of each, in turns, {traffic_words(view)}"]
    elif view.rival is not None:
        lines = ["one launch of each: nothing was repeated"]
    else:
        return ["nothing to compare with"]
    lines += [line for line in (noise_text(view), agreement(view), luck(view)) if line]
    if verdict is not None and verdict.confirmed and pairs:
        lines.append("intervals of changes: what launches vary by, 95 %")
    else:
        lines.append("intervals: within one run; launches vary more")
    return lines


def price(view: StudyView) -> list[tuple[str, str]]:
    """What the change and the study cost: memory, power, start-up, time, launches."""
    wanted = {
        "gpu_memory_peak": "memory",
        "power_mean": "power",
        "energy_per_1k_tokens": "energy per 1k tokens",
        "startup_seconds": "start-up",
    }
    rows = {row.metric.name: row for row in compare(view)}
    lines = []
    for name, label in wanted.items():
        row = rows.get(name)
        if row is None:
            continue
        scale = view.units.scale(row.metric)
        if row.new is None:
            lines.append((label, quantity(row.today, scale)))
        else:
            today = quantity(row.today, scale, unit=row.today is None)
            lines.append((label, f"{today} \N{RIGHTWARDS ARROW} {quantity(row.new, scale)}"))
    spent = view.trials[-1].ended_s if view.trials else 0.0
    lines.append(("study", f"{duration(spent)}, {plural(len(view.trials), 'launch', 'launches')}"))
    lines.append(("of these", _ends(view.trials)))
    return lines


def _ends(trials: Sequence[TrialView]) -> str:
    if not trials:
        return "none finished"
    states = {
        "measured": sum(t.record.state == "measured" for t in trials),
        "ended early": sum(bool(t.record.stopped_early) for t in trials),
        "failed": sum(
            t.record.state == "infeasible" and not t.record.stopped_early for t in trials
        ),
        "not measurable": sum(t.record.state == "unmeasurable" for t in trials),
        "interrupted": sum(t.record.state == "interrupted" for t in trials),
    }
    return ", ".join(f"{number} {word}" for word, number in states.items() if number)
