"""What to try next: the protocol between the study loop and a search method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune.engines.engine import Diagnosis
from autotune.measure.outcome import EarlyEnd, Outcome
from autotune.space.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A candidate to measure. `token` is the proposer's own handle for `tell`.

    `why`: the reason in words ("predicted to be 12 % faster", "one step back from trial 7").
    `predicted`: metric key -> expected value in base units, from proposers that have a model.
    """

    candidate: Candidate
    token: int
    why: str | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A finished trial handed back on resume, so that the proposer can be rebuilt from files.

    `values` are objective values in the order of the study's objectives (None unless measured),
    `violations` constraint text -> normalised violation, `diagnosis` why a launch failed. One
    without values that has violations did serve; `stopped`: its replay was ended early.
    """

    candidate: Candidate
    values: Sequence[float] | None
    violations: Mapping[str, float]
    diagnosis: Diagnosis | None = None
    stopped: EarlyEnd | None = None


class Proposer(Protocol):
    """Proposes candidates that were not launched before."""

    def ask(self) -> Proposal | None:
        """The next candidate, or None when the space is exhausted."""
        ...

    def tell(self, proposal: Proposal, outcome: Outcome) -> None:
        """Report how a proposal ended. Infeasible ones become violated constraints."""
        ...

    def seed(self, known: Sequence[Known]) -> None:
        """Take over finished trials (baseline first); called once, before the first ask."""
        ...

    def believed(self) -> Mapping[str, float]:
        """What launched candidates are believed to do, all launches considered: candidate key ->
        the only objective's value in base units. Of noisy launches the best value is a lucky one;
        a model that shares what is alike knows better. {} where there is no such model.
        """
        ...
