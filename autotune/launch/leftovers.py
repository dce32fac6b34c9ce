"""What killed runs of any study left on this machine: processes and containers that are ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.launch import lineage
from autotune.launch.lineage import Table

LABELS = ("autotune.study", "autotune.probe")
_TUNER = "autotune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One process or container: its pid or name, and what it is in words."""

    name: str
    what: str


def left_processes(
    table: Table | None = None,
    *,
    study_of: Callable[[int], str | None] = lambda pid: lineage.environment_value(
        pid, lineage.STUDY_MARKER
    ),
    words_of: Callable[[int], str] = lineage.command_line,
) -> list[Leftover]:
    """Processes that carry a study's marker while no tuner of that study runs.

    A tuner is the parent of its servers. Once it is gone they belong to init or a session's reaper,
    so a study is alive as long as one of its processes has a parent that is no server and is called
    autotune.
    """
    rows = lineage.read_table() if table is None else table
    studies = {
        row.id.pid: study
        for row in rows.values()
        if row.running and (study := study_of(row.id.pid)) is not None
    }
    alive = {
        study
        for pid, study in studies.items()
        if rows[pid].parent not in studies and _TUNER in words_of(rows[pid].parent)
    }
    ours = lineage.own_line()
    return [
        Leftover(name=str(pid), what=f"{words_of(pid)[:60] or 'unknown'}, study {study}")
        for pid, study in sorted(studies.items())
        if study not in alive and pid not in ours
    ]


def left_containers() -> list[Leftover]:
    """Containers with a label of ours, running or not; none where no Docker daemon answers.

    Whether their study still runs cannot be told from here.
    """
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    found: dict[str, Leftover] = {}
    try:
        client = docker.from_env(timeout=5)
        try:
            for label in LABELS:
                for entry in client.api.containers(all=True, filters={"label": label}):
                    name = entry["Names"][0].lstrip("/") if entry.get("Names") else entry["Id"][:12]
                    study = entry.get("Labels", {}).get(LABELS[0])
                    whose = f"study {study}" if study else "a reading of flags"
                    state = entry.get("State", "unknown")
                    found[name] = Leftover(name=name, what=f"{state}, {whose}")
        finally:
            client.close()
    except (DockerException, RequestException, OSError):
        return []
    return [found[name] for name in sorted(found)]
