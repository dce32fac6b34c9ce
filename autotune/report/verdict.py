"""The verdict of a study as it stands in `verdict.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from autotune.canonical import Json
from autotune.measure.comparison import (
    Change,
    FinalistVerdict,
    FinalistWord,
    NearMiss,
    VerdictName,
)
from autotune.report import reading
from autotune.report.reading import Problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One confirmation pair: a launch of the baseline and one of the best, values in base units."""

    pair: int
    baseline_trial: int
    best_trial: int
    baseline_value: float
    best_value: float

    @property
    def ratio(self) -> float | None:
        """Best over baseline, or None for a baseline of zero."""
        return self.best_value / self.baseline_value if self.baseline_value else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`verdict.json`: how the study ended, values in base units."""

    verdict: VerdictName
    confirmed: bool
    best: int | None
    baseline_value: float | None
    best_value: float | None
    search_value: float | None
    change: Change | None
    pairs: tuple[Pair, ...]
    noise: float | None
    reason: str
    stopped_because: str
    interrupted: bool
    pareto: tuple[int, ...] = ()
    finalists: tuple[FinalistVerdict, ...] = ()
    nearest: tuple[NearMiss, ...] = ()


def read_verdict(directory: Path, problems: Problems) -> Verdict | None:
    """The study's verdict, or None while there is none or it cannot be read (then a problem)."""
    path = directory / "verdict.json"
    data = reading.read_object(path, directory, problems)
    if data is None:
        return None
    if data.get("verdict") not in get_args(VerdictName):
        problems.add(path, directory, f"verdict {data.get('verdict')!r} is not known; left out")
        return None
    best = data.get("best")
    values = reading.numbers(data)
    return Verdict(
        verdict=cast("VerdictName", data["verdict"]),
        confirmed=data.get("confirmed") is True,
        best=best if isinstance(best, int) else None,
        baseline_value=values.get("baseline_value"),
        best_value=values.get("best_value"),
        search_value=values.get("search_value"),
        change=_change(reading.numbers(data.get("change"))),
        pairs=_pairs(data.get("pairs")),
        noise=values.get("noise"),
        reason=str(data.get("reason") or ""),
        stopped_because=str(data.get("stopped_because") or ""),
        interrupted=data.get("interrupted") is True,
        pareto=tuple(n for n in _items(data.get("pareto")) if isinstance(n, int)),
        finalists=_finalists(data.get("finalists")),
        nearest=tuple(
            NearMiss(trial=item["trial"], violations=reading.numbers(item.get("violations")))
            for item in _items(data.get("nearest"))
            if isinstance(item, dict) and isinstance(item.get("trial"), int)
        ),
    )


def _items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _finalists(value: Json) -> tuple[FinalistVerdict, ...]:
    found = []
    for item in _items(value):
        data = reading.mapping(item)
        word, trial = data.get("verdict"), data.get("trial")
        if word not in get_args(FinalistWord) or not isinstance(trial, int):
            continue
        changes = reading.mapping(data.get("changes"))
        found.append(
            FinalistVerdict(
                trial=trial,
                verdict=cast("FinalistWord", word),
                confirmed=data.get("confirmed") is True,
                reason=str(data.get("reason") or ""),
                changes={text: _change(reading.numbers(c)) for text, c in changes.items()},
                baseline_values=reading.numbers(data.get("baseline_values")),
                values=reading.numbers(data.get("values")),
            )
        )
    return tuple(found)


def _change(values: Mapping[str, float]) -> Change | None:
    ratio = values.get("ratio")
    if ratio is None or not math.isfinite(ratio):
        return None
    return Change(ratio=ratio, low=values.get("low"), high=values.get("high"))


def _pairs(value: Json) -> tuple[Pair, ...]:
    pairs = []
    for index, item in enumerate(value if isinstance(value, list) else ()):
        numbers = reading.numbers(item)
        if not {"baseline_trial", "best_trial", "baseline_value", "best_value"} <= numbers.keys():
            continue
        pairs.append(
            Pair(
                pair=int(numbers.get("pair", index)),
                baseline_trial=int(numbers["baseline_trial"]),
                best_trial=int(numbers["best_trial"]),
                baseline_value=numbers["baseline_value"],
                best_value=numbers["best_value"],
            )
        )
    return tuple(pairs)
