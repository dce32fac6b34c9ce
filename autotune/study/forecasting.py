"""From a study's files to a calibrated forecast: probes, requests, other launches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.canonical import Json
from autotune.measure.metrics import tpot, ttft
from autotune.replay.parquet import read_records
from autotune.replay.records import RequestRecord
from autotune.search.forecast import Forecast, Part, Prediction
from autotune.search.simulated_forecast import SimulatedForecast, Wanted
from autotune.search.simulated_metrics import percentile_samples
from autotune.simulator.calibration import Sample, Sight, Trait
from autotune.simulator.load import Job, Limits, Load, simultaneous
from autotune.space.candidate import Candidate
from autotune.study.directory import StudyDirectory, read_json, write_json
from autotune.study.engine_view import flags_of, understanding_of
from autotune.study.measuring import LEAD_S, background_of
from autotune.study.memory_fit import Fits
from autotune.study.prepare import PreparedStudy
from autotune.study.probing import Probe, read_probes
from autotune.study.ranking import baseline_record
from autotune.study.record import TrialRecord
from autotune.workload.trace import Request, Trace

FILE = "forecast.json"
CLIENT_S = 1e-3
"""What a client and a busy machine add to one answer, give or take."""
SHOT_SPREAD = 0.015
REQUEST_SPREAD = 0.15
"""Spread of one request's log latency for ten of them; the more there are, the less each counts,
since their errors have causes in common."""
SESSION_PIECE = 64
"""Tokens per piece of a session's prompts, which grow from turn to turn."""


def study_forecast(
    study: PreparedStudy, directory: StudyDirectory, *, fit: Fits | None = None
) -> Forecast | None:
    """A forecast for a study whose baseline was measured; None where there is nothing to calibrate
    it on. `fit`: the study's estimate of memory. It keeps `forecast.json` up to date.
    """
    records = [record for record in directory.records() if record.state == "measured"]
    baseline = baseline_record(records)
    if baseline is None:
        return None
    reader = _Reader(study, directory, fit)
    sights = reader.sights(baseline)
    if not sights:
        return None
    measurement = read_json(directory.trial(baseline.number) / "measurement.json")
    wanted = Wanted(
        objectives=study.spec.objective,
        constraints=study.spec.constraints,
        reference=measurement.get("recorded_rate") or measurement["metrics"],
    )
    forecast = SimulatedForecast(
        reader.load_at, reader.understanding, reader.settings, wanted, sights, kv_tokens=reader.kv
    )
    kept = KeptForecast(forecast, reader)
    for record in records:
        if record.role == "search":
            metrics = read_json(directory.trial(record.number) / "measurement.json")["metrics"]
            kept.learn(record.candidate, metrics)
    kept.write()
    return kept


class KeptForecast:
    """A `Forecast` whose state is kept in the study directory."""

    def __init__(self, inner: SimulatedForecast, reader: _Reader) -> None:
        self._inner = inner
        self._reader = reader

    def predict(self, candidate: Candidate) -> Prediction | None:
        return self._inner.predict(candidate) if self._reader.is_own(candidate) else None

    def sketch(self, candidates: Sequence[Candidate]) -> list[Prediction | None]:
        own = [candidate for candidate in candidates if self._reader.is_own(candidate)]
        found = dict(zip(own, self._inner.sketch(own), strict=True))
        return [found.get(candidate) for candidate in candidates]

    def understands(self, knob: str) -> bool:
        kind, _, name = knob.rpartition(":")
        if kind and kind != self._reader.study.engine.kind:
            return False
        return self._inner.understands(self._reader.flag_of(name))

    def learn(
        self, candidate: Candidate, metrics: Mapping[str, float | None], part: Part | None = None
    ) -> Mapping[str, float]:
        self._reader.look()
        # The simulator's clock starts with the window, a replay's a little before
        inner = None if part is None else replace(part, until_s=part.until_s - LEAD_S)
        probes = self._reader.later_probes(candidate)
        found = self._inner.learn(candidate, metrics, inner, probes)
        self.write()
        return found

    def give_way(self, why: str) -> None:
        self._inner.give_way(why)
        self.write()

    def facts(self) -> Mapping[str, Json]:
        knobs = [knob.name for knob in self._reader.study.space.knobs]
        return {
            **self._inner.facts(),
            "understood": [name for name in knobs if self.understands(name)],
            "learned": [name for name in knobs if not self.understands(name)],
        }

    def write(self) -> None:
        """Write `forecast.json`."""
        write_json(self._reader.directory.path / FILE, dict(self.facts()))


