from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from autotune.launch.leftovers import left_processes
from autotune.launch.lineage import ProcessId, ProcessRow

TUNER, PLAIN = "/venv/bin/autotune tune study.yaml", "vllm serve m"


def rows(*items: tuple[int, int]) -> Mapping[int, ProcessRow]:
    return {
        pid: ProcessRow(id=ProcessId(pid, 1), parent=parent, session=pid, running=True)
        for pid, parent in items
    }


def left(
    table: Mapping[int, ProcessRow], studies: Mapping[int, str], tuners: set[int]
) -> list[str]:
    found = left_processes(
        table, study_of=studies.get, words_of=lambda pid: TUNER if pid in tuners else PLAIN
    )
    return [item.name for item in found]


def test_servers_of_a_running_tuner_are_no_leftovers() -> None:
    table = rows((90010, 1), (90011, 90010), (90012, 90011))
    assert left(table, {90011: "a", 90012: "a"}, {90010}) == []


def test_servers_without_their_tuner_are_left_over_with_all_their_children() -> None:
    table = rows((90011, 1), (90012, 90011), (90020, 1), (90021, 90020))
    studies = {90011: "a", 90012: "a", 90021: "b"}
    assert left(table, studies, {90020}) == ["90011", "90012"]


def test_a_child_that_lost_its_parent_is_spared_while_its_study_lives() -> None:
    table = rows((90010, 1), (90011, 90010), (90012, 1))
    assert left(table, {90011: "a", 90012: "a"}, {90010}) == []


def test_a_real_process_with_a_studys_marker_is_found_and_named() -> None:
    environ = {**os.environ, "AUTOTUNE_STUDY": "left-over-test"}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ)
    try:
        found = [item for item in left_processes() if item.name == str(child.pid)]
        assert [item.what.partition(", ")[2] for item in found] == ["study left-over-test"]
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
