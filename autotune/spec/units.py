"""Text forms of durations and shares, and back. All durations are seconds, all shares of one."""

from __future__ import annotations

import math
import re
from decimal import Decimal

SECONDS_PER = {
    "us": Decimal("0.000001"),
    "µs": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "sec": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
"""Time unit as written -> seconds."""

_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(us|µs|ms|sec|s|min|m|h|d)\s*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_MOST_SECONDS = 366 * 86400


def parse_duration(value: object) -> float:
    """Seconds from `90`, `"90s"`, `"500ms"`, `"1.5h"`, `"2h30m"`.

    A bare number is seconds. Units stand from large to small, each once. Raises ValueError for
    anything else, for negative durations and for more than a year.
    """
    if isinstance(value, str):
        seconds = _duration_from_text(value.strip())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= _MOST_SECONDS else math.inf
    else:
        raise _not_a_duration()
    if math.isnan(seconds):
        raise _not_a_duration()
    if seconds < 0:
        raise ValueError("a duration cannot be negative")
    if seconds > _MOST_SECONDS:
        raise ValueError("longer than a year")
    return seconds


def _not_a_duration() -> ValueError:
    return ValueError("expected a duration such as 90s, 500ms, 1.5h or 2h30m")


def _duration_from_text(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return float(text)
    total, end, last = Decimal(0), 0, Decimal("Infinity")
    while end < len(text):
        match = _PART.match(text, end)
        if match is None or SECONDS_PER[match[2]] >= last:
            raise _not_a_duration()
        last = SECONDS_PER[match[2]]
        total += Decimal(match[1]) * last
        end = match.end()
    if end == 0:
        raise _not_a_duration()
    return float(total)


def format_duration(seconds: float) -> str:
    """The shortest text that reads back as `seconds`, to the millisecond (below 1 ms: microsecond).

    `0.5` -> `500ms`, `90` -> `1m30s`, `28800` -> `8h`.
    """
    if seconds < 0:
        raise ValueError("a duration cannot be negative")
    if seconds < 0.001:
        return f"{round(seconds * 1e6)}us" if seconds > 0 else "0s"
    whole_ms = round(seconds * 1000)
    if whole_ms < 1000:
        return f"{whole_ms}ms"
    minutes, ms = divmod(whole_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
    return text + (f"{plain_number(Decimal(ms) / 1000)}s" if ms else "")


def parse_share(value: object) -> float:
    """A share of one from `0.01`, `"1%"` or `"1 %"`. Raises ValueError outside 0 to 1."""
    if isinstance(value, str):
        text = value.strip()
        number = text.removesuffix("%").rstrip()
        if not _NUMBER.fullmatch(number):
            raise _not_a_share()
        scale = Decimal(100) if text.endswith("%") else Decimal(1)
        share = float(Decimal(number) / scale)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    else:
        raise _not_a_share()
    if not 0 <= share <= 1:
        raise ValueError("a share lies between 0 and 1; write 1% or 0.01 for one percent")
    return share


def _not_a_share() -> ValueError:
    return ValueError("expected a share such as 0.01 or 1%")


def plain_number(value: float | Decimal) -> str:
    """The shortest decimal text of a finite number, never with an exponent: `1000`, `0.0333`."""
    number = value if isinstance(value, Decimal) else Decimal(repr(value))
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
