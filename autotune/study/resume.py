"""Taking over what a killed run left: servers ended, broken trials closed, numbering kept."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from autotune.canonical import Json
from autotune.study.directory import StudyDirectory
from autotune.study.prepared import PreparedStudy
from autotune.study.record import TrialRecord


def take_over(study: PreparedStudy, directory: StudyDirectory) -> list[str]:
    """End what earlier runs left and close their open trials as interrupted.

    Call with the study's lock held. Returns one sentence per thing done. Raises EnvironmentFault
    when something of ours cannot be ended.
    """
    done = list(study.launcher.sweep(study.study_id, directory.path))
    for number, folder in directory.partial_trials():
        if directory.adopt(number, folder) is not None:
            done.append(f"trial {number} had ended; it is kept")
            continue
        begun = _begun(directory, number)
        record = TrialRecord(
            number=number,
            role=begun.get("role", "search"),
            state="interrupted",
            params=begun.get("params", {}),
            reason="interrupted",
            message="its run was killed",
            started_at=begun.get("at", ""),
            simulated=study.engine.simulated,
        )
        for scratch in folder.glob("replay-*"):
            shutil.rmtree(scratch, ignore_errors=True)
        directory.close_trial(folder, record)
        done.append(f"trial {number} is closed as interrupted")
    return done


def _begun(directory: StudyDirectory, number: int) -> Mapping[str, Json]:
    """What the event log knows of a broken trial; nothing if its first line was lost."""
    for event in directory.events():
        if event.get("kind") == "trial_started" and event.get("trial") == number:
            return event
    return {}
