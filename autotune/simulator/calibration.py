"""Step coefficients from what an engine was seen to do: least squares with the simulator itself.

Every sample is a latency that was measured under a load; the simulator replays the load and the log
of the ratio is the error. The loss is soft-L1 (Triggs et al., Bundle Adjustment, 2000), so a few
odd requests decide nothing. Wide log-normal beliefs hold what the samples leave open. A *trait* is
a setting whose effect on the coefficients is not known beforehand (a quantisation, an attention
backend): one factor on prefill and one on decoding, learned along with the coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from autotune.simulator.fast import run
from autotune.simulator.load import Limits, Load, Pace, Times
from autotune.simulator.profile import StepCoefficients

if TYPE_CHECKING:
    import numpy as np

NAMES = ("a", "m", "b", "c", "d", "f", "g", "r0", "r1")
"""The six coefficients of a step (`step_time`), the cost of each prompt in it, and the two of a
request, in this order."""
PREFILL, DECODE = ("b", "c", "g"), ("a", "m", "d")
"""Which coefficients a trait's two factors may scale."""
FEW = 64
"""Requests of a probe at most; more are a replay."""
NEVER = 20.0
"""The log error of a request that never ended in the simulation."""
_STEPS = (0.05, 0.02, 0.01)
"""Steps of the log for slopes, one after the other: a request that just catches an earlier step of
the engine makes latencies jump, so that slopes over small steps say nothing."""
_SPREADS = {
    "a": 0.4,
    "m": 0.4,
    "b": 1.0,
    "c": 1.0,
    "d": 1.0,
    "f": 0.5,
    "g": 1.0,
    "r0": 1.0,
    "r1": 1.5,
}
"""How loosely the first belief is held. Samples of one token budget leave the split of the fixed
costs a, m and f open, so these three stay nearer to it.
"""
FORM_DOUBT = {
    "a": 0.03,
    "m": 0.03,
    "b": 0.02,
    "c": 0.05,
    "d": 0.05,
    "f": 0.3,
    "g": 0.3,
    "r0": 0.2,
    "r1": 0.5,
}
"""How far off the form of the step time is at best, as spreads of the logs: samples of one setting
cannot tell, and other settings lean on other terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """A setting with an unknown effect. `expected`: coefficient -> factor that is likely. `doubt`:
    spread of the log of its two factors, which scale the coefficients that it `touches`.
    """

    name: str
    doubt: float
    expected: Mapping[str, float] = field(default_factory=dict)
    touches: tuple[str, ...] = (*PREFILL, *DECODE)

    @property
    def scales(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The coefficients of its factor on prefill, and of that on decoding."""
        return (
            tuple(name for name in PREFILL if name in self.touches),
            tuple(name for name in DECODE if name in self.touches),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One latency in seconds: of one job, or the one of a 1-based `rank` among the measured jobs
    that have it. `spread`: how far a right model may be off, as the spread of the log. `until_s`:
    only jobs that had ended by then, of which there were `ended`.
    """

    what: Literal["ttft", "tpot", "e2e"]
    value_s: float
    spread: float
    job: int | None = None
    rank: int | None = None
    until_s: float | None = None
    ended: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What was seen of one load under one setting."""

    load: Load
    limits: Limits
    samples: tuple[Sample, ...]
    traits: tuple[Trait, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed before: coefficient -> seconds, and the spread of its log."""

    centre: Mapping[str, float]
    spread: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Calibrated coefficients. `logs`: natural logs of seconds in the order of `NAMES`. `shifts`:
    trait -> logs of its (prefill, decode) factors beyond what was expected. `covariance` of the
    logs, then of the two of each trait in the order of `shifts`; `doubts`: trait -> their spreads.
    `error`: root mean square of the samples' log errors over their spreads, `off`: median absolute
    log error.
    """

    logs: tuple[float, ...]
    covariance: np.ndarray[Any, Any]
    shifts: Mapping[str, tuple[float, float]]
    doubts: Mapping[str, tuple[float, float]]
    error: float
    off: float
    belief: Belief

    def pace(self, traits: Sequence[Trait] = (), shift: Mapping[str, float] | None = None) -> Pace:
        """The pace under some traits; `shift` is added to the logs of coefficients."""
        logs = self.logs_with(traits)
        for name, value in (shift or {}).items():
            logs[NAMES.index(name)] += value
        return pace_of(logs)

    def logs_with(self, traits: Sequence[Trait]) -> list[float]:
        """The logs of the coefficients under some traits."""
        logs = list(self.logs)
        for trait in traits:
            _apply(logs, trait, self.shifts.get(trait.name, (0.0, 0.0)))
        return logs

    def seconds(self) -> dict[str, float]:
        """The coefficients by name, in seconds."""
        return {name: math.exp(log) for name, log in zip(NAMES, self.logs, strict=True)}


def pace_of(logs: Sequence[float]) -> Pace:
    """The pace with these logs of coefficients."""
    a, m, b, c, d, f, g, r0, r1 = (math.exp(log) for log in logs)
    step = StepCoefficients(a_s=a, m_s=m, b_s=b, c_s=c, d_s=d, f_s=f)
    return Pace(step=step, chunk_s=g, r0_s=r0, r1_s=r1)


def _apply(logs: list[float], trait: Trait, shift: tuple[float, float]) -> None:
    for name, factor in trait.expected.items():
        logs[NAMES.index(name)] += math.log(factor)
    for names, by in zip(trait.scales, shift, strict=True):
        for name in names:
            logs[NAMES.index(name)] += by


def first_belief(sights: Sequence[Sight]) -> Belief:
    """A guess from the samples: the time per token of prompts, and of decoding one alone.

    The ratios of the other coefficients to these two are those of an H200 with a 7B model, which
    follow from its arithmetic; all are held loosely.
    """
    prompts = [
        (sight.load.jobs[sample.job].prompt, sample.value_s)
        for sight in sights for sample in sight.samples
        if sample.what == "ttft" and sample.job is not None
    ]  # fmt: skip
    decodes = [s.value_s for sight in sights for s in sight.samples if s.what == "tpot"]
    paces = sorted(value / prompt for prompt, value in prompts)
    b = paces[len(paces) // 10] * 0.9 if paces else 2e-5
    decode = min(decodes, default=250 * b)
    shortest = min((value for _, value in prompts), default=decode)
    centre = {
        "a": 0.3 * decode, "m": 0.6 * decode, "b": b, "c": b / 32_000, "d": 6e-4 * b,
        "f": 0.25 * decode, "g": 0.05 * decode, "r0": 0.2 * min(shortest, decode), "r1": 1e-3 * b,
    }  # fmt: skip
    return Belief(centre=centre, spread=_SPREADS)


def calibrate(
    sights: Sequence[Sight], *, belief: Belief | None = None, start: Fit | None = None
) -> Fit:
    """The coefficients that explain `sights` best. `start`: an earlier fit to begin at, whose
    belief is kept. Takes about 0.5 s for a dozen probes and a hundred requests.

    Raises ValueError without any sample.
    """
    if not any(sight.samples for sight in sights):
        raise ValueError("nothing to calibrate on")
    if belief is None:
        belief = start.belief if start is not None else first_belief(sights)
    problem = _Problem(sights, belief)
    at = problem.begin(start)
    steps: tuple[float, ...] = _STEPS
    if start is None:
        at = _first_place(problem, sights, belief)
    else:
        steps = _STEPS[1:2]
    for step in steps:
        at = min(at, problem.solved(at, step), key=problem.cost)
    return problem.fit(at)


def _first_place(problem: _Problem, sights: Sequence[Sight], belief: Belief) -> Any:
    """Where to begin: first what requests one at a time say, which make no jumps, then what small
    batches say, then what explains everything best of these.
    """
    at = problem.begin(None)
    places = [at.copy()]
    for most in (1, FEW):
        part = _Problem([s for s in sights if len(s.load.jobs) <= most], belief)
        begin = part.begin(None)
        begin[: len(NAMES)] = places[-1][: len(NAMES)]
        at[: len(NAMES)] = part.solved(begin, _STEPS[-1])[: len(NAMES)]
        places.append(at.copy())
    return min(places, key=problem.cost)


class _Problem:
    """Least squares over the logs of the coefficients and two logs per trait."""

    def __init__(self, sights: Sequence[Sight], belief: Belief) -> None:
        import numpy as np

        self.np = np
        self.sights = [sight for sight in sights if sight.samples]
        self.belief = belief
        traits = {trait.name: trait for sight in self.sights for trait in sight.traits}
        self.traits = list(traits.values())
        self.place = {t.name: len(NAMES) + 2 * i for i, t in enumerate(self.traits)}
        self.centre = np.array(
            [math.log(belief.centre[name]) for name in NAMES] + [0.0, 0.0] * len(self.traits)
        )
        self.spread = np.array(
            [belief.spread[name] for name in NAMES]
            + [doubt for t in self.traits for doubt in (t.doubt, t.doubt)]
        )
        self.step = _STEPS[-1]
        self.known: tuple[bytes, list[Any]] | None = None
        self.sloped: tuple[bytes, Any] | None = None

    def begin(self, start: Fit | None) -> Any:
        at = self.centre.copy()
        if start is not None:
            at[: len(NAMES)] = start.logs
            for trait in self.traits:
                place = self.place[trait.name]
                at[place : place + 2] = start.shifts.get(trait.name, (0.0, 0.0))
        return at

    def solved(self, at: Any, step: float) -> Any:
        """The best place that is found from `at`, with slopes over this step."""
        from scipy.optimize import least_squares

        self.step, self.sloped = step, None
        found = least_squares(
            self.errors, at, jac=self.slopes, loss="soft_l1", x_scale=self.spread,
            ftol=1e-4, xtol=1e-4, max_nfev=25,
        )  # fmt: skip
        return found.x

    def cost(self, at: Any) -> float:
        """What the search makes small."""
        return float(self.np.sum(self.np.sqrt(1 + self.errors(at) ** 2)))

    def errors(self, at: Any) -> Any:
        parts = [self._sight(sight, self._logs(sight, at)) for sight in self.sights]
        self.known = (at.tobytes(), parts)
        return self.np.concatenate([*parts, (at - self.centre) / self.spread])

    def slopes(self, at: Any) -> Any:
        """Forward differences by coefficient; a trait's follow by the chain rule."""
        if self.sloped is None or self.sloped[0] != at.tobytes():
            self.sloped = at.tobytes(), self._sloped(at)
        # The solver weights what it is given in place
        return self.sloped[1].copy()

    def _sloped(self, at: Any) -> Any:
        np = self.np
        if self.known is None or self.known[0] != at.tobytes():
            self.errors(at)
        assert self.known is not None
        blocks = []
        for sight, base in zip(self.sights, self.known[1], strict=True):
            logs = self._logs(sight, at)
            block = np.zeros((len(base), len(at)))
            for i in range(len(NAMES)):
                moved = list(logs)
                moved[i] += self.step
                block[:, i] = (self._sight(sight, moved) - base) / self.step
            for trait in sight.traits:
                for offset, names in enumerate(trait.scales):
                    columns = [NAMES.index(name) for name in names]
                    block[:, self.place[trait.name] + offset] = block[:, columns].sum(axis=1)
            blocks.append(block)
        return np.vstack([*blocks, np.diag(1 / self.spread)])

    def fit(self, at: Any) -> Fit:
        np = self.np
        errors, slopes = self.errors(at), self.slopes(at)
        count = len(errors) - len(at)
        seen = errors[:count]
        # A form that does not fit the samples is believed less everywhere
        inflated = max(1.0, float(np.mean(np.minimum(np.abs(seen), 3.0) ** 2)))
        weights = 1 / np.sqrt(1 + errors**2)
        covariance = np.linalg.inv((slopes * weights[:, None]).T @ slopes) * inflated
        form = np.array([FORM_DOUBT[name] for name in NAMES] + [0.02] * (2 * len(self.traits)))
        covariance = covariance + np.diag(form**2)
        spread = np.sqrt(np.diag(covariance))
        values = [s.spread for sight in self.sights for s in sight.samples]
        return Fit(
            logs=tuple(float(x) for x in at[: len(NAMES)]),
            covariance=covariance,
            shifts={n: (float(at[i]), float(at[i + 1])) for n, i in self.place.items()},
            doubts={n: (float(spread[i]), float(spread[i + 1])) for n, i in self.place.items()},
            error=float(np.sqrt(np.mean(seen**2))),
            off=float(np.median(np.abs(seen * np.array(values)))),
            belief=self.belief,
        )

    def _logs(self, sight: Sight, at: Any) -> list[float]:
        logs = [float(x) for x in at[: len(NAMES)]]
        for trait in sight.traits:
            place = self.place[trait.name]
            _apply(logs, trait, (float(at[place]), float(at[place + 1])))
        return logs

    def _sight(self, sight: Sight, logs: Sequence[float]) -> Any:
        times = run(sight.load, sight.limits, pace_of(logs))
        errors = []
        for sample in sight.samples:
            if sample.job is not None:
                value = latency(sight.load, times, sample.what, sample.job)
            else:
                value = ranked_latency(sight.load, times, sample)
            error = NEVER if math.isinf(value) else math.log(value / sample.value_s)
            errors.append(error / sample.spread)
        return self.np.array(errors)


def ranked_latency(load: Load, times: Times, sample: Sample) -> float:
    """The latency of a sample's rank, seconds; of a part of a replay that of the same share of the
    jobs that had ended, infinite if none had.
    """
    assert sample.rank is not None
    if sample.until_s is None:
        return latencies(load, times, sample.what)[sample.rank - 1]
    found = sorted(
        latency(load, times, sample.what, i)
        for i, job in enumerate(load.jobs)
        if job.measured
        and times.last[i] <= sample.until_s
        and (sample.what != "tpot" or job.output > 1)
    )
    share = sample.rank / max(sample.ended, sample.rank)
    return found[max(0, math.ceil(share * len(found) - 1e-9) - 1)] if found else math.inf


def latency(load: Load, times: Times, what: str, job: int) -> float:
    """One latency of one job, seconds; infinite if it never came."""
    if what == "ttft":
        return times.first[job] - times.due[job]
    if what == "e2e":
        return times.last[job] - times.due[job]
    tokens = load.jobs[job].output - 1
    return (times.last[job] - times.first[job]) / tokens


def latencies(load: Load, times: Times, what: str) -> list[float]:
    """A latency of all measured jobs that have it, in rising order, seconds."""
    found = times.ranked.get(what)
    if found is None:
        rows = zip(load.jobs, times.due, times.first, times.last, strict=True)
        if what == "ttft":
            # One that was cut off by the end of the simulation counts as never answered
            values = [f - d if e < math.inf else math.inf for j, d, f, e in rows if j.measured]
        elif what == "e2e":
            values = [e - d for j, d, _, e in rows if j.measured]
        else:
            values = [
                (e - f) / (j.output - 1) if e < math.inf else math.inf
                for j, _, f, e in rows
                if j.measured and j.output > 1
            ]
        found = times.ranked[what] = sorted(values)
    return found
