"""Date-times of logs as seconds, with every digit they have."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from autotune.canonical import Json
from autotune.workload.formats.rows import Unusable

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,12}))?\s*(Z|UTC|[+-]\d\d:?\d\d)?$"
)
_COMMON = re.compile(r"(\d\d)/(\w{3})/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-]\d{4})$")
_MONTHS = {name: i for i, name in enumerate(
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
)}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLIS_FROM = 1e11
"""An epoch time above this counts milliseconds: as seconds it would be after the year 5000."""


class Instants:
    """Times of one file as seconds from its first one's whole second, so that no digit is lost."""

    def __init__(self) -> None:
        self._origin: int | None = None
        self._days: dict[str, int] = {}

    def of(self, text: str, name: str) -> float:
        """Seconds of an ISO 8601 date-time (zone optional, taken as UTC) or one of access logs
        (`29/Nov/2026:10:00:01 +0000`). Raises Unusable (`bad_<name>`).
        """
        found = _ISO.match(text.strip())
        try:
            if found is not None:
                day, hours, minutes, seconds, digits, zone = found.groups()
                whole = self._day(day) + 3600 * int(hours) + 60 * int(minutes) + int(seconds)
                whole -= _offset(zone)
                return self._from_origin(whole, float(f"0.{digits}") if digits else 0.0)
            return self._from_origin(_common(text.strip()), 0.0)
        except ValueError:
            raise Unusable(f"bad_{name}") from None

    def value(self, value: Json, name: str) -> float:
        """Seconds of a date-time, or of a number that counts from 1970 in s or ms.

        Raises Unusable (`missing_<name>`, `bad_<name>`).
        """
        if value is None or value == "":
            raise Unusable(f"missing_{name}")
        if isinstance(value, str) and not _is_number(value):
            return self.of(value, name)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise Unusable(f"bad_{name}")
        seconds = float(value)
        if not -1e15 < seconds < 1e15:
            raise Unusable(f"bad_{name}")
        if seconds > MILLIS_FROM:
            seconds /= 1000
        return self._from_origin(int(seconds), seconds - int(seconds))

    def _from_origin(self, whole: int, fraction: float) -> float:
        if self._origin is None:
            self._origin = whole
        return whole - self._origin + fraction

    def _day(self, text: str) -> int:
        if text not in self._days:
            moment = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
            self._days[text] = int((moment - _EPOCH) / timedelta(seconds=1))
        return self._days[text]


def _common(text: str) -> int:
    found = _COMMON.match(text)
    if found is None or found.group(2) not in _MONTHS:
        raise ValueError(text)
    day, month, year, hour, minute, second, zone = found.groups()
    moment = datetime(
        int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=UTC
    )
    return int((moment - _EPOCH) / timedelta(seconds=1)) - _offset(zone)


def _offset(zone: str | None) -> int:
    """Seconds east of UTC."""
    if zone is None or zone in {"Z", "UTC"}:
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    seconds = 3600 * hours + 60 * minutes
    return -seconds if zone[0] == "-" else seconds


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