class _Reader:
    """Everything that the forecast needs to know of one study."""

    def __init__(self, study: PreparedStudy, directory: StudyDirectory, fit: Fits | None) -> None:
        self.study = study
        self.directory = directory
        self._fit = fit
        self._load = load_of(study.search_trace, study.measure.priming)
        self.understanding = understanding_of(study)
        self._probed: set[int] = set()
        self._logs: list[tuple[Mapping[str, Json], Mapping[str, float]]] = []
        self._settings: dict[str, dict[str, Json]] = {}
        self._kv: dict[str, int | None] = {}
        self.look()

    def settings(self, candidate: Candidate) -> Mapping[str, Json]:
        """All flags of a candidate's launch."""
        if candidate.key not in self._settings:
            self._settings[candidate.key] = flags_of(self.study, candidate)
        return self._settings[candidate.key]

    def is_own(self, candidate: Candidate) -> bool:
        """Whether a candidate is of the engine that the forecast is calibrated on."""
        return candidate.engine == self.study.baseline.engine

    def load_at(self, multiplier: float) -> Load:
        """The search window at a multiple of its rate."""
        return replace(self._load, rate=multiplier)

    def flag_of(self, knob: str) -> str:
        """The flag behind a knob's name."""
        return self.study.target.knob_flags.get(knob, knob)

    def kv(self, candidate: Candidate) -> int | None:
        """Tokens that the KV cache would hold: estimated, else derived from logs of launches."""
        if candidate.key not in self._kv:
            found = None if self._fit is None else self._fit.estimate(candidate)
            self._kv[candidate.key] = (
                _kv_by_logs(self._logs, self.settings(candidate))
                if found is None
                else found.kv_tokens or None
            )
        return self._kv[candidate.key]

    def look(self) -> None:
        """Read what launches said of memory."""
        self._kv.clear()
        self._logs = [
            (self.settings(record.candidate), record.memory["log"])
            for record in self.directory.records()
            if record.memory.get("log") and self.is_own(record.candidate)
        ]

    def sights(self, baseline: TrialRecord) -> list[Sight]:
        """What the baseline's launch showed: probes, and its requests (or their percentiles)."""
        folder = self.directory.trial(baseline.number)
        limits = self._limits(baseline.candidate)
        self._probed.add(baseline.number)
        probes = read_probes(folder)
        found = [] if probes is None else probe_sights(probes.probes, limits)
        measurement = read_json(folder / "measurement.json")
        rate = float(measurement.get("context", {}).get("rate_multiplier") or 1.0)
        load = self.load_at(rate)
        samples: tuple[Sample, ...] = ()
        if (folder / "requests.parquet").is_file():
            samples = request_samples(load, read_records(folder / "requests.parquet"))
        samples = samples or percentile_samples(load, measurement["metrics"], None)
        if samples:
            found.append(Sight(load=load, limits=limits, samples=samples))
        return found

    def later_probes(self, candidate: Candidate) -> list[Sight]:
        """The probes of a search launch of this candidate that were not read before."""
        for record in reversed(self.directory.records()):
            if record.candidate == candidate and record.number not in self._probed:
                self._probed.add(record.number)
                view = self.understanding.view(self.settings(candidate), self.kv(candidate))
                probes = read_probes(self.directory.trial(record.number))
                return (
                    [] if probes is None else probe_sights(probes.probes, view.limits, view.traits)
                )
        return []

    def _limits(self, candidate: Candidate) -> Limits:
        return self.understanding.limits(self.settings(candidate), self.kv(candidate))


def probe_sights(
    probes: Sequence[Probe], limits: Limits, traits: Sequence[Trait] = ()
) -> list[Sight]:
    """Probes as samples for the calibration; equal shots as their median."""
    grouped: dict[tuple[int, int, int], list[Probe]] = {}
    for probe in probes:
        shot = probe.shot
        grouped.setdefault((shot.prompt_tokens, shot.output_tokens, shot.at_once), []).append(probe)
    return [
        Sight(
            load=simultaneous(prompt, output, count),
            limits=limits,
            samples=_shot_samples(output, count, same),
            traits=tuple(traits),
        )
        for (prompt, output, count), same in grouped.items()
    ]


def _shot_samples(output: int, count: int, probes: Sequence[Probe]) -> tuple[Sample, ...]:
    def seen(values: Sequence[float]) -> tuple[float, float]:
        value = statistics.median(values)
        return value, SHOT_SPREAD + CLIENT_S / value

    samples = []
    if count == 1:
        value, spread = seen([probe.answers[0].ttft_s for probe in probes])
        samples.append(Sample(what="ttft", value_s=value, spread=spread, job=0))
    else:
        value, spread = seen([max(a.e2e_s for a in probe.answers) for probe in probes])
        samples.append(Sample(what="e2e", value_s=value, spread=2 * spread, rank=count))
    if output > 1:
        paces = [[a.tpot_s for a in probe.answers if a.tpot_s] for probe in probes]
        if all(len(pace) == count for pace in paces):
            # The quickest of a batch waited least for the others' prompts
            value = statistics.median(min(pace) for pace in paces)
            spread = SHOT_SPREAD + CLIENT_S / (value * output)
            samples.append(Sample(what="tpot", value_s=value, spread=spread, rank=1))
    return tuple(samples)


