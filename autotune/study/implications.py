"""What a failure implies for settings that were not tried. Pure: finished trials in, reasons out.

Two things follow from a failed launch. Where memory was the cause: settings that need as much or
more of it fail alike. Where the engine refused a value on its own account: every other setting with
that value is refused too. Nothing follows from a failure whose like has served, or where flags
differ that may bear on the matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.canonical import Json, canonical_json
from autotune.engines.engine import Diagnosis
from autotune.engines.facts import EngineFacts
from autotune.engines.flags import flag_name
from autotune.space.candidate import Candidate
from autotune.study.record import TrialRecord

IMPLIED = "implied_by_failure"
"""Reason code of a candidate that was refused without a launch."""

Resolve = Callable[[Candidate], Mapping[str, Json]]
"""Everything that a candidate sets, under the engine's own flag names, fixed arguments included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnd:
    """A knob of which one value needs more memory and the next one more than there is.

    `below` asked for more at value `low`, `above` ran out at value `high`; both are trial numbers.
    """

    knob: str
    low: float
    high: float
    below: int
    above: int

    @property
    def sentence(self) -> str:
        """What to say of it."""
        return (
            f"no value of {self.knob} works with these other settings: {self.low:g} is too little "
            f"(trial {self.below}), {self.high:g} too much (trial {self.above})"
        )


class Implications:
    """What the finished trials of one study imply; `refusal` is a judge for `refusals.Refusals`."""

    def __init__(self, facts: EngineFacts, resolve: Resolve) -> None:
        self._facts = facts
        self._resolve = resolve
        self._failed: dict[int, tuple[TrialRecord, Mapping[str, Json]]] = {}
        self._served: list[Mapping[str, Json]] = []

    def learn(self, record: TrialRecord) -> None:
        """Take over a finished trial."""
        params = self._resolve(record.candidate)
        if record.state == "measured":
            self._served.append(params)
        elif record.fault in ("candidate", "study") and record.facts:
            self._failed[record.number] = record, params
        # One that served proves the opposite, whichever of the two came first
        self._failed = {
            number: (failed, before)
            for number, (failed, before) in self._failed.items()
            if not any(self._follows(failed, before, served) for served in self._served)
        }

    def refusal(self, candidate: Candidate) -> Diagnosis | None:
        """Why a candidate would fail as an earlier trial did; None if nothing says so."""
        params = self._resolve(candidate)
        for record, before in self._failed.values():
            why = self._follows(record, before, params)
            if why is not None:
                return Diagnosis(
                    fault="candidate",
                    phase="startup",
                    reason=IMPLIED,
                    remedy=record.remedy,
                    message=f"{why} as trial {record.number}, which failed: {record.message}",
                    evidence=record.evidence[:1],
                    facts={"trial": record.number, "reason": record.reason},
                )
        return None

    def _follows(
        self, record: TrialRecord, before: Mapping[str, Json], params: Mapping[str, Json]
    ) -> str | None:
        """The relation to the failed trial in words, where its failure follows; else None."""
        blames = record.facts.get("blames")
        if isinstance(blames, list):
            return self._same_blamed(record, [str(name) for name in blames], before, params)
        if (direction := memory_direction(record)) is None:
            return None
        order = self._facts.memory_order
        for name in (before.keys() | params.keys()) - set(order.neutral):
            was, now = before.get(name), params.get(name)
            if name in order.need or (name in order.share and direction == "lower"):
                holds = at_least(now, was)
            elif name in order.share:
                holds = at_least(was, now)
            else:
                holds = _same(was, now)
            if not holds:
                return None
        return "it needs as much memory or more"

    def _same_blamed(
        self,
        record: TrialRecord,
        blames: Sequence[str],
        before: Mapping[str, Json],
        params: Mapping[str, Json],
    ) -> str | None:
        flags = [flag_name(self._facts, name) for name in blames]
        # Neither form of a switch may be written when a flag is unknown: "no-x" blames x
        flags = [
            name.removeprefix("no-") if name.removeprefix("no-") in before else name
            for name in flags
        ]
        given = [name for name in flags if name in before]
        compare = at_least if record.facts.get("blames_larger") else _same
        if not given or not all(compare(params.get(name), before.get(name)) for name in flags):
            return None
        return "it sets " + ", ".join(f"{name} {_text(params[name])}" for name in given)


def memory_direction(record: TrialRecord) -> str | None:
    """Which way memory failed: `raise` (too little was allowed), `lower` (too much), or None."""
    direction = record.facts.get("memory_direction")
    if record.fault != "candidate" or direction not in ("raise", "lower"):
        return None
    return str(direction)


def dead_ends(
    records: Iterable[TrialRecord], values: Mapping[str, Sequence[Json]]
) -> list[DeadEnd]:
    """Neighbouring values of a knob that failed in opposite directions, all other settings equal.

    `values`: the space's values of each knob; without them a knob has no neighbours.
    """
    failed = [record for record in records if memory_direction(record) is not None]
    found: dict[str, DeadEnd] = {}
    for low in failed:
        for high in failed:
            if (memory_direction(low), memory_direction(high)) != ("raise", "lower"):
                continue
            changed = high.candidate.changed_from(low.candidate)
            if len(changed) != 1:
                continue
            ((knob, (small, large)),) = changed.items()
            if not (_number(small) and _number(large)) or not small < large:
                continue
            between = [v for v in values.get(knob, ()) if _number(v) and small < v < large]
            if knob in values and not between:
                end = DeadEnd(knob=knob, low=small, high=large, below=low.number, above=high.number)
                found.setdefault(end.sentence, end)
    return list(found.values())


def at_least(value: Json, other: Json) -> bool:
    """Whether a setting is as large as another: equal, a larger positive number, or a list that
    holds the whole other one. A setting that is missing on one side is not comparable.
    """
    if _same(value, other):
        return True
    if isinstance(value, list) and isinstance(other, list):
        return {canonical_json(item) for item in other} <= {canonical_json(v) for v in value}
    return _number(value) and _number(other) and value >= other > 0


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(value: Json, other: Json) -> bool:
    return canonical_json(value) == canonical_json(other)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else canonical_json(value)
