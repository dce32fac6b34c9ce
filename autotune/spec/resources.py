"""Data that comes with the package: search spaces and workloads, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from autotune.errors import InputError
from autotune.spec.nearest import nearest

Kind = Literal["search_spaces", "workloads"]

_PACKAGE = Path(__file__).resolve().parent.parent
_TITLES: dict[Kind, str] = {"search_spaces": "search space", "workloads": "workload"}


def _folder(kind: Kind) -> Path:
    installed = _PACKAGE / "_data" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def shipped_names(kind: Kind) -> list[str]:
    """Names of what is shipped, sorted: spaces without `.yaml`, workloads as file names."""
    folder = _folder(kind)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    if kind == "search_spaces":
        return [path.stem for path in files if path.suffix == ".yaml"]
    return [path.name for path in files if path.suffix != ".md"]


def find_shipped(kind: Kind, name: str) -> Path | None:
    """The file of a shipped name (with or without its folder and suffix), or None."""
    wanted = name.removeprefix(f"{kind}/")
    for known in shipped_names(kind):
        file_name = f"{known}.yaml" if kind == "search_spaces" else known
        if wanted in (known, file_name, file_name.partition(".")[0]):
            return _folder(kind) / file_name
    return None


def shipped(kind: Kind, name: str) -> Path:
    """The file of a shipped name. Raises InputError, with the nearest names, if there is none."""
    path = find_shipped(kind, name)
    if path is None:
        names = shipped_names(kind)
        close = nearest(name, names)
        raise InputError(
            message=f"no {_TITLES[kind]} `{name}` is shipped" + _nearest_part(close),
            seen=f"shipped: {', '.join(names) or 'none'}",
            so="nothing was started",
        )
    return path


def _nearest_part(names: list[str]) -> str:
    return f"; nearest: {', '.join(names)}" if names else ""
