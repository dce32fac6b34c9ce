"""Why a server failed: the cause found in its log and in the way it ended.

Order: what the container's state proves, then the signatures of `facts/failures.yaml` (arguments,
machine, memory, refusals, deaths), then the first exception in the log, then the bare exit code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from autotune.canonical import Json
from autotune.engines.engine import Diagnosis, ExitInfo, Fault, Phase
from autotune.engines.facts import Signature, engine_facts, signatures
from autotune.engines.log_lines import LogLine, read_log, startup_phase
from autotune.engines.redaction import mask
from autotune.engines.versions import applies

__all__ = ["diagnose_log", "startup_phase"]

_MOST_EVIDENCE = 5
_NEIGHBOURS = (3, 12)
_LONGEST_WHY = 240
# The driver and our own context keep a little even of a GPU that nobody else uses.
_BARE_GPU = 0.97
_KILLED = frozenset({-9, 137})
_STOPPED = frozenset({-15, 143, 0, None})
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_VERSION_LINE = re.compile(
    r"(?:API server|vLLM|\bversion|engine \()\s*(?:version )?v?(\d+\.\d+\.\d+)"
)
_EXCEPTION = re.compile(r"^(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<why>.+)")
# What only follows from another failure, or is said while cleaning up after one.
_CONSEQUENCE = re.compile(
    r"[Ss]ee (?:root cause|stack trace)|initialization failed|EngineDeadError|'/(?:psm_|mp-)"
)
_REFUSALS = ("ValueError", "AssertionError", "NotImplementedError", "ValidationError")
_FATAL_TALK = re.compile(r"\b(?:error|fatal|failed|killed|abort)", re.IGNORECASE)


def diagnose_log(
    lines: Sequence[str],
    exit_info: ExitInfo | None,
    phase: Phase | None,
    engine_kind: str,
    *,
    version: str | None = None,
) -> Diagnosis:
    """Classify a failure.

    `lines`: the log or its tail. `phase`: where the server was as the caller saw it; None infers it
    from the log. A cause is looked for wherever it stands; lines that only mention trouble
    (information, warnings, users' prompts, quoted code) and trouble that start-up got over do not
    count. An unknown or bad flag counts as written in the report; whether it came from a fixed
    argument or a knob is for the caller to tell by `facts["flag"]`.
    """
    log = read_log(lines, engine_kind)
    version = version or _version_in(log)
    if exit_info is not None and exit_info.oom_killed:
        return _host_memory(_phase(log, len(log) - 1, phase))
    ours = exit_info is not None and exit_info.by_us and phase != "load"
    for signature in signatures():
        # Where we ended it, that children died is no cause.
        if ours and signature.weak:
            continue
        if signature.applies(engine_facts(engine_kind).engine, version):
            at = _cause(signature, log, phase, engine_kind)
            if at is None:
                continue
            if signature.reason == "engine_died":
                # Every death leaves this trace; an exception says more.
                by_exception = _by_exception(log, phase)
                if by_exception is not None:
                    return by_exception
            return _refined(_told(signature, log, at, phase), engine_kind)
    by_exception = None if ours else _by_exception(log, phase)
    return by_exception or _by_exit(log, exit_info, phase, engine_kind)


def _refined(told: Diagnosis, engine_kind: str) -> Diagnosis:
    """What the extracted facts add: the successor of a flag that is gone, and that an all but free
    GPU was asked for more than any GPU can give.
    """
    flag = told.facts.get("flag")
    removed = engine_facts(engine_kind).removed.get(str(flag).lstrip("-"))
    if told.reason == "unknown_flag" and removed is not None:
        return replace(
            told,
            message=f"this server does not know the flag {flag}; instead: {removed.instead}",
            facts={**told.facts, "instead": removed.instead},
        )
    free, total = told.facts.get("free_gib"), told.facts.get("total_gib")
    if told.reason == "gpu_memory_taken" and free and total and free >= _BARE_GPU * total:
        return replace(
            told,
            fault="candidate",
            reason="memory_fraction_too_high",
            remedy="lower_memory",
            message=f"the memory fraction asks for more than the {free} GiB that a free GPU of "
            f"{total} GiB has; lower it",
            facts={**told.facts, "memory_direction": "lower"},
        )
    return told


def _version_in(log: Sequence[LogLine]) -> str | None:
    for line in log[:60]:
        found = _VERSION_LINE.search(line.text)
        if found and applies(found[1]):
            return found[1]
    return None


def _cause(
    signature: Signature, log: Sequence[LogLine], phase: Phase | None, engine_kind: str
) -> int | None:
    """Where the first line stands that shows this cause; None where none can be it."""
    facts = engine_facts(engine_kind)
    if signature.also and not any(_matches(signature.also, line) for line in log):
        return None
    last_stage = log[-1].stage if log else None
    for at, line in enumerate(log):
        if line.private or line.source or (line.calm and not signature.any_level):
            continue
        if not _matches(signature.match, line):
            continue
        if signature.stages and not _in_stage(signature, line, phase):
            continue
        # Start-up that came through proves that earlier trouble was got over.
        limit = signature.cleared_by or ("serving" if signature.phase == "startup" else None)
        rank = facts.stage_rank(limit)
        if rank >= 0 and facts.stage_rank(line.stage) < rank <= facts.stage_rank(last_stage):
            continue
        return at
    return None


def _in_stage(signature: Signature, line: LogLine, phase: Phase | None) -> bool:
    if signature.phase == "load" and phase == "load":
        return True
    if signature.phase == "startup" and phase == "load":
        return False
    return line.stage in signature.stages


def _matches(patterns: Sequence[re.Pattern[str]], line: LogLine) -> bool:
    return any(pattern.search(line.text) for pattern in patterns)


def _told(signature: Signature, log: Sequence[LogLine], at: int, phase: Phase | None) -> Diagnosis:
    found = _extracted(signature, log, at)
    facts: dict[str, Json] = {name: _typed(value) for name, value in found.items()}
    if signature.direction is not None:
        facts["memory_direction"] = signature.direction
    # A named flag that was not found blames nothing
    blamed = [found.get(name[1:], "") if name[:1] == "$" else name for name in signature.blames]
    if blames := [name.lstrip("-") for name in blamed if name]:
        facts["blames"] = blames
        facts["blames_larger"] = signature.blames_larger
    found_phase = (
        _phase(log, at, phase) if signature.phase == "run" else cast("Phase", signature.phase)
    )
    return Diagnosis(
        fault=cast("Fault", signature.fault),
        phase=found_phase,
        reason=signature.reason,
        remedy=signature.remedy,
        message=_message(signature, found),
        evidence=_evidence(signature, log, at),
        facts=facts,
    )


def _extracted(signature: Signature, log: Sequence[LogLine], at: int) -> dict[str, str]:
    """What the matching line and its neighbours tell, by name; the matching line's word counts."""
    before, after = _NEIGHBOURS
    near = [log[at], *log[at + 1 : at + 1 + after], *log[max(0, at - before) : at]]
    found: dict[str, str] = {}
    for pattern in signature.match:
        match = pattern.search(log[at].text)
        if match:
            found |= {name: text for name, text in match.groupdict().items() if text}
    for pattern in signature.extract:
        for line in near:
            match = pattern.search(line.text) if not line.private else None
            if match:
                found = {name: text for name, text in match.groupdict().items() if text} | found
                break
    return {name: _short(text) for name, text in found.items()}


def _short(text: str) -> str:
    """Text from a log as it may be shown in a message: masked, of bounded length."""
    shown = mask(text.strip())
    return shown if len(shown) <= _LONGEST_WHY else shown[: _LONGEST_WHY - 1] + "…"


def _message(signature: Signature, found: Mapping[str, str]) -> str:
    for template in signature.message:
        try:
            return template.format_map(found)
        except KeyError:
            continue
    return signature.reason.replace("_", " ")


def _typed(text: str) -> Json:
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)


