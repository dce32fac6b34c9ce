"""`space show | check`."""

from __future__ import annotations

import shlex
from pathlib import Path

from autotune.canonical import Json
from autotune.cli.console import result, result_json
from autotune.engines.catalog import engine_for, probe_version
from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import engine_facts
from autotune.errors import InputError, Problem
from autotune.report.words import setting
from autotune.space.candidate import MODEL
from autotune.space.engines_space import EnginesSpace
from autotune.space.search_space import SearchSpace
from autotune.space.space_file import read_space
from autotune.spec.render import problems_title
from autotune.study.flag_check import FlagCheck, flag_check
from autotune.study.snapshot import space_summary


def show(source: str, *, as_json: bool) -> int:
    """Print a space with its conditions."""
    space = _load(source)
    if as_json:
        result_json(space_summary(space))
        return 0
    about = ", ".join(space.engines) or space.engine or "any engine"
    lines = [f"{space.name}: {len(space.knobs)} knobs for {about}"]
    for knob in space.knobs:
        marks = "".join(
            f"  [{mark}]"
            for mark in (
                "lossy" if knob.lossy else "",
                f"when {knob.when.text}" if knob.when else "",
                f"versions {knob.versions}" if knob.versions else "",
            )
            if mark
        )
        values = ", ".join(setting(value) for value in knob.grid())
        lines += ["", f"  {knob.name}: {values}{marks}"]
        if knob.why:
            lines.append(f"      {knob.why}")
    if space.rules:
        lines += ["", "  never otherwise:", *[f"      {rule.text}" for rule in space.rules]]
    if space.first:
        lines += ["", "  tried first:"]
    for entry in space.first:
        settings = ", ".join(f"{name} {setting(value)}" for name, value in entry.params.items())
        when = f"  [when {entry.when.text}]" if entry.when else ""
        lines.append(f"      {settings}: {entry.reason}{when}")
    result("\n".join(lines))
    return 0


def check(
    source: str, engine: str | None, version: str | None, command: str | None, *, as_json: bool
) -> int:
    """Check a space against an engine: a version by the table, or a program by its own help.

    Raises InputError with every problem.
    """
    space = _load(source)
    if isinstance(space, EnginesSpace):
        space = _part(space, engine)
    kind = engine or space.engine or "vllm"
    engine_for(kind)
    asked = _asked(kind, version, command)
    version = asked.version
    knobs = [
        knob
        for knob in space.knobs
        if knob.env is None and knob.name != MODEL and knob.exists_in(version)
    ]
    found = {knob.name: text for knob in knobs if (text := asked.knob_problem(knob)) is not None}
    about: dict[str, Json] = {
        "space": space.name, "engine": kind, "engine_version": version, "problems": found,
        "not_in_version": [k.name for k in space.knobs if not k.exists_in(version)],
        "flags_from": asked.where,
    }  # fmt: skip
    if as_json:
        result_json(about)
    if found:
        raise InputError(
            message=f"{len(found)} of {len(space.knobs)} knobs do not fit {asked.title}",
            problems=[Problem(message=f"{name}: {text}") for name, text in found.items()],
            seen=f"read from {asked.where}" if asked.where else None,
            hint="give such a knob a `versions:` range, or remove it",
        )
    if not as_json:
        checked = f" (read from {asked.where})" if asked.where else ""
        result(f"{space.name}: all {len(space.knobs)} knobs fit {asked.title}{checked}")
    return 0


def _part(space: EnginesSpace, engine: str | None) -> SearchSpace:
    """The space of one engine. Raises InputError where none is named, or it is not there."""
    part = space.part(engine)
    if part is None:
        raise InputError(
            message=f"{space.name} is a space across {', '.join(space.engines)}"
            + (f", not for {engine}" if engine else ""),
            hint=f"`--engine {space.engines[0]}` checks the part of one of them",
        )
    return part.space


def _asked(kind: str, version: str | None, command: str | None) -> FlagCheck:
    """The flags to check against. A command of one word gets the engine's own further words."""
    if command is None:
        return FlagCheck(engine=kind, version=version, facts=engine_facts(kind), reading=None)
    words = tuple(shlex.split(command))
    if len(words) == 1:
        words += engine_facts(kind).command[1:]
    target = LaunchTarget(model="", launcher="process", command=words)
    asked = flag_check(kind, version or probe_version(target, kind), target)
    if asked.listed is None:
        raise InputError(
            message=f"{command} does not tell its flags",
            seen="; ".join(asked.notes) or None,
            hint="`--engine-version` checks against the table of versions instead",
        )
    return asked


def _load(source: str) -> SearchSpace:
    reading = read_space(source, folder=Path())
    if reading.space is None or reading.problems:
        raise InputError(
            message=problems_title(reading.problems, reading.where), problems=reading.problems
        )
    return reading.space
