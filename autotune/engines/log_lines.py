"""Reading an engine's log: what a line says without its prefixes, and whether it can be a cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.engines.facts import EngineFacts, engine_facts
from autotune.engines.redaction import mask

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIXES = re.compile(
    r"^(?:"
    r"\([^()]*pid=\d+[^()]*\)\s*"  # (EngineCore pid=412)
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*\s+(?:-\s+)?"  # 2026-03-02T03:10:04.123Z
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\]\s*"  # [2026-03-02 03:10:04 TP0]
    r"|(?:TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b:?\s*"
    r"|\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s*"  # 03-02 01:14:02
    r"|\[?(?:[a-z]+ )?[\w/.-]+\.py:\d+\]\s?"  # [core.py:77]
    r"|\[[a-z_ -]+\] |\[rank\d+\]:\s*"  # [compile] [rank0]:
    r")+"
)
_LEVEL = re.compile(r"\b(TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b")
_CALM = frozenset({"TRACE", "DEBUG", "INFO", "WARNING", "WARN"})
_PYTHON_WARNING = re.compile(r"\b\w*Warning: ")
# Lines that carry what users sent: never a cause, never evidence.
_CARRIES_PROMPTS = re.compile(
    r"Received request|prompt_token_ids|Dumping (?:input|scheduler)|scheduled_new_reqs"
    r"|\bprompt: ['\"]"
)
_SOURCE = re.compile(
    r'^\s*(?:File "|raise |return |except |\^+\s*$|warnings\.warn)|resource_tracker'
)
_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line: `raw` without colours, `text` without prefixes, the `stage` reached when it was
    written, `calm` if logged as information or warning, `private` if it may hold a prompt.
    """

    raw: str
    text: str
    stage: str | None
    calm: bool
    private: bool

    @property
    def source(self) -> bool:
        """Whether it is a traceback's quotation of code, or Python's own clean-up talk."""
        return _SOURCE.search(self.text) is not None

    def evidence(self) -> str:
        """The line as it may be shown: secrets and prompts masked, at most 300 characters."""
        shown = mask(self.raw.strip())
        return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def read_log(lines: Sequence[str], engine: str) -> list[LogLine]:
    """The lines of an engine's log, each with the start-up stage reached by then.

    Lines before the first sign of a stage count to that stage: a log that begins with a serving
    server is the tail of a longer one.
    """
    facts = engine_facts(engine)
    plain = [_COLOUR.sub("", line).rstrip("\r\n") for line in lines]
    stage = next((seen for seen in (_stage_of(raw, facts) for raw in plain) if seen), None)
    read = []
    for raw in plain:
        prefix = _PREFIXES.match(raw)
        text = raw[prefix.end() :] if prefix else raw
        level = _LEVEL.search(prefix[0]) if prefix else None
        seen = _stage_of(raw, facts)
        # Stages only go forward; a late mention of an early one is talk.
        if facts.stage_rank(seen) > facts.stage_rank(stage):
            stage = seen
        read.append(
            LogLine(
                raw=raw,
                text=text,
                stage=stage,
                calm=(level is not None and level[1] in _CALM) or bool(_PYTHON_WARNING.search(raw)),
                private=_CARRIES_PROMPTS.search(raw) is not None,
            )
        )
    return read


def startup_phase(line: str, engine_kind: str) -> str | None:
    """The start-up stage that a log line shows (`arguments`, `weights`, `profile`, `compile`,
    `kv_cache`, `graphs`, `warmup`, `http`, `serving`); None for most lines.
    """
    return _stage_of(_COLOUR.sub("", line), engine_facts(engine_kind))


def _stage_of(line: str, facts: EngineFacts) -> str | None:
    for stage in reversed(facts.stages):
        if any(pattern.search(line) for pattern in stage.match):
            return stage.stage
    return None
