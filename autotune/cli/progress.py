"""What the terminal knows of a running study: a state fed by events, and its words.

Both views (live and plain) draw from this state, so they can never tell different stories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.canonical import Json
from autotune.report.numbers import Units, duration, quantity
from autotune.spec.vocabulary import METRICS, MetricName
from autotune.study.events import Event

SHORT_KEYS = 2
"""How many measured columns a trial's line has: the goal and the first limit."""


@dataclass(slots=True)
class Row:
    """One finished trial as a line."""

    number: int
    word: str
    seconds: float
    numbers: list[str]
    changed: str
    note: str


@dataclass(slots=True)
class Current:
    """A trial that runs now."""

    number: int
    role: str
    changed: str
    phase: str = "launching"
    phase_began_s: float = 0.0
    expected_s: float | None = None
    detail: str | None = None
    progress: Mapping[str, Json] = field(default_factory=dict)


@dataclass(slots=True)
class StudyProgress:
    """The whole state. `handle` takes events in order; everything else reads."""

    name: str = ""
    directory: str = ""
    simulated: bool = False
    metrics: list[MetricName] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    running: dict[int, Current] = field(default_factory=dict)
    best: str | None = None
    fails: Counter[str] = field(default_factory=Counter)
    budget_s: float | None = None
    budget_trials: int | None = None
    budget_gpu_s: float | None = None
    slots: int = 1
    gpus: int = 1
    used_before_s: float = 0.0
    trial_seconds: list[float] = field(default_factory=list)
    finished: bool = False
    searched: int = 0
    reserved: int = 0
    notes: list[str] = field(default_factory=list)
    units: Units = field(default_factory=Units)

    def handle(self, event: Event) -> None:
        """Take one event."""
        data = event.data
        match event.kind:
            case "study_started":
                self._started(data)
            case "trial_started":
                self.running[data["trial"]] = Current(
                    number=data["trial"],
                    role=data["role"],
                    changed=changed_text(data["changed"]),
                    phase_began_s=event.elapsed_s,
                )
            case "phase" if data["trial"] in self.running:
                self._phase(event, self.running[data["trial"]])
            case "progress" if data["trial"] in self.running:
                self.running[data["trial"]].progress = data
            case "trial_finished":
                self._finished(data)
            case "best":
                self.best = self._best(data)
            case "note":
                self.notes.append(one_line(data["message"]))
            case "study_finished":
                self.finished = True
                self.running.clear()
            case _:
                pass

    @property
    def current(self) -> Current | None:
        """The trial that was begun first of those that run."""
        return next(iter(self.running.values()), None)

    def _started(self, data: Mapping[str, Json]) -> None:
        self.name = data["name"]
        self.directory = data["directory"]
        self.simulated = data["simulated"]
        self.metrics = [METRICS[name] for name in data["metrics"]][:SHORT_KEYS]
        self.budget_s = data["budget_s"]
        self.budget_trials = data["budget_trials"]
        self.budget_gpu_s = data.get("budget_gpu_s")
        self.slots, self.gpus = data.get("slots", 1), data.get("gpus", 1)
        self.used_before_s = data["used_s"]
        self.reserved = data["confirmations"]
        self.searched = data["searched"]
        self.trial_seconds = list(data["durations"])
        self.units = Units(baseline=data["reference"])

    def _phase(self, event: Event, current: Current) -> None:
        if event.data["phase"] != current.phase or event.data.get("detail") is None:
            current.phase = event.data["phase"]
            current.phase_began_s = event.elapsed_s
            current.expected_s = event.data.get("expected_s")
        current.detail = event.data.get("detail")

    def _finished(self, data: Mapping[str, Json]) -> None:
        metrics = data["metrics"]
        if data["role"] == "baseline" and data["state"] == "measured":
            self.units = Units(baseline=metrics)
        ended = self.running.pop(data["number"], None)
        changed = ended.changed if ended else ""
        word = end_word(data)
        row = Row(
            number=data["number"],
            word=word,
            seconds=data["seconds"].get("total", 0.0),
            numbers=[self.show(metric, metrics.get(metric.key)) for metric in self.metrics],
            changed="" if data["role"] == "baseline" else changed,
            note=note_of(data),
        )
        self.rows.append(row)
        if word == "stopped":
            return
        if data["role"] == "confirm":
            self.reserved = max(0, self.reserved - 1)
        elif data["role"] != "check":
            self.searched += 1
        self.trial_seconds.append(row.seconds)
        if word in ("failed", "void"):
            self.fails[(data.get("reason") or "unknown").replace("_", " ")] += 1
        elif word in ("breaks", "early"):
            self.fails["breaks a limit" if word == "breaks" else "ended early"] += 1

    def _best(self, data: Mapping[str, Json]) -> str:
        metric = METRICS[data["metric"]]
        value = self.show(metric, data["values"][0])
        which = "baseline" if data["role"] == "baseline" else "not yet confirmed"
        return f"#{data['trial']}  {metric.name.replace('_', ' ')} {value} ({which})"

    def show(self, metric: MetricName, value: float | None) -> str:
        """A value in the study's unit for that metric; `-` where there is none."""
        return "-" if value is None else quantity(value, self.units.scale(metric))

    def labels(self) -> list[str]:
        """Column heads of the measured numbers."""
        return [metric.name.replace("_", " ") for metric in self.metrics]

    def time_line(self, elapsed_s: float) -> str:
        """How much is used, what is left, and what fits in it."""
        used = self.used_before_s + elapsed_s
        parts = [f"{duration(used)} used"]
        mean = sum(self.trial_seconds) / len(self.trial_seconds) if self.trial_seconds else None
        if self.budget_s is not None:
            left = max(0.0, self.budget_s - used)
            about = f": about {int(left / mean) * self.slots} launches" if mean else ""
            parts.append(f"{duration(left)} left{about}")
        if self.budget_gpu_s is not None:
            hours = sum(self.trial_seconds) * self.gpus / 3600
            parts.append(f"{hours:.3g} of {self.budget_gpu_s / 3600:.3g} GPU-hours")
        if self.budget_trials is not None:
            parts.append(f"{min(self.searched, self.budget_trials)} of {self.budget_trials} trials")
        if self.reserved:
            parts.append(f"{self.reserved} launches kept for confirmation")
        return ", ".join(parts)

    def fails_line(self) -> str:
        """What failed so far, by reason."""
        return ", ".join(f"{count} {reason}" for reason, count in self.fails.items()) or "none"


