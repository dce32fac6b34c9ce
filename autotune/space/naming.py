"""Names in conditions: what they can mean in a space, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.space.facts import FACT_PREFIXES, FACTS
from autotune.space.knob import Knob
from autotune.spec.conditions import Condition
from autotune.spec.expressions import ExpressionError
from autotune.spec.nearest import closeness, offer

_A_LETTER_OFF = 0.92


def check_names(condition: Condition, knobs: Mapping[str, Knob]) -> Iterator[ExpressionError]:
    """The names that can mean nothing: an unknown fact, an unquoted text, a misspelt knob.

    Any other name is taken for a flag that a study may fix.
    """
    texts = {
        value for knob in knobs.values() for value in (knob.values or ()) if isinstance(value, str)
    }
    for found in condition.occurrences():
        name = found.name
        if name in knobs or name in FACTS:
            continue
        message = None
        if name.startswith(FACT_PREFIXES):
            message = f"unknown fact{offer(name, FACTS)}"
        elif name in texts:
            message = f'a text goes in quotes: "{name}"'
        elif any(closeness(name, knob) > _A_LETTER_OFF for knob in knobs):
            message = f"no such knob{offer(name, knobs)}"
        if message is not None:
            yield ExpressionError(message, found.offset, len(name))
