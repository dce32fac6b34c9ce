"""The built-in passages: public-domain prose and verse in several languages, code, tables, numbers.

49 of 0.2 to 1 thousand characters, some 11,000 tokens in all. Languages and kinds alternate, so
that any first part of them is a fair sample. Licence: `texts/LICENSE.md`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_HEAD = re.compile(r"^=== (?P<title>.+) \| (?P<kind>\w+)\n", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """One passage: where it is from, its language (or `code`, `numbers`, ...), and the text."""

    title: str
    kind: str
    text: str


@cache
def built_in() -> tuple[BuiltIn, ...]:
    """All passages, in their fixed order."""
    whole = (files("autotune.measure") / "texts" / "built-in.txt").read_text(encoding="utf-8")
    heads = list(_HEAD.finditer(whole))
    ends = [head.start() for head in heads[1:]] + [len(whole)]
    return tuple(
        BuiltIn(title=head["title"], kind=head["kind"], text=whole[head.end() : end].strip("\n"))
        for head, end in zip(heads, ends, strict=True)
    )