def request_samples(load: Load, records: Sequence[RequestRecord]) -> tuple[Sample, ...]:
    """One sample per latency of every measured request that was answered."""
    measured = [r for r in records if r.measured and r.failure is None]
    spread = REQUEST_SPREAD * math.sqrt(max(1.0, len(measured) / 10))
    samples = []
    for record in measured:
        if record.index >= len(load.jobs):
            return ()
        for what, value in (("ttft", ttft(record)), ("tpot", tpot(record))):
            if value is not None and value > 0 and load.jobs[record.index].output > 1:
                samples.append(
                    Sample(what=what, value_s=value, spread=spread, job=record.index)  # type: ignore[arg-type]
                )
    return tuple(samples)


def load_of(trace: Trace, priming: Sequence[Request] = ()) -> Load:
    """A window as the simulator sees it, with the load behind it (`measuring.background_of`)."""
    piece = trace.block_size if any(r.blocks for r in trace.requests) else SESSION_PIECE
    names: dict[object, int] = {}
    jobs: list[Job] = []
    for group, measured in ((trace.requests, True), (background_of(trace), False)):
        last_of_session: dict[str, int] = {}
        begin = len(jobs)
        for request in group:
            after = last_of_session.get(request.session) if request.session else None
            follows = after is not None and request.gap_s is not None
            jobs.append(
                Job(
                    at_s=0.0 if follows else request.at_s,
                    prompt=max(1, request.input_tokens),
                    output=max(1, request.output_tokens),
                    after=after,
                    gap_s=request.gap_s or 0.0,
                    chain=_chain(request, piece, names, salt=begin),
                    measured=measured,
                )
            )
            if request.session:
                last_of_session[request.session] = len(jobs) - 1
    primed = [name for request in priming for name in _chain(request, piece, names, salt=0)]
    return Load(jobs=tuple(jobs), piece_tokens=piece, primed=tuple(dict.fromkeys(primed)))


def _chain(request: Request, piece: int, names: dict[object, int], *, salt: int) -> tuple[int, ...]:
    """Numbers for the leading pieces of a prompt, equal where prompts are equal."""
    whole = request.input_tokens // piece
    if request.blocks:
        keys: list[object] = [(salt, block) for block in request.blocks[:whole]]
    elif request.session is not None:
        keys = [(salt, request.session, i) for i in range(whole)]
    else:
        return ()
    return tuple(names.setdefault(key, len(names)) for key in keys)


def _kv_by_logs(
    logs: Sequence[tuple[Mapping[str, Json], Mapping[str, float]]], settings: Mapping[str, Json]
) -> int | None:
    """KV tokens from what another launch's log said of its memory: the same GPU, divided anew."""
    ready = [(s, log) for s, log in logs if log.get("kv_tokens") and log.get("kv_gib")]
    if not ready:
        return None

    def likeness(entry: tuple[Mapping[str, Json], Mapping[str, float]]) -> int:
        return sum(entry[0].get(name) == value for name, value in settings.items())

    other, log = max(ready, key=likeness)
    share, now = (_share(s) for s in (other, settings))
    kv, weights = log["kv_gib"], log.get("weights_gib", 0.0)
    activation = log.get("activation_gib", 0.0)
    total = (kv + weights + activation + log.get("graphs_gib", 0.0)) / share
    kv += (now - share) * total
    if other.get("quantization") != settings.get("quantization"):
        kv += weights * (0.45 if settings.get("quantization") is not None else -0.8)
    before, after = (s.get("max-num-batched-tokens") for s in (other, settings))
    if isinstance(before, int) and isinstance(after, int) and before > 0:
        kv -= activation * (after / before - 1)
    per_token = log["kv_gib"] / log["kv_tokens"]
    eight = ["8" in str(s.get("kv-cache-dtype")) for s in (other, settings)]
    per_token *= 0.5 ** (eight[1] - eight[0])
    return max(1, int(kv / per_token))


def _share(settings: Mapping[str, Json]) -> float:
    for name in ("gpu-memory-utilization", "mem-fraction-static"):
        value = settings.get(name)
        if isinstance(value, int | float):
            return float(value)
    return 0.92
