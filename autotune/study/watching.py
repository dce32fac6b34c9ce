"""Watching the replay of one trial, to end it early: `search/early_stop.py` put to work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed

from autotune.measure.bounds import RISING
from autotune.measure.measurement import Measurement
from autotune.measure.outcome import CANNOT_BEAT_BEST, EarlyEnd, Infeasible, Score
from autotune.replay.glimpse import Glimpse
from autotune.replay.records import PlannedRequest, ReplayResult
from autotune.replay.replayer import HOPELESS
from autotune.search.early_stop import Bar, EarlyStop, Mode, bars, diagnosis_of
from autotune.spec.expressions import Constraint, Objective

Server = Callable[[], Mapping[str, float | None]]
"""What telemetry knows so far, by metric name."""


@dataclass(slots=True, kw_only=True)
class EarlyWatch:
    """What a trial's replays have to reach, and why the last one was ended early, if it was."""

    bars: Sequence[Bar]
    constraints: Sequence[Constraint]
    mode: Mode
    _stop: EarlyStop | None = field(default=None, init=False)

    def hopeless(
        self,
        planned: Sequence[PlannedRequest],
        server: Server,
        *,
        startup_s: float | None,
        drain_s: float,
    ) -> Callable[[Glimpse], bool]:
        """What to ask during a new replay of `planned`. `startup_s`: what the launch took."""
        stop = EarlyStop(planned, self.bars, self.constraints, mode=self.mode, drain_s=drain_s)
        self._stop = stop
        watched = any(bar.metric.name in RISING for bar in self.bars)

        def ask(glimpse: Glimpse) -> bool:
            known = {**server(), "startup_seconds": startup_s} if watched else {}
            return stop.look(glimpse, known)

        return ask

    def end(self, result: ReplayResult) -> EarlyEnd | None:
        """Why this replay was ended early; None if it ran to its end, or ended otherwise."""
        ended = self._stop is not None and result.aborted == HOPELESS
        return self._stop.end if ended and self._stop is not None else None


def early_watch(
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    *,
    baseline: Mapping[str, float | None] | None,
    to_beat: float | None,
    mode: Mode,
) -> EarlyWatch | None:
    """The watch over a trial of the search; None where there is nothing to reach, or nothing may be
    ended early.
    """
    found = bars(objectives, constraints, baseline=baseline, to_beat=to_beat)
    if mode == "off" or not found:
        return None
    return EarlyWatch(bars=found, constraints=constraints, mode=mode)


def given_up(end: EarlyEnd, measurement: Measurement) -> Infeasible:
    """The outcome of a trial whose replay was ended early: the limit that is out of reach counts as
    violated by what was seen; that it cannot beat the best is no limit's violation.
    """
    outcome = Infeasible(diagnosis=diagnosis_of(end), measurement=measurement, stopped=end)
    if end.key == CANNOT_BEAT_BEST:
        return outcome
    score = Score(values={}, violations={end.key: end.violation}, limits={end.key: end.limit})
    return changed(outcome, score=score)
