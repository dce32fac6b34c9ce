"""Values that seem to fail whatever the other settings are, learned from the launches so far.

A value is hopeless once it has failed so often, and never served, that this would be a rare chance
if it were like the others. One in twenty such values is judged wrongly, so what holds one is not
forbidden: it is proposed once nothing else is left.
"""

from __future__ import annotations

from collections import Counter

from autotune.search.choices import Indices

RARE = 0.05
"""A run of failures with less than this chance is no accident."""


class Hazard:
    """Counts failures by knob and value."""

    def __init__(self) -> None:
        self._failed: Counter[tuple[str, int]] = Counter()
        self._served: set[tuple[str, int]] = set()
        self._failures = 0
        self._launches = 0

    def learn(self, indices: Indices, *, failed: bool) -> None:
        """Take over a launch."""
        self._launches += 1
        self._failures += failed
        if failed:
            self._failed.update(indices.items())
        else:
            self._served.update(indices.items())

    def is_hopeless(self, indices: Indices) -> bool:
        """Whether a value among these has always failed, by more than accident."""
        share = (self._failures + 1) / (self._launches + 2)
        return any(
            item not in self._served and share ** self._failed[item] < RARE
            for item in indices.items()
        )
