"""All formats: every module of this package that has a `FORMAT`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

import autotune.workload.formats as package
from autotune.errors import InputError
from autotune.spec.nearest import nearest
from autotune.workload.formats.format import Format


@cache
def formats() -> dict[str, Format]:
    """Name -> format, by name."""
    found: dict[str, Format] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        fmt: Format | None = getattr(module, "FORMAT", None)
        if fmt is not None:
            found[fmt.name] = fmt
    return dict(sorted(found.items()))


def named(name: str) -> Format:
    """The format of this name. Raises InputError listing the known ones."""
    known = formats()
    if name in known:
        return known[name]
    near = nearest(name, known)
    raise InputError(
        message=f"unknown workload format `{name}`",
        seen=f"known formats: {', '.join(known)}",
        hint=f"did you mean `{near[0]}`?" if near else "leave the format out to have it recognised",
    )


def recognise(head: Sequence[bytes]) -> Format | None:
    """The format that is surest of these first lines, or None when none is."""
    scored = [(fmt.sniff(head), name) for name, fmt in formats().items()]
    best, name = max(scored, default=(0.0, ""))
    return formats()[name] if best > 0 else None
