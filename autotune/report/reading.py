"""Read the files of a study directory in whatever state a night has left them.

Nothing here raises for a missing, torn or foreign file: what cannot be read is left out and said in
`Problems`, because a report is wanted most when something went wrong.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from autotune.canonical import Json
from autotune.measure.measurement import Measurement
from autotune.study.events import Event
from autotune.study.record import Role, State, TrialRecord

_MAX_TEXT = 200_000
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(slots=True)
class Problems:
    """What could not be read, one sentence each, in the order it was met."""

    sentences: list[str] = field(default_factory=list)

    def add(self, path: Path, root: Path, what: str) -> None:
        name = path.relative_to(root) if path.is_relative_to(root) else path
        self.sentences.append(f"{name}: {what}")


def clean(text: str) -> str:
    """Text that is safe to show: control, surrogate and text-direction characters become U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character in "\n\t" or _is_shown(character) else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def _is_shown(character: str) -> bool:
    return character not in _BIDI and unicodedata.category(character) not in {"Cc", "Cs"}


def finite(value: Json) -> Json:
    """The same JSON value with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def mapping(value: Json) -> dict[str, Json]:
    """The value if it is an object, else an empty one."""
    return dict(value) if isinstance(value, Mapping) else {}


def texts(value: Json) -> tuple[str, ...]:
    """The value as a tuple of texts: a list's items, a single text, or nothing."""
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value) if isinstance(value, (list, tuple)) else ()


def numbers(value: Json) -> dict[str, float]:
    """The entries of an object that are finite numbers."""
    return {
        key: float(number)
        for key, number in mapping(value).items()
        if isinstance(number, (int, float)) and not isinstance(number, bool)
        if math.isfinite(number)
    }


def read_text(path: Path) -> str | None:
    """The file's text, at most 200,000 characters, or None if there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(_MAX_TEXT)
    except OSError:
        return None


def read_object(path: Path, root: Path, problems: Problems) -> dict[str, Json] | None:
    """The JSON object in a file, numbers finite. None if missing or unreadable (then a problem)."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        problems.add(path, root, f"cannot be read ({type(error).__name__})")
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        problems.add(path, root, "is not whole JSON; left out")
        return None
    if not isinstance(value, dict):
        problems.add(path, root, "does not hold a JSON object; left out")
        return None
    return mapping(finite(value))


def read_events(path: Path, root: Path, problems: Problems) -> tuple[Event, ...]:
    """The events that can be read; broken lines are counted."""
    text = read_text(path)
    events: list[Event] = []
    broken = 0
    for line in (text or "").split("\n"):
        if not line.strip():
            continue
        try:
            events.append(_event(mapping(finite(json.loads(line)))))
        except (ValueError, KeyError, TypeError, RecursionError):
            broken += 1
    if broken:
        problems.add(path, root, f"{broken} unreadable line{'s' if broken > 1 else ''} left out")
    return tuple(events)


def _event(data: Json) -> Event:
    known = {"kind", "at", "elapsed_s", "data"}
    inner = data.get("data")
    rest = {key: value for key, value in data.items() if key not in known}
    return Event(
        kind=data["kind"],
        at=str(data.get("at") or ""),
        elapsed_s=float(data.get("elapsed_s") or 0.0),
        data={**rest, **mapping(inner)},
    )


def read_record(folder: Path, root: Path, problems: Problems) -> TrialRecord | None:
    """The trial's record, or None if its outcome is missing or torn (then a problem)."""
    path = folder / "outcome.json"
    data = read_object(path, root, problems)
    if data is None:
        if not path.exists():
            problems.add(folder, root, "has no outcome.json; the trial did not finish")
        return None
    try:
        return TrialRecord.from_json(_record_fields(data, folder))
    except (TypeError, ValueError, KeyError) as error:
        problems.add(path, root, f"is not a trial's outcome ({error}); left out")
        return None


def _record_fields(data: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    if data.get("state") not in get_args(State):
        raise ValueError(f"state {data.get('state')!r}")
    number = data.get("number", int(folder.name))
    if not isinstance(number, int):
        raise TypeError(f"number {number!r}")
    pair = data.get("pair")
    cleaned: dict[str, Json] = {
        "params": mapping(data.get("params")),
        "values": numbers(data.get("values")),
        "constraints": numbers(data.get("constraints")),
        "limits": numbers(data.get("limits")),
        "seconds": numbers(data.get("seconds")),
        "evidence": texts(data.get("evidence")),
        "number": number,
        "role": data.get("role") if data.get("role") in get_args(Role) else "search",
        "pair": pair if isinstance(pair, int) else None,
        "feasible": data.get("feasible") is True and data.get("state") == "measured",
        "started_at": str(data.get("started_at") or ""),
        "simulated": data.get("simulated") is True,
    }
    for name in ("fault", "reason", "phase", "remedy", "message", "validity"):
        cleaned[name] = None if data.get(name) is None else str(data[name])
    return {**data, **cleaned}


def read_measurement(folder: Path, root: Path, problems: Problems) -> Measurement | None:
    """The trial's measurement, or None if it has none or it cannot be read."""
    path = folder / "measurement.json"
    data = read_object(path, root, problems)
    if data is None:
        return None
    try:
        metrics = numbers(data.get("metrics"))
        data["metrics"] = {key: metrics.get(key) for key in mapping(data.get("metrics"))}
        data["intervals"] = {
            key: (_number(pair[0]), _number(pair[1]))
            for key, pair in mapping(data.get("intervals")).items()
            if isinstance(pair, list) and len(pair) == 2
        }
        for name in ("diagnosis", "context", "client"):
            data[name] = mapping(data.get(name))
        measurement = Measurement.from_json(data)
        _check_counts(measurement)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        problems.add(path, root, f"is not a measurement ({error}); left out")
        return None
    return measurement


def _number(value: Json) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _check_counts(measurement: Measurement) -> None:
    counts: Sequence[Json] = (measurement.planned, measurement.ok, measurement.failed)
    if not all(isinstance(number, int) for number in counts):
        raise TypeError("request counts are not whole numbers")
