"""How likely a launch fails, learned knob by knob from the launches so far: naive Bayes.

Each value of a knob raises or lowers the odds by how often settings with it failed, compared with
all settings; values next to it in order count in part. For the methods that otherwise learn of
failures slowly: settings that would rather fail are proposed only if nothing else is left.
"""

from __future__ import annotations

import math

from autotune.search.choices import Choices, Indices

LIKELY = 0.5
"""From this chance of failure on settings are avoided."""
DOUBT = 2.0
"""So many launches it takes before a value's own failures count as much as those of all."""
NEXT_TO = 0.4
"""Weight of a launch with the next value of an ordered knob."""


class Hazard:
    """Counts failures by knob and value."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._failed: dict[str, list[float]] = {}
        self._tried: dict[str, list[float]] = {}
        self._failures = 0
        self._launches = 0

    def learn(self, indices: Indices, *, failed: bool) -> None:
        """Take over a launch."""
        self._launches += 1
        self._failures += failed
        for name, at in indices.items():
            count = self._choices.count(name)
            tried = self._tried.setdefault(name, [0.0] * count)
            fails = self._failed.setdefault(name, [0.0] * count)
            near = (at - 1, at, at + 1) if self._choices.is_ordered(name) else (at,)
            for position in near:
                if 0 <= position < count:
                    weight = 1.0 if position == at else NEXT_TO
                    tried[position] += weight
                    fails[position] += weight * failed

    def is_likely(self, indices: Indices) -> bool:
        """Whether these settings would rather fail than serve."""
        if not self._failures:
            return False
        share = (self._failures + 1) / (self._launches + 2)
        odds = math.log(share / (1 - share))
        total = odds
        for name, at in indices.items():
            if name in self._tried:
                seen = self._tried[name][at] + DOUBT
                own = (self._failed[name][at] + DOUBT * share) / seen
                total += math.log(own / (1 - own)) - odds
        return total >= math.log(LIKELY / (1 - LIKELY))
