"""Errors as plain text: what is wrong, where, the fact it rests on, what was done, what to type."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from autotune.errors import AutotuneError, Place, Problem

_MOST_PROBLEMS = 10
_WIDEST_LINE = 120
_CONTEXT = 50


def render_error(error: AutotuneError) -> str:
    """The error as lines of plain text, with no final line end and no control characters.

    At most ten problems are shown, then a count; a long source line is cut around its caret.
    """
    lines = [f"error: {_clean(error.message)}"]
    shown = error.problems[:_MOST_PROBLEMS]
    gutter = _gutter(shown)
    for problem in shown:
        lines += _problem(problem, error.message, gutter)
    hidden = len(error.problems) - len(shown)
    if hidden:
        lines.append(f"  ... and {hidden} more")
    for name, text in (("seen:", error.seen), ("so:", error.so)):
        if text:
            first, *more = text.splitlines()
            lines.append(f"  {name:<5} {_clean(first)}")
            lines += [f"        {_clean(line)}" for line in more]
    if error.hint:
        lines += ["", f"hint: {_clean(error.hint)}"]
    return "\n".join(lines)


def problems_title(problems: Sequence[Problem], where: str) -> str:
    """The first line for a set of problems: the problem itself if it is one, else their count."""
    if len(problems) == 1:
        only = problems[0].place.file if problems[0].place else where
        return f"{only}: {problems[0].message}"
    files = list(dict.fromkeys(p.place.file if p.place else where for p in problems))
    return f"{len(problems)} problems in {' and '.join(files)}"


def _gutter(problems: Sequence[Problem]) -> int:
    return max([2, *(len(str(p.place.line)) for p in problems if p.place)])


def _problem(problem: Problem, title: str, gutter: int) -> list[str]:
    place = problem.place
    if place is None:
        return [] if title.endswith(problem.message) else [f"  - {_clean(problem.message)}"]
    lines = [f"  --> {_clean(place.file)}:{place.line}:{place.column}"]
    label = place.label or ("" if title.endswith(problem.message) else problem.message)
    if not place.text.strip():
        return [*lines, f"{'':{gutter}} | {_clean(label)}"] if label else lines
    text, start = _window(place)
    before, marked = text[:start], text[start : start + place.length]
    caret = " " * _width(before) + "^" * max(1, _width(marked))
    lines.append(f"{place.line:>{gutter}} | {text}")
    lines.append(f"{'':{gutter}} | {caret} {_clean(label)}".rstrip())
    return lines


def _window(place: Place) -> tuple[str, int]:
    """The source line, cut if it is long, and the caret's index in it."""
    text, start = _clean(place.text), place.column - 1
    if len(text) <= _WIDEST_LINE:
        return text, start
    first = max(0, min(start - _CONTEXT, len(text) - _WIDEST_LINE))
    cut = text[first : first + _WIDEST_LINE]
    head, tail = "..." if first else "", "..." if first + _WIDEST_LINE < len(text) else ""
    return head + cut + tail, start - first + len(head)


def _clean(text: str) -> str:
    """The text with each control character as one visible or blank character."""
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def _width(text: str) -> int:
    """Terminal columns: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
