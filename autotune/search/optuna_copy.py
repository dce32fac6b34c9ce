"""`optuna.db`: a copy of the finished trials in Optuna's own form, for optuna-dashboard and others.

Nothing reads it back: the study directory is the truth, and the copy is made anew by every run. A
database that is locked, broken or cannot be written loses nothing and stops nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

BUSY_TIMEOUT_S = 8
"""SQLite's wait for a lock. Optuna tries five times, so a write waits for 40 to 50 s in all."""
BUSY_AGAIN_S = 0.2
"""The same once a write has failed: the search is not held up by every trial while a lock lasts."""


class OptunaCopy:
    """The SQLite copy: finished trials, written when possible, kept in memory until then.

    `problem`: why the file is not up to date, or None.
    """

    def __init__(self, path: Path, directions: Sequence[Literal["minimize", "maximize"]]) -> None:
        self._path = path
        self._directions = list(directions)
        self._study: optuna.Study | None = None
        self._trials: list[FrozenTrial] = []
        self._written = 0
        self.problem: str | None = None

    def add(self, trial: FrozenTrial) -> None:
        """Write this trial and all that wait; a locked file is waited for, at most 50 s.

        A file that is broken, or gone, is made anew with all trials.
        """
        self._trials.append(trial)
        try:
            study = self._opened()
            while self._written < len(self._trials):
                study.add_trial(self._trials[self._written])
                self._written += 1
        except (StorageInternalError, SQLAlchemyError, OSError, KeyError) as error:
            self.problem = f"{self._path.name} is not up to date: {error}"
            if not _is_lock(error):
                self._study, self._written = None, 0
        else:
            self.problem = None

    def _opened(self) -> optuna.Study:
        if self._study is None:
            for suffix in ("", "-journal", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            self._study = optuna.create_study(
                storage=self._storage(BUSY_TIMEOUT_S),
                study_name="autotune",
                directions=self._directions,
            )
        elif self.problem is not None:
            return optuna.load_study(study_name="autotune", storage=self._storage(BUSY_AGAIN_S))
        return self._study

    def _storage(self, timeout_s: float) -> optuna.storages.RDBStorage:
        return optuna.storages.RDBStorage(
            f"sqlite:///{self._path}",
            # No pool: nothing stays open between two trials
            engine_kwargs={"poolclass": NullPool, "connect_args": {"timeout": timeout_s}},
        )


def _is_lock(error: BaseException | None) -> bool:
    """Whether another program holds the file; Optuna hides SQLite's word behind its own."""
    while error is not None:
        if "locked" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
