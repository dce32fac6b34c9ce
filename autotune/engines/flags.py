"""Between parameters and words: a flag and its value as JSON, and as the server is given them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from autotune.canonical import Json, canonical_json
from autotune.engines.facts import EngineFacts
from autotune.engines.known_flags import Flag
from autotune.engines.redaction import is_secret_name
from autotune.errors import InputError

_ON = frozenset({"on", "true", "yes"})
_OFF = frozenset({"off", "false", "no"})
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_WHOLE = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+(?:\.\d*)?[eE][-+]?\d+)")


def as_switch(value: Json) -> bool | None:
    """The value as on or off; None where it is neither (text `on`, `off`, `yes`, `no` counts)."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return True if value.lower() in _ON else False if value.lower() in _OFF else None
    return None


def flag_name(facts: EngineFacts, name: str) -> str:
    """The flag's own name: no dashes in front, underscores as dashes, short forms spelled out. What
    follows a dot (`compilation-config.mode`) is a JSON key and stays.
    """
    head, dot, tail = name.lstrip("-").partition(".")
    head = head if head in facts.aliases else head.replace("_", "-")
    return facts.aliases.get(head, head) + dot + tail


def canonical_params(facts: EngineFacts, params: Mapping[str, Json]) -> dict[str, Json]:
    """The parameters under their flags' own names, in the order given. `no-x: true` becomes
    `x: false`, `disable-x` likewise where it is only a spelling of `enable-x`. None (the engine's
    default) stays None.
    """
    found: dict[str, Json] = {}
    for written, value in params.items():
        name = flag_name(facts, written)
        switch = as_switch(value)
        plain = name.removeprefix("no-")
        if plain != name and switch is not None and _is_switch(facts, plain):
            name, value = plain, not switch  # noqa: PLW2901 - the pair is what is rewritten
        elif name in facts.opposites and switch is not None:
            name, value = facts.opposites[name], not switch  # noqa: PLW2901
        found[name] = value
    return found


def is_secret_flag(facts: EngineFacts, name: str) -> bool:
    """Whether a flag's value is a credential: by the facts, for an unknown flag by its name."""
    return name in facts.secrets or (name not in facts.flags and is_secret_name(name))


def check_flags(facts: EngineFacts, params: Mapping[str, Json], version: str | None) -> None:
    """Refuse what must not be on the command line: removed flags of a known version, flags that the
    launcher sets itself, secrets. `params` have canonical names. Raises InputError.
    """
    for name in params:
        if name in facts.managed:
            raise InputError(
                message=f"`{name}` cannot be set as a flag",
                hint=facts.managed[name],
            )
        if is_secret_flag(facts, name):
            variable = facts.secrets.get(name, name.upper().replace("-", "_"))
            hint = f"set it by name: env: {{{variable}: {{from_env: {variable}}}}}"
            if variable is None:
                hint = (
                    f"{facts.engine} reads it from nowhere else (env: {{...: {{from_env: ...}}}} "
                    "does not reach it); run without it and put authentication in front"
                )
            raise InputError(
                message=f"`{name}` is a secret and does not belong on a command line",
                so="nothing was started",
                hint=hint,
            )
        problem = flag_problem(facts, name, version)
        if problem is not None and name in facts.removed:
            raise InputError(message=problem)


def flag_problem(facts: EngineFacts, name: str, version: str | None) -> str | None:
    """What is known to be wrong with a flag in this version, as a sentence; None when nothing is.

    An unknown flag is no problem: the server may be newer than these facts.
    """
    head = flag_name(facts, name).partition(".")[0]
    removed = facts.removed.get(head)
    if removed is not None and removed.gone(version):
        return removed.sentence(facts.engine)
    flag = facts.flags.get(head)
    if flag is not None and removed is None and not flag.applies(version):
        return f"`{head}` needs {facts.engine} {flag.since} or newer, this is {version}"
    return None


def flag_words(facts: EngineFacts, name: str, value: Json) -> list[str]:
    """The words that give this flag this value: one per flag and value.

    Raises InputError for a value that has no form as a flag: off without a negative form, on or
    off for a flag that takes a value, a fraction for a whole number, NaN.
    """
    flag = facts.flags.get(name)
    if flag is not None and flag.kind in ("switch", "bare"):
        return _switch_words(flag, value, off_by_absence=facts.off_by_absence)
    if isinstance(value, bool):
        if flag is None and "." not in name:
            return [f"--{name}" if value else f"--no-{name}"]
        if flag is not None and flag.kind != "json":
            raise InputError(
                message=f"`{name}` takes a value, not on or off",
                seen=f"{name}: {str(value).lower()}",
                hint="quote a text; leave it out (null) for the engine's default",
            )
    if isinstance(value, list) and (flag is None or flag.several):
        return [f"--{name}", *(_word(name, item, flag) for item in value)]
    word = _word(name, value, flag)
    # What argparse would take for another flag must be tied to its own.
    if word.startswith("-") and not _NEGATIVE.fullmatch(word):
        return [f"--{name}={word}"]
    return [f"--{name}", word]


def _is_switch(facts: EngineFacts, name: str) -> bool:
    flag = facts.flags.get(name)
    return flag is not None and flag.kind == "switch"


def _switch_words(flag: Flag, value: Json, *, off_by_absence: bool) -> list[str]:
    switch = as_switch(value)
    if switch is None:
        raise InputError(
            message=f"`{flag.name}` is a switch and takes no value",
            seen=f"{flag.name}: {value}",
            hint="write on or off",
        )
    if switch:
        return [f"--{flag.name}"]
    if flag.negative is None and off_by_absence:
        return []
    if flag.negative is None:
        raise InputError(
            message=f"`{flag.name}` cannot be switched off: it has no negative form",
            hint="leave it out (null), it is off unless given",
        )
    return [flag.negative]


def _word(name: str, value: Json, flag: Flag | None) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(message=f"`{name}` needs a finite number", seen=f"{name}: {value}")
    if isinstance(value, dict | list | bool):
        return canonical_json(value)
    if flag is not None and flag.kind in ("int", "size", "ints") and isinstance(value, float):
        if value != int(value):
            raise InputError(message=f"`{name}` takes a whole number", seen=f"{name}: {value}")
        value = int(value)
    if isinstance(value, float):
        return repr(value)
    return str(value)


def value_of_word(word: str, flag: Flag | None) -> Json:
    """The JSON value of one word, typed by the flag's kind; for an unknown flag by its looks."""
    kind = flag.kind if flag is not None else None
    if kind in ("str", "strs"):
        return word
    if kind == "json" or (kind is None and word[:1] in ("{", "[")):
        try:
            return json.loads(word, parse_constant=lambda text: text)
        except ValueError:
            return word
    if _WHOLE.fullmatch(word):
        return float(word) if kind == "float" else int(word)
    if kind in ("float", None) and _DECIMAL.fullmatch(word):
        return float(word)
    return word
