"""The settings that are tried right after the baseline: presets and advice of the space's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.canonical import Json
from autotune.space.candidate import Candidate
from autotune.space.search_space import First, SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCandidates:
    """`reasons`: candidate -> why it is tried, in the order of the file. `left_out`: the others,
    each in words with what stands against it.
    """

    reasons: Mapping[Candidate, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def note(self) -> str | None:
        """What a user should know of those that are left out."""
        if not self.left_out:
            return None
        return f"not tried first: {'; '.join(self.left_out)}"


def first_candidates(
    space: SearchSpace, baseline: Candidate, facts: Mapping[str, Json]
) -> FirstCandidates:
    """What of `SearchSpace.first` can be tried on top of this baseline.

    `facts`: what is fixed in the study, its arguments included. Entries whose `when` does not hold
    are for other studies, and are passed over in silence.
    """
    reasons: dict[Candidate, str] = {}
    left_out: list[str] = []
    for entry in space.first:
        if entry.when is not None and entry.when.evaluate({**facts, **baseline.params}) is not True:
            continue
        candidate = space.complete({**baseline.params, **entry.params}, facts)
        against = _against(space, entry, candidate, facts)
        if against is not None:
            settings = ", ".join(f"{name} {value}" for name, value in entry.params.items())
            left_out.append(f"{settings} ({against})")
        elif candidate != baseline:
            reasons.setdefault(candidate, entry.reason)
    return FirstCandidates(reasons=reasons, left_out=tuple(left_out))


def _against(
    space: SearchSpace, entry: First, candidate: Candidate, facts: Mapping[str, Json]
) -> str | None:
    for name, value in entry.params.items():
        knob = space.knob(name)
        if knob is None or (value is not None and name not in candidate.params):
            return f"{name} does not vary here"
        if value not in knob.grid():
            return f"{name} has no value {value} here"
    broken = space.violations(candidate.params, facts)
    return f"it breaks the rule {broken[0]}" if broken else None
