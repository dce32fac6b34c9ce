"""Engine versions and ranges of them, as search spaces write them: `>=0.12`, `>=0.12,<0.20`."""

from __future__ import annotations

import operator
import re

_LEADING = re.compile(r"v?(\d+(?:\.\d+)*)")
_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*v?(\d+(?:\.\d+)*)")
_OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def version_key(version: str) -> tuple[int, ...] | None:
    """The numbers of a version for comparing, without trailing zeros: `0.26.0+cpu` -> (0, 26).

    What follows the numbers (`rc1`, `.post1`, `+cpu`) is left out; None when there are none.
    """
    match = _LEADING.match(version.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def check_version_range(text: str) -> None:
    """Raise ValueError unless `text` is a comma-separated list such as `>=0.12,<0.20`."""
    for clause in text.split(","):
        if not _CLAUSE.fullmatch(clause.strip()):
            raise ValueError("expected a version range such as >=0.12 or >=0.12,<0.20")


def version_in_range(version: str, text: str) -> bool | None:
    """Whether every clause holds for `version`; None when the version has no numbers."""
    check_version_range(text)
    key = version_key(version)
    if key is None:
        return None
    for clause in text.split(","):
        match = _CLAUSE.fullmatch(clause.strip())
        bound = version_key(match[2]) if match else None
        if match and bound is not None and not _OPERATORS[match[1]](key, bound):
            return False
    return True
