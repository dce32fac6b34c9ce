"""Engines side by side at their best: what each engine of a study across engines came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.canonical import Json
from autotune.report import reading
from autotune.report.numbers import bounds, quantity
from autotune.report.view import StudyView, TrialView, engine_name, metric_of
from autotune.report.words import metric_label, setting
from autotune.space.candidate import ENGINE
from autotune.spec.vocabulary import METRICS, MetricName
from autotune.study.ranking import best_trial

_ALWAYS = ("ttft_p95", "tpot_p95", "e2e_p95", "output_throughput", "success_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """One engine of a study. `best`: its best trial that meets every limit, None where there is
    none. `tried`, `failed`: its launches of the search, the baseline's included. `unmeasured`: the
    last of its launches where not one served long enough to be judged.
    """

    kind: str
    version: str | None
    best: TrialView | None
    tried: int
    failed: int
    unmeasured: TrialView | None = None

    @property
    def title(self) -> str:
        """The engine in words: `vLLM 0.26.0`."""
        return engine_name(self.kind, self.version)

    @property
    def settings(self) -> str:
        """What the best trial sets, in words."""
        if self.tried == 0:
            return "not launched"
        if self.unmeasured is not None:
            return "none of its launches could be measured"
        if self.best is None:
            return "no settings met every limit"
        params = self.best.record.params
        own = [f"{name} {setting(value)}" for name, value in params.items() if name != ENGINE]
        return ", ".join(own) or "the engine's defaults"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One metric of all engines: `cells` holds (value, interval) as text, in their order."""

    label: str
    cells: tuple[tuple[str, str], ...]


def engine_results(view: StudyView) -> tuple[EngineResult, ...]:
    """Every engine of the study, the baseline's first; () for a study of one engine."""
    listed = view.fingerprint.get("engines")
    found = []
    for entry in listed if isinstance(listed, list) else ():
        about = reading.mapping(entry)
        kind, version = str(about.get("kind")), about.get("version")
        trials = [trial for trial in view.searched if trial.record.params.get(ENGINE) == kind]
        record = best_trial([t.record for t in trials], view.objectives)
        served = any(t.record.state == "measured" or t.record.stopped_early for t in trials)
        found.append(
            EngineResult(
                kind=kind,
                version=version if isinstance(version, str) else None,
                best=None if record is None else view.trial(record.number),
                tried=len(trials),
                failed=sum(
                    t.record.state == "infeasible" and not t.record.stopped_early for t in trials
                ),
                unmeasured=trials[-1] if trials and not served else None,
            )
        )
    return tuple(found)


def engine_rows(view: StudyView, results: Sequence[EngineResult]) -> list[EngineRow]:
    """The objectives, the limited metrics and the usual ones that any of the best trials has."""
    rows = []
    for metric in _metrics(view):
        values = [r.best.metric(metric) if r.best is not None else None for r in results]
        if any(value is not None for value in values):
            cells = tuple(_cell(view, r, metric) for r in results)
            rows.append(EngineRow(label=metric_label(metric), cells=cells))
    return rows


def engines_json(view: StudyView) -> list[dict[str, Json]]:
    """The same for programs, in base units: `engines` of `show --json`."""
    return [_json(view, result) for result in engine_results(view)]


def engines_compared(view: StudyView) -> Mapping[str, object] | None:
    """What the section shows; None in a study of one engine."""
    results = engine_results(view)
    if not results:
        return None
    return {"results": results, "rows": engine_rows(view, results)}


def _metrics(view: StudyView) -> list[MetricName]:
    asked = [metric_of(text) for text in (*view.objectives, *view.constraints)]
    names = [metric.name for metric in asked if metric is not None]
    return [METRICS[name] for name in dict.fromkeys([*names, *_ALWAYS])]


def _cell(view: StudyView, result: EngineResult, metric: MetricName) -> tuple[str, str]:
    if result.best is None:
        return "none", ""
    scale, value = view.units.scale(metric), result.best.metric(metric)
    interval = result.best.interval(metric)
    return quantity(value, scale, interval), bounds(value, scale, interval)


def _json(view: StudyView, result: EngineResult) -> dict[str, Json]:
    best = result.best
    metrics = {} if best is None else {m.key: best.metric(m) for m in _metrics(view)}
    return {
        "engine": result.kind,
        "version": result.version,
        "best": None if best is None else best.number,
        "params": {} if best is None else dict(best.record.params),
        "values": {} if best is None else dict(best.record.values),
        "metrics": metrics,
        "tried": result.tried,
        "failed": result.failed,
    }
