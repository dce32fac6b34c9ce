"""How a trial ends: a closed set. Only `Measured` has objective values.

Nothing is ever scored as 0, 1e9 or NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

from autotune.canonical import Json
from autotune.engines.engine import Diagnosis
from autotune.measure.measurement import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A measurement seen with the user's eyes.

    `values`: objective text -> value in the metric's unit, in the user's direction. `violations`:
    constraint text -> normalised signed violation ((value - limit) / |limit|, sign so that <= 0
    holds); a limit that failures make unbounded has the share of failures that is too much.
    `limits`: constraint text -> resolved absolute limit. `cautious`: the violation at the far end
    of the metric's 95 % interval, for the limits where the samples allow it; the search goes by it,
    the verdict by the observed values. `observed`: the other limits -> why only the observed value
    decides.
    """

    values: Mapping[str, float]
    violations: Mapping[str, float]
    limits: Mapping[str, float]
    cautious: Mapping[str, float] = field(default_factory=dict)
    observed: Mapping[str, str] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        return all(violation <= 0 for violation in self.violations.values())

    @property
    def search_violations(self) -> Mapping[str, float]:
        """What the search learns of the limits: cautious where that is possible."""
        return {**self.violations, **self.cautious}


EarlyRule = Literal["limit_out_of_reach", "cannot_beat_best", "growing_queue"]
CANNOT_BEAT_BEST = "cannot_beat_best"
"""Key of the violation of a trial that only is worse than another: no limit of the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnd:
    """Why a replay was ended before its end, and what is known for certain.

    `target`: the limit's or the objective's text. `limit`: what it is held against, the absolute
    limit or the value to beat. `best`: the best final value that was still possible (None: none,
    failures leave no finite one); beyond `limit`, save for `growing_queue`, which is a forecast.
    `seen`: the value over the requests that were due so far, None as for `best`. `violation`: the
    normalised distance of `seen` from the limit, above 0. `over` of `planned` requests were known
    to be beyond the limit, `needed` put it out of reach (None: not a matter of counting). `ended`:
    requests that had ended. `at_s`: seconds after the start of the replay; its last request was due
    at `last_due_s`. `saved_s`: about so many seconds of replay and drain were not run.
    """

    rule: EarlyRule
    target: str
    key: str
    limit: float
    best: float | None
    seen: float | None
    violation: float
    planned: int
    ended: int
    over: int | None
    needed: int | None
    at_s: float
    last_due_s: float
    saved_s: float

    @property
    def sentence(self) -> str:
        """Why and when, in words."""
        when = f"stopped {self.at_s:.0f} s into a replay of {self.last_due_s:.0f} s"
        if self.rule == "growing_queue":
            return f"{when}: the queue grows, {self.target} will not be reached"
        beats = self.rule == "cannot_beat_best"
        bar = f"the best so far ({self.target}: {self.limit:.4g})" if beats else self.target
        if self.over is None or self.needed is None:
            least = "" if self.best is None else f": {self.best:.4g} at best"
            return f"{when}: {bar} is out of reach{least}"
        return (
            f"{when}: {self.over} of {self.planned} requests are beyond {bar}, "
            f"{self.needed} put it out of reach"
        )

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "sentence": self.sentence}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> EarlyEnd:
        names = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The server served, the measurement is valid or suspect.

    `repeats`: what further measurements of the same launch gave, where they were asked for.
    """

    measurement: Measurement
    score: Score
    repeats: tuple[Score, ...] = ()
    quality: Mapping[str, Json] = field(default_factory=dict)
    """What the check of its answers found (`study/quality.py`); empty where none was due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """These parameters cannot work here: a violated constraint, never launched again.

    `measurement`: the numbers, where it served but failed so many requests that it has no value.
    `score`: without values; the violations, where they are known all the same. `stopped`: it
    served, and its replay was ended early; `measurement` is then about a part of it.
    """

    diagnosis: Diagnosis
    measurement: Measurement | None = None
    score: Score | None = None
    stopped: EarlyEnd | None = None
    quality: Mapping[str, Json] = field(default_factory=dict)
    """As of `Measured`, where its answers were the reason."""

    @property
    def violations(self) -> Mapping[str, float]:
        """What is known of single limits (or of `CANNOT_BEAT_BEST`); where that is nothing, all
        count as violated.
        """
        known = {} if self.score is None else self.score.search_violations
        if self.stopped is None:
            return known
        return {**known, self.stopped.key: self.stopped.violation}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasurable:
    """No verdict on the parameters: the client, the machine or the metric was at fault."""

    reason: str
    message: str
    measurement: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Ended by the user or a kill; says nothing about the parameters (`interrupted` in files)."""

    message: str = "interrupted"


Outcome = Measured | Infeasible | Unmeasurable | Stopped