def _evidence(signature: Signature, log: Sequence[LogLine], at: int) -> tuple[str, ...]:
    """The decisive line first, then other lines that say the same or bear the cause out."""
    chosen = [log[at]]
    for line in log:
        if len(chosen) == _MOST_EVIDENCE:
            break
        wanted = _matches(signature.match, line) or _matches(signature.also, line)
        if line.private or line.source or (line.calm and not signature.any_level):
            continue
        if wanted and all(line.text != other.text for other in chosen):
            chosen.append(line)
    return tuple(line.evidence() for line in chosen)


def _phase(log: Sequence[LogLine], at: int, phase: Phase | None) -> Phase:
    """The caller's word, else where the log had come to at this line."""
    if phase is not None:
        return phase
    return "load" if 0 <= at < len(log) and log[at].stage == "serving" else "startup"


def _host_memory(phase: Phase) -> Diagnosis:
    return Diagnosis(
        fault="environment",
        phase=phase,
        reason="host_out_of_memory",
        remedy="free_host_memory",
        message="the container was killed because the host's memory, or its share of it, ran out "
        "(by the container's state, not by its log)",
    )


def _by_exception(log: Sequence[LogLine], phase: Phase | None) -> Diagnosis | None:
    """The first exception in the log that is not the consequence of another. One that the engine
    raises about its settings, before it loads anything, is a refusal of the candidate.
    """
    for at, line in enumerate(log):
        match = None if line.private or line.calm else _EXCEPTION.search(line.text)
        if match is None or _CONSEQUENCE.search(line.text):
            continue
        why = _short(match["why"])
        early = line.stage in (None, "arguments") and phase in (None, "arguments", "startup")
        refused = early and match["kind"].rpartition(".")[2] in _REFUSALS
        where = _phase(log, at, phase)
        return Diagnosis(
            fault="candidate" if refused else "unknown",
            phase="arguments" if refused else where,
            reason="config_refused" if refused else "engine_error",
            remedy="change_value" if refused else None,
            message=(
                f"the engine refuses this combination: {why}"
                if refused
                else f"the engine failed: {match['kind'].rpartition('.')[2]}: {why}"
            ),
            evidence=(line.evidence(),),
        )
    return None


