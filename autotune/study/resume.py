"""Taking over what a killed run left: servers ended, broken trials closed, numbering kept."""

from __future__ import annotations

import shutil

from autotune.space.candidate import Candidate
from autotune.study.directory import StudyDirectory
from autotune.study.prepare import PreparedStudy
from autotune.study.record import TrialRecord


def take_over(study: PreparedStudy, directory: StudyDirectory) -> list[str]:
    """End what earlier runs left and close their open trials as interrupted.

    Call with the study's lock held. Returns one sentence per thing done. Raises EnvironmentFault
    when something of ours cannot be ended.
    """
    done = list(study.launcher.sweep(study.study_id, directory.path))
    for number, folder in directory.partial_trials():
        params = _params(directory, number)
        record = TrialRecord(
            number=number,
            role="search",
            state="interrupted",
            params=params or {},
            reason="interrupted",
            message="its run was killed",
            simulated=study.engine.simulated,
        )
        for scratch in folder.glob("replay-*"):
            shutil.rmtree(scratch, ignore_errors=True)
        directory.close_trial(folder, record)
        done.append(f"trial {number} is closed as interrupted")
    return done


def _params(directory: StudyDirectory, number: int) -> dict[str, object] | None:
    """The parameters of a broken trial, from the event log."""
    for event in directory.events():
        if event.get("kind") == "trial_started" and event.get("trial") == number:
            return dict(Candidate(event["params"]).params)
    return None