def one_line(text: str) -> str:
    """Text from outside as one line that cannot steer a terminal."""
    blank = (" " if char.isspace() else char for char in text)
    return "".join(char for char in blank if char.isprintable())


def changed_text(changed: Mapping[str, Sequence[Json]]) -> str:
    """Settings that differ from the baseline, as `name value  name value`."""
    parts = []
    for name, (_, value) in changed.items():
        word = (
            {True: "on", False: "off", None: "default"}.get(value, value)
            if isinstance(value, bool | type(None))
            else value
        )
        parts.append(one_line(f"{name} {word}"))
    return "  ".join(parts) or "baseline"


def end_word(data: Mapping[str, Json]) -> str:
    """The one word for how a trial ended."""
    state = data["state"]
    if data.get("stopped_early"):
        return "early"
    if state == "measured":
        if data["role"] == "baseline":
            return "baseline"
        if not data["feasible"]:
            return "breaks"
        return "suspect" if data.get("validity") == "suspect" else "ok"
    return {"infeasible": "failed", "unmeasurable": "void"}.get(state, "stopped")


def note_of(data: Mapping[str, Json]) -> str:
    """Why a trial has no place among the good ones, in a few words."""
    if data["state"] == "measured":
        broken = [text for text, violation in data["constraints"].items() if violation > 0]
        return f"breaks {broken[0]}" if broken else ""
    return one_line((data.get("reason") or data.get("message") or "").replace("_", " "))
