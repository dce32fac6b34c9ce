"""Objectives and limits as users write them: `minimize ttft_p95`, `tpot_p95 <= 1.1 x baseline`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NoReturn

from autotune.spec.nearest import offer
from autotune.spec.units import SECONDS_PER, plain_number
from autotune.spec.vocabulary import METRICS, STATISTICS, MetricName, Unit


class ExpressionError(ValueError):
    """A text that cannot be read, with the offset and length (characters) of the word at fault."""

    def __init__(self, message: str, offset: int, length: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.length = max(1, length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What to make small or large. `text` is its canonical form (`minimize ttft_p95`)."""

    metric: MetricName
    direction: Literal["minimize", "maximize"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A limit on a metric.

    `value` is in the metric's base unit (seconds, shares), or a factor of the baseline's measured
    value when `relative`. `text` is the canonical form and the constraint's name in files.
    """

    metric: MetricName
    op: Literal["<=", ">="]
    value: float
    relative: bool
    text: str


_WORD = re.compile(r"\S+")
_DIRECTIONS: dict[str, Literal["minimize", "maximize"]] = {
    "minimize": "minimize",
    "minimise": "minimize",
    "min": "minimize",
    "maximize": "maximize",
    "maximise": "maximize",
    "max": "maximize",
}
_BETTER: dict[str, Literal["minimize", "maximize"]] = {"lower": "minimize", "higher": "maximize"}


def parse_objective(text: object) -> Objective:
    """Read an objective: a direction and a metric, or a metric alone (its better direction).

    Raises ExpressionError (a ValueError) at the word at fault, with the nearest known metric.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("expected an objective such as `minimize ttft_p95`")
    words = list(_WORD.finditer(text))
    direction = _DIRECTIONS.get(words[0][0].lower())
    rest = words if direction is None else words[1:]
    if not rest:
        _fail(words[0], "expected a metric after it, such as `minimize ttft_p95`")
    if direction is None and len(rest) > 1:
        _fail(rest[0], "expected `minimize` or `maximize`")
    if len(rest) > 1:
        _fail(rest[1], "one metric per objective; a list holds up to three objectives")
    metric = _metric(rest[0][0], rest[0].start())
    if not metric.scored:
        _fail(rest[0], f"{metric.name} can be limited or shown, not optimised")
    better = _BETTER[metric.goal]
    if direction not in (None, better):
        _fail(words[0], f"{metric.goal} {metric.name} is better; write `{better} {metric.name}`")
    return Objective(metric=metric, direction=better, text=f"{better} {metric.name}")


_LIMIT = re.compile(r"\s*(?P<metric>[^\s<>=≤≥!]+)?\s*(?P<op>[<>=≤≥!]+)?\s*(?P<bound>.*?)\s*$", re.S)
_OPS: dict[str, Literal["<=", ">="]] = {
    "<=": "<=", "<": "<=", "≤": "<=", "=<": "<=", ">=": ">=", ">": ">=", "≥": ">=", "=>": ">=",
}  # fmt: skip
_GOOD_OP = {"lower": "<=", "higher": ">="}
TIMES = ("x", "\N{MULTIPLICATION SIGN}", "*")
_TIMES = f"[{''.join(TIMES)}]"
_RELATIVE = re.compile(
    rf"(?:(?P<factor>\d+(?:\.\d+)?|\.\d+)\s*(?P<times>{_TIMES})?\s*)?(?P<word>[^\W\d]\w*)"
)
_ABSOLUTE = re.compile(r"(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?P<unit>[^\s\d.].*)?")


def parse_constraint(text: object) -> Constraint:
    """Read a limit: `ttft_p95 < 500ms`, `success_rate >= 99.9 %`, `tpot_p95 <= 1.1 x baseline`.

    `<` and `>` mean `<=` and `>=`. A limit in time needs its unit, so that 500 is never taken for
    500 s. Raises ExpressionError (a ValueError) at the word at fault.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("expected a limit such as `ttft_p95 <= 500ms`")
    match = _LIMIT.match(text)
    assert match is not None
    if match["metric"] is None:
        raise ExpressionError(
            "expected a metric in front", match.start("op"), len(match["op"] or "")
        )
    metric = _metric(match["metric"], match.start("metric"))
    if metric.searched:
        _fail_at(f"{metric.name} can be optimised, not limited", *match.span("metric"))
    if match["op"] is None:
        word = _WORD.search(text, match.end("metric"))
        if word is None:
            _fail_at("expected a limit after it, such as `<= 500ms`", *match.span("metric"))
        _fail(word, "expected <= or >=")
    op = _OPS.get(match["op"])
    if op is None:
        _fail_at("expected <= or >=", *match.span("op"))
    if op != _GOOD_OP[metric.goal]:
        _fail_at(
            f"{metric.goal} {metric.name} is better; write {_GOOD_OP[metric.goal]}",
            *match.span("op"),
        )
    if not match["bound"]:
        _fail_at("expected a number or `baseline` after it", *match.span("op"))
    return _bound(metric, op, match["bound"], match.start("bound"))


def _bound(metric: MetricName, op: Literal["<=", ">="], bound: str, offset: int) -> Constraint:
    relative = _RELATIVE.fullmatch(bound)
    if relative and relative["word"].lower() == "baseline":
        if relative["factor"] and not relative["times"]:
            _fail_at(
                "expected `x` before it, as in `1.1 x baseline`",
                offset + relative.start("word"),
                offset + relative.end("word"),
            )
        value = float(relative["factor"] or 1)
        _check_size(value, bound, offset)
        text = f"{metric.name} {op} {plain_number(value)} x baseline"
        return Constraint(metric=metric, op=op, value=value, relative=True, text=text)
    absolute = _ABSOLUTE.fullmatch(bound)
    if absolute is None or re.match(rf"{_TIMES}(\s|$)", absolute["unit"] or ""):
        _fail_at("expected a number or `baseline`", *_wrong_word(bound, offset))
    value = _in_base_unit(metric, absolute, offset)
    _check_size(value, bound, offset)
    text = f"{metric.name} {op} {_canonical_bound(value, metric.unit)}"
    return Constraint(metric=metric, op=op, value=value, relative=False, text=text)


def _wrong_word(bound: str, offset: int) -> tuple[int, int]:
    """The first word that is neither a number nor a times sign, else the last word."""
    words = list(_WORD.finditer(bound))
    odd = [word for word in words if not re.fullmatch(rf"{_TIMES}|\d+(\.\d+)?|\.\d+", word[0])]
    word = (odd or words[-1:])[0]
    return offset + word.start(), offset + word.end()


_UNITS: dict[Unit, dict[str, Decimal]] = {
    "s": SECONDS_PER,
    "ratio": {"%": Decimal("0.01")},
    "per_s": {"/s": Decimal(1), "req/s": Decimal(1), "requests/s": Decimal(1)},
    "tokens_per_s": {"/s": Decimal(1), "tok/s": Decimal(1), "tokens/s": Decimal(1)},
    "count": {},
    "bytes": {
        "B": Decimal(1),
        **{f"{letter}B": Decimal(1000) ** power for power, letter in enumerate("KMGT", 1)},
        **{f"{letter}iB": Decimal(1024) ** power for power, letter in enumerate("KMGT", 1)},
    },
    "watts": {"W": Decimal(1), "kW": Decimal(1000)},
    "joules": {"J": Decimal(1), "kJ": Decimal(1000)},
    "times": {"x": Decimal(1)},
}


def _in_base_unit(metric: MetricName, match: re.Match[str], offset: int) -> float:
    number, unit = match["number"], match["unit"]
    known = _UNITS[metric.unit]
    if unit is None:
        if metric.unit == "s":
            _fail_at(f"no unit: write {number}ms or {number}s", offset, offset + len(match[0]))
        value = Decimal(number)
    elif unit in known:
        value = Decimal(number) * known[unit]
    else:
        span = (offset + match.start("unit"), offset + match.end("unit"))
        shown = ("ms", "s", "m", "h") if metric.unit == "s" else known
        choice = (
            f"; {metric.name} is in {', '.join(shown)}" if known else "; expected a number alone"
        )
        _fail_at(f"unknown unit{choice}", *span)
    if metric.unit == "ratio" and value > 1:
        _fail_at(
            f"a share is at most 1; write {number}%" if unit is None else "more than 100 %",
            offset,
            offset + len(match[0]),
        )
    return float(value)


def _check_size(value: float, bound: str, offset: int) -> None:
    if not math.isfinite(value):
        _fail_at("too large", offset, offset + len(bound))


def _canonical_bound(value: float, unit: Unit) -> str:
    exact = Decimal(repr(value))
    if unit == "s":
        return f"{plain_number(exact * 1000)}ms" if exact < 1 else f"{plain_number(exact)}s"
    if unit == "bytes":
        in_gib = exact / 1024**3
        return (
            f"{plain_number(in_gib)}GiB" if exact and in_gib == int(in_gib) else plain_number(exact)
        )
    return plain_number(exact) + {"watts": "W", "joules": "J"}.get(unit, "")


def _metric(name: str, offset: int) -> MetricName:
    metric = METRICS.get(name)
    if metric is not None:
        return metric
    families = {known.family for known in METRICS.values() if known.statistic}
    if name in families:
        choices = ", ".join(f"{name}_{statistic}" for statistic in STATISTICS)
        message = f"no statistic: write one of {choices}"
    else:
        message = f"unknown metric{offer(name, METRICS)}"
    raise ExpressionError(message, offset, len(name))


def _fail(word: re.Match[str], message: str) -> NoReturn:
    _fail_at(message, word.start(), word.end())


def _fail_at(message: str, start: int, end: int) -> NoReturn:
    raise ExpressionError(message, start, end - start)
