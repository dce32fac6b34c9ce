"""vLLM server logs written with `--enable-log-requests`.

`Received request ID: params: SamplingParams(... max_tokens=N ...)` gives the arrival (whole
seconds, no year). The prompt's length stands in older versions' same line, or in `Request ID
details: ...` at DEBUG: as token ids if they were logged, else as text. The answer's length comes
from `Generated response ID ...` (`--enable-log-outputs`), else it is the largest one allowed.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from autotune.workload.formats.format import About, Item, Line, ReadOptions
from autotune.workload.formats.logs import WHOLE_SECONDS, Passed, python_value
from autotune.workload.formats.rows import Unusable, check_lengths
from autotune.workload.formats.text import Prompt, Texts
from autotune.workload.trace import Request, Skipped

_DATE = re.compile(r"\b(?:INFO|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_RECEIVED = re.compile(r"Received request (\S+): ")
_DETAILS = re.compile(r"Request (\S+) details: ")
_GENERATED = re.compile(r"Generated response (\S+?)(?: \(streaming (\w+)\))?: ")
_IDS = re.compile(r"prompt_token_ids: (\[[\d, ]*\])")
_TEXT = re.compile(
    r"prompt: ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"), (?:params|prompt_token_ids): "
)
_COUNTED = re.compile(r"(?:prompt_token_ids_len|num_prompt_tokens|prompt_tokens)[:=] ?(\d+)")
_MAX = re.compile(r"max_tokens=(\d+)")
_OUT_IDS = re.compile(r"output_token_ids: \[([\d, ]*)\]")
_OUT_TEXT = re.compile(r"output: ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
LEAP_YEAR = 2000


@dataclass(slots=True)
class _Entry:
    """What the log says of one request; `None` where it says nothing."""

    line: int = 0
    at_s: float | None = None
    allowed: int | None = None
    answered: int | None = None
    prompt: Prompt | None = None


class VllmLogFormat:
    """The log of a vLLM server."""

    name = "vllm_log"
    title = "vLLM server log with --enable-log-requests"

    def sniff(self, head: Sequence[bytes]) -> float:
        lines = [data.decode("utf-8", "replace") for data in head]
        received = any(_RECEIVED.search(line) and _DATE.search(line) for line in lines)
        return 1.0 if received else 0.5 if any("vLLM API server" in line for line in lines) else 0.0

    def read(self, lines: Iterable[Line], options: ReadOptions) -> Iterator[Item]:
        reading = _Reading(options)
        yield About(block_size=reading.texts.block_size, meta={"source": self.name})
        for line in lines:
            if not line.data.strip():
                continue
            try:
                reading.take(line)
            except Unusable as problem:
                yield Skipped(line=line.number, reason=problem.reason)
        for entry in reading.entries.values():
            try:
                yield reading.request(entry)
            except Unusable as problem:
                yield Skipped(line=entry.line, reason=problem.reason)
        yield reading.texts.about()
        yield reading.passed.about()
        yield reading.about()


class _Reading:
    """The requests of a log by their ids."""

    def __init__(self, options: ReadOptions) -> None:
        self.texts = Texts(options)
        self.passed = Passed()
        self.entries: dict[str, _Entry] = {}
        self._options = options
        self._year = LEAP_YEAR
        self._month = 0
        self._limits = 0

    def take(self, line: Line) -> None:
        """Note what a line says. Raises Unusable."""
        text = line.data.decode("utf-8", "replace")
        if found := _RECEIVED.search(text):
            entry = self._entry(found[1], line.number)
            entry.line, entry.at_s = line.number, self._time(text)
            allowed = _MAX.search(text)
            entry.allowed = None if allowed is None else int(allowed[1])
            self._tell_prompt(entry, found[1], text)
        elif found := _DETAILS.search(text):
            self._tell_prompt(self._entry(found[1], line.number), found[1], text)
        elif (found := _GENERATED.search(text)) and found[2] != "delta":
            self._entry(found[1], line.number).answered = self._answer(text)
        else:
            self.passed(line.number)

    def request(self, entry: _Entry) -> Request:
        """The request of an entry. Raises Unusable."""
        if entry.at_s is None:
            raise Unusable("missing_time")
        if entry.prompt is None:
            raise Unusable("no_prompt_length")
        outputs = entry.answered
        if outputs is None:
            outputs = entry.allowed or self._options.output_tokens
            self._limits += 1
        if outputs is None:
            raise Unusable("missing_output_tokens")
        check_lengths(entry.prompt.tokens, outputs, 0, 1)
        return Request(
            at_s=entry.at_s,
            input_tokens=entry.prompt.tokens,
            output_tokens=outputs,
            blocks=entry.prompt.blocks,
            line=entry.line,
            messages=entry.prompt.messages,
        )

    def about(self) -> About:
        """What the log's numbers are worth."""
        notes = [WHOLE_SECONDS] if len(self.entries) > 1 else []
        if self._limits:
            notes.append(
                f"{self._limits} answers are taken as long as their requests allowed: the log has "
                "no answers (--enable-log-outputs)"
            )
        return About(notes=tuple(notes))

    def _tell_prompt(self, entry: _Entry, key: str, text: str) -> None:
        """Add the prompt that a line tells of. Raises Unusable, and forgets the request."""
        try:
            entry.prompt = self._prompt(text) or entry.prompt
        except Unusable:
            del self.entries[key]
            raise

    def _entry(self, key: str, line: int) -> _Entry:
        return self.entries.setdefault(key, _Entry(line=line))

    def _time(self, text: str) -> float:
        found = _DATE.search(text)
        if found is None:
            raise Unusable("missing_time")
        month, day, hour, minute, second = map(int, found.groups())
        if month < self._month:
            self._year += 1
        self._month = month
        try:
            moment = datetime(self._year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError:
            raise Unusable("bad_time") from None
        return moment.timestamp()

    def _prompt(self, text: str) -> Prompt | None:
        """The prompt that a line tells of, by its token ids, else its text, else its length."""
        written = _TEXT.search(text)
        messages = [] if written is None else [("", str(python_value(written[1])))]
        ids = _IDS.search(text)
        if ids is not None and len(ids[1]) > len("[]"):
            known = [int(name) for name in ids[1][1:-1].split(",") if name.strip()]
            if all(number < 2**32 for number in known):
                return self.texts.of(array("I", known).tobytes(), messages)
        if messages:
            return self.texts.prompt(messages)
        counted = _COUNTED.search(text)
        return None if counted is None else Prompt(int(counted[1]), (), ())

    def _answer(self, text: str) -> int | None:
        ids = _OUT_IDS.search(text)
        if ids is not None:
            return sum(bool(name.strip()) for name in ids[1].split(","))
        written = _OUT_TEXT.search(text)
        return None if written is None else self.texts.count(str(python_value(written[1])))


FORMAT = VllmLogFormat()
