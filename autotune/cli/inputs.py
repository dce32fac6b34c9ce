"""Files that commands take: a path, or the name of something shipped."""

from __future__ import annotations

from pathlib import Path

from autotune.spec.resources import find_shipped


def workload_path(text: str) -> Path:
    """The workload file meant; a path that does not exist is left to the reader to refuse."""
    path = Path(text).expanduser()
    if path.exists():
        return path
    return find_shipped("workloads", text) or path
