"""What a workload format is: a name, a guess from the first lines, and a stream of rows.

One module of this package per format; each ends with a module constant `FORMAT`, by which
`registry` finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from autotune.canonical import Json
from autotune.workload.trace import Request, Skipped

TimeUnit = Literal["ms", "s"]


class Line(NamedTuple):
    """One line of a file: its number from 1 and its bytes without line end or byte order mark."""

    number: int
    data: bytes


class Encoder(Protocol):
    """Text as tokens: a tokenizer, or an estimate of one."""

    name: str
    estimated: bool

    def encode(self, text: str) -> bytes:
        """Four bytes per token: equal tokens, equal bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the user says about a file. None: the format's own default, or inferred and noted.

    `output_tokens`: the answer length of rows whose file states none. `keep_text`: put the text of
    prompts into `Request.messages`. `encoder`: how text becomes tokens; None estimates.
    `raw_blocks`: leave the file's own block ids as they are; for statistics, which renumber anyway.
    """

    time_unit: TimeUnit | None = None
    block_size: int | None = None
    output_tokens: int | None = None
    keep_text: bool = False
    encoder: Encoder | None = None
    raw_blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Facts of the file as a whole, among its rows; later ones add to earlier ones. `untimed`: the
    file says nothing of arrivals, so the user must (`Request.at_s` is 0 and means nothing).
    """

    block_size: int | None = None
    untimed: bool = False
    meta: Mapping[str, Json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Item = Request | Skipped | About


class Format(Protocol):
    """A kind of workload file."""

    name: str
    title: str

    def sniff(self, head: Sequence[bytes]) -> float:
        """How sure it is, 0 to 1, that a file with these first lines is of this kind."""
        ...

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        """The rows in file order. `Request.at_s` is seconds from any origin; the reader sorts and
        moves the first to 0. A line that cannot be used becomes `Skipped`; blank lines vanish.
        Turns of one session come in their order.
        """
        ...