def _by_exit(
    log: Sequence[LogLine], exit_info: ExitInfo | None, phase: Phase | None, engine_kind: str
) -> Diagnosis:
    """What the bare exit code tells where the log tells nothing."""
    where = _phase(log, len(log) - 1, phase)
    code = exit_info.code if exit_info is not None else None
    by_us = exit_info is not None and exit_info.by_us
    evidence = _last_words(log)
    fault: Fault = "unknown"
    remedy: str | None = None
    if by_us and code in _KILLED:
        fault, reason, remedy = "candidate", "killed_time_limit", "raise_time_limit"
        message = "we ended the server at our own time limit"
    elif (
        where != "load" and (by_us or exit_info is None) and code in _STOPPED and phase is not None
    ):
        fault, reason, remedy = "candidate", "not_ready_in_time", "raise_time_limit"
        message = "the server was not ready in time"
    elif code in _KILLED and engine_facts(engine_kind).kills_itself:
        reason = "engine_died"
        message = (
            "the server was killed by signal 9, which is also how this engine ends after a failure "
            "of its own; its log does not say why"
        )
    elif code in _KILLED:
        fault, reason, remedy = "environment", "killed_signal_9", "free_host_memory"
        message = (
            "the server was killed by signal 9 without a word; perhaps the host ran out of memory"
        )
    elif code == 2:
        fault, reason, where, remedy = "study", "bad_arguments", "arguments", "fix_command"
        message = "the server refused its command line (exit code 2) without naming the word"
    elif code is not None and where == "load":
        reason = "engine_died"
        message = f"the server ended while serving (exit code {code}); its log does not say why"
    else:
        reason = "unknown"
        message = "the log and the exit code do not tell why the server failed"
        if code is not None:
            message = f"the server ended with exit code {code}; its log does not tell why"
    return Diagnosis(
        fault=fault, phase=where, reason=reason, remedy=remedy, message=message, evidence=evidence
    )


def _last_words(log: Sequence[LogLine]) -> tuple[str, ...]:
    """The last lines that speak of trouble, else the last lines."""
    lines = [line for line in log if line.text.strip() and not line.private and not line.source]
    loud = [line for line in lines if not line.calm and _FATAL_TALK.search(line.text)]
    return tuple(line.evidence() for line in (loud or lines)[-3:])
