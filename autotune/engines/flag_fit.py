"""Whether the flags of a study fit the flags that an engine lists of itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.canonical import Json
from autotune.engines.facts import EngineFacts
from autotune.engines.flags import as_switch, flag_name, flag_problem
from autotune.engines.help_text import EngineHelp, HelpFlag
from autotune.spec.nearest import nearest

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagFit:
    """What became of one flag. `name`: what to give this engine; None if it has no such flag.
    `inverted`: on and off change places under that name. `note`: why it is another name, or what
    is known of the missing one, as a phrase; empty if there is nothing to say.
    """

    name: str | None
    inverted: bool = False
    note: str = ""


def fit_flag(
    facts: EngineFacts, name: str, *, listed: EngineHelp | None, version: str | None
) -> FlagFit:
    """The flag under the name that this engine has: its own, its other name in the table of renamed
    flags, or the one that it abbreviates. `listed` None: the engine could not be asked, so only
    what the version table knows to be gone is missing.
    """
    own = flag_name(facts, name)
    head, dot, tail = own.partition(".")

    def has(flag: str) -> bool:
        if listed is None:
            return flag_problem(facts, flag, version) is None
        return listed.find(flag) is not None

    if has(head) or (head in facts.opposites and has(facts.opposites[head])):
        return FlagFit(name=own)
    for entry in facts.renamed:
        for here, there in ((entry.old, entry.new), (entry.new, entry.old)):
            if own == here and has(there):
                note = f"`{head}` is `{there}` here"
                return FlagFit(name=there, inverted=entry.inverted, note=note)
    longer = listed.abbreviated(head) if listed is not None else None
    if longer is not None:
        note = f"`{head}` is short for `{longer.name}`"
        return FlagFit(name=longer.name + dot + tail, note=note)
    return FlagFit(name=None, note=_known_of(facts, listed, head))


def value_problem(
    listed: EngineHelp, name: str, value: Json, *, off_by_absence: bool = False
) -> str | None:
    """Why a listed flag cannot have this value, as a phrase ("does not take fp9; nearest: fp8");
    None if it can, or if that is not shown. `off_by_absence`: a switch without a negative form is
    switched off by leaving it out.
    """
    flag = listed.find(name)
    if flag is None or value is None or "." in name:
        return None
    switch = as_switch(value) if isinstance(value, bool | str) else None
    if flag.kind != "value":
        left_out = off_by_absence and switch is False and flag.kind == "bare"
        return None if left_out else _switch_problem(flag, name, switch)
    if isinstance(value, bool):
        return "takes a value, not on or off"
    items = value if isinstance(value, list) else [value]
    odd = [str(item) for item in items if flag.choices and str(item) not in flag.choices]
    if not odd:
        return None
    shown = [*flag.choices[:_SHOWN], "..."] if len(flag.choices) > _SHOWN else flag.choices
    near = nearest(odd[0], flag.choices)
    closest = f"; nearest: {', '.join(near)}" if near else f"; it takes {', '.join(shown)}"
    return f"does not take {', '.join(odd)}{closest}"


def _switch_problem(flag: HelpFlag, name: str, switch: bool | None) -> str | None:
    if switch is None:
        return "is a switch and takes no value"
    if flag.kind == "bare" and not switch and name == flag.name:
        return "cannot be switched off: it has no negative form"
    return None


def _known_of(facts: EngineFacts, listed: EngineHelp | None, name: str) -> str:
    """What is known of a flag that this engine does not list."""
    gone = facts.removed.get(name)
    if gone is not None and gone.until != "0":
        return f"last present in {gone.until}; instead: {gone.instead}"
    if gone is not None:
        return f"no version had it; instead: {gone.instead}"
    flag = facts.flags.get(name)
    if flag is not None and flag.since is not None:
        return f"first present in {flag.since}"
    near = nearest(name, listed.names) if listed is not None else []
    return f"nearest: {', '.join(near)}" if near else ""
