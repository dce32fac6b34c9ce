"""A study as it stands in its directory: the one object that every page, table and figure reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.canonical import Json
from autotune.measure.measurement import Measurement
from autotune.report import reading
from autotune.report.numbers import Units
from autotune.report.reading import Problems
from autotune.report.verdict import Pair, Verdict, read_verdict
from autotune.spec.vocabulary import METRICS, MetricName
from autotune.study.directory import PARTIAL
from autotune.study.events import Event
from autotune.study.implications import DeadEnd, dead_ends
from autotune.study.ranking import (
    baseline_record,
    best_trial,
    is_maximized,
    nearest_to_limits,
    objective_value,
)
from autotune.study.record import TrialRecord

_ENGINE_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "simulated": "simulated engine",
    "simulated-sglang": "simulated SGLang",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A finished trial with what its folder holds.

    `changed`: knob -> (baseline's value, this value), None where absent. `launch` is the text of
    `launch.sh`. `ended_s` is the time all launches up to the end of this one have taken together.
    """

    record: TrialRecord
    folder: Path
    changed: Mapping[str, tuple[Json, Json]]
    measurement: Measurement | None = None
    launch: str | None = None
    plan: Mapping[str, Json] = field(default_factory=dict)
    ended_s: float = 0.0

    @property
    def number(self) -> int:
        return self.record.number

    def metric(self, metric: MetricName) -> float | None:
        """A metric of this trial in base units, or None where it was not measured: of a replay that
        was ended early there is only a part, which compares with nothing.
        """
        if self.measurement is None or self.is_unbounded(metric):
            return None
        if self.measurement.stopped_early:
            return None
        return self.measurement.metrics.get(metric.key)

    def is_unbounded(self, metric: MetricName) -> bool:
        """Whether failures leave the metric without a finite value in this trial."""
        names = self.measurement.unbounded if self.measurement else ()
        return metric.key in names or metric.name in names

    def interval(self, metric: MetricName) -> tuple[float | None, float | None] | None:
        """The metric's 95 % interval within this one run, or None."""
        return None if self.measurement is None else self.measurement.intervals.get(metric.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobView:
    """A knob of the search space: its values as text where known, and why it is varied."""

    name: str
    kind: str
    values: tuple[Json, ...]
    lossy: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """Everything the report says comes from here; nothing here is newer than the directory.

    `unfinished` names trial folders without an outcome. `scripts` maps file names of `best/` to
    their text. `problems` are sentences about files that could not be read.
    """

    directory: Path
    name: str
    model: str
    engine: Mapping[str, Json]
    objectives: tuple[str, ...]
    constraints: tuple[str, ...]
    baseline_params: Mapping[str, Json]
    knobs: tuple[KnobView, ...]
    budget: Mapping[str, Json]
    search: Mapping[str, Json]
    fingerprint: Mapping[str, Json]
    trials: tuple[TrialView, ...]
    unfinished: tuple[str, ...]
    events: tuple[Event, ...]
    verdict: Verdict | None
    scripts: Mapping[str, str]
    problems: tuple[str, ...]

    def trial(self, number: int | None) -> TrialView | None:
        """The finished trial of that number, or None."""
        return next((trial for trial in self.trials if trial.number == number), None)

    @property
    def baseline(self) -> TrialView | None:
        """The baseline's launch that everything is compared with, once it has finished."""
        record = baseline_record([trial.record for trial in self.trials])
        return None if record is None else self.trial(record.number)

    @property
    def best(self) -> TrialView | None:
        """The verdict's best trial; before there is a verdict, the best so far."""
        if self.verdict is not None:
            return self.trial(self.verdict.best)
        record = best_trial([trial.record for trial in self.trials], self.objectives)
        return None if record is None else self.trial(record.number)

    @property
    def recommended(self) -> TrialView | None:
        """The trial that the report advises to run; None where it advises to change nothing.

        Before there is a verdict, the best so far if it beats the baseline.
        """
        best = self.best
        if best is None or best.record.role == "baseline":
            return None
        return best if self.verdict is None or self.verdict.verdict == "better" else None

    @property
    def rival(self) -> TrialView | None:
        """The trial shown beside the baseline: the best one, or the best candidate.

        Where nothing at all meets the limits, the candidate nearest to them.
        """
        best = self.best
        if best is not None and best.record.role != "baseline":
            return best
        for pair in self.finalist_pairs[:1]:
            repeated = self.trial(pair.best_trial)
            same = [
                t
                for t in self.searched
                if repeated and t.record.candidate == repeated.record.candidate
            ]
            if same and same[0].record.role != "baseline":
                return same[0]
        others = [t.record for t in self.trials if t.record.role == "search"]
        record = best_trial(others, self.objectives)
        if record is None and best is None:
            record = next(iter(nearest_to_limits(others)), None)
        return None if record is None else self.trial(record.number)

    @property
    def finalist_pairs(self) -> tuple[Pair, ...]:
        """The verdict's confirmation pairs, in order; none before there is a verdict."""
        return self.verdict.pairs if self.verdict is not None else ()

    @property
    def searched(self) -> tuple[TrialView, ...]:
        """Trials of the baseline and the search, without confirmation launches."""
        return tuple(trial for trial in self.trials if not trial.record.is_repeat)

    @property
    def confirmations(self) -> tuple[TrialView, ...]:
        """Confirmation launches."""
        return tuple(trial for trial in self.trials if trial.record.role == "confirm")

    @property
    def measured(self) -> tuple[TrialView, ...]:
        """Measured trials of baseline and search that have a value of the first objective."""
        return tuple(trial for trial in self.searched if self.goal(trial) is not None)

    @property
    def dead_ends(self) -> list[DeadEnd]:
        """Knobs of which no value can work with some other settings, as far as the trials show."""
        values = {knob.name: knob.values for knob in self.knobs}
        return dead_ends([trial.record for trial in self.trials], values)

    @property
    def metric(self) -> MetricName | None:
        """The metric of the first objective, or None if this version does not know it."""
        return metric_of(self.objectives[0]) if self.objectives else None

    @property
    def maximized(self) -> bool:
        return bool(self.objectives) and is_maximized(self.objectives[0])

    @property
    def units(self) -> Units:
        measurement = self.baseline.measurement if self.baseline else None
        if measurement is None and self.measured:
            measurement = self.measured[0].measurement
        return Units(baseline=measurement.metrics if measurement else {})

    @property
    def simulated(self) -> bool:
        return self.fingerprint.get("simulated") is True or any(
            trial.record.simulated for trial in self.trials
        )

    @property
    def engine_words(self) -> str:
        """The engine's name and version: `vLLM 0.26.0`; empty if not known."""
        return " and ".join(
            engine_name(str(one["kind"]), one.get("version"))
            for one in self.engines
            if one.get("kind")
        )

    @property
    def engines(self) -> list[Mapping[str, Json]]:
        """The fingerprints of all engines, one or several, in the study's order."""
        listed = self.fingerprint.get("engines")
        engines = listed if isinstance(listed, list) else [self.engine]
        return [reading.mapping(engine) for engine in engines]

    @property
    def planned_trials(self) -> int | None:
        """The budget's number of trials, if it has one."""
        number = self.budget.get("trials")
        return number if isinstance(number, int) else None

    @property
    def workload(self) -> Mapping[str, Json]:
        return reading.mapping(self.fingerprint.get("workload"))

    def goal(self, trial: TrialView) -> float | None:
        """A trial's value of the first objective in base units."""
        return objective_value(trial.record, self.objectives)


def engine_name(kind: str, version: Json = None) -> str:
    """An engine in words: `vLLM 0.26.0`."""
    name = _ENGINE_NAMES.get(kind, kind)
    return f"{name} {version}" if version else name


def metric_of(text: str) -> MetricName | None:
    """The metric that an objective or constraint text is about (`tpot_p95 <= 1.1 x baseline`)."""
    words = text.split()
    if words[:1] in (["minimize"], ["maximize"]):
        words = words[1:]
    return METRICS.get(words[0]) if words else None


def load_view(directory: Path) -> StudyView:
    """Read a study directory in any state: fresh, running, torn, interrupted, finished.

    Never raises for what is in the directory; `problems` of the view says what could not be read.
    """
    problems = Problems()
    study = reading.read_object(directory / "study.json", directory, problems) or {}
    fingerprint = reading.read_object(directory / "fingerprint.json", directory, problems) or {}
    records, unfinished = _records(directory, problems)
    baseline = reading.mapping(study.get("baseline"))
    trials = _trials(directory, records, baseline, problems)
    objectives = reading.texts(study.get("objective"))
    constraints = reading.texts(study.get("constraints"))
    return StudyView(
        directory=directory,
        name=str(study.get("name") or directory.resolve().name),
        model=str(study.get("model") or fingerprint.get("model") or ""),
        engine={**reading.mapping(study.get("engine")), **_engine(fingerprint)},
        objectives=objectives or _keys([t.record.values for t in trials]),
        constraints=constraints or _keys([t.record.constraints for t in trials]),
        baseline_params=baseline,
        knobs=_knobs(reading.mapping(study.get("space")).get("knobs")),
        budget=reading.mapping(study.get("budget")),
        search=reading.mapping(study.get("search")),
        fingerprint=fingerprint,
        trials=trials,
        unfinished=unfinished,
        events=reading.read_events(directory / "events.jsonl", directory, problems),
        verdict=read_verdict(directory, problems),
        scripts=_scripts(directory / "best"),
        problems=tuple(problems.sentences),
    )


def _engine(fingerprint: Mapping[str, Json]) -> dict[str, Json]:
    facts = reading.mapping(fingerprint.get("engine"))
    return {key: value for key, value in facts.items() if value is not None}


def _keys(maps: list[Mapping[str, float]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for values in maps for key in values))


def _records(
    directory: Path, problems: Problems
) -> tuple[dict[Path, TrialRecord], tuple[str, ...]]:
    records: dict[Path, TrialRecord] = {}
    unfinished = []
    folder = directory / "trials"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.isdigit():
            record = reading.read_record(path, directory, problems)
            if record is not None:
                records[path] = record
            elif not (path / "outcome.json").exists():
                unfinished.append(path.name)
        elif path.name.endswith(PARTIAL) and path.name.removesuffix(PARTIAL).isdigit():
            unfinished.append(path.name)
    return records, tuple(unfinished)


def _trials(
    directory: Path,
    records: Mapping[Path, TrialRecord],
    baseline: Mapping[str, Json],
    problems: Problems,
) -> tuple[TrialView, ...]:
    ordered = sorted(records.items(), key=lambda item: item[1].number)
    first = next((record for _, record in ordered if record.role == "baseline"), None)
    origin = TrialRecord(number=0, role="baseline", state="measured", params=baseline)
    candidate = (first or origin).candidate
    spent = 0.0
    views = []
    for folder, record in ordered:
        spent += _seconds(record)
        views.append(
            TrialView(
                record=record,
                folder=folder,
                changed=record.candidate.changed_from(candidate),
                measurement=reading.read_measurement(folder, directory, problems),
                launch=reading.read_text(folder / "launch.sh"),
                plan=reading.read_object(folder / "plan.json", directory, problems) or {},
                ended_s=spent,
            )
        )
    return tuple(views)


def _seconds(record: TrialRecord) -> float:
    parts = [seconds for phase, seconds in record.seconds.items() if phase != "total"]
    return max(record.seconds.get("total", sum(parts)), 0.0)


def _knobs(value: Json) -> tuple[KnobView, ...]:
    knobs = [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
    return tuple(
        KnobView(
            name=str(knob.get("name", "")),
            kind=str(knob.get("kind", "")),
            values=tuple(knob["values"]) if isinstance(knob.get("values"), list) else (),
            lossy=knob.get("lossy") is True,
            why=str(knob.get("why") or ""),
        )
        for knob in knobs
    )


def _scripts(folder: Path) -> dict[str, str]:
    order = ("launch.sh", "docker-run.sh", "compose.yaml", "k8s.yaml", "autotune.service",
             "rollback.sh", "manifest.json", "README.md")  # fmt: skip
    found = {name: reading.read_text(folder / name) for name in order}
    return {name: text for name, text in found.items() if text is not None}
