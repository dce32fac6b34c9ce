"""The search methods by name: the one place where a study gets its proposer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from autotune.canonical import Json
from autotune.errors import InputError
from autotune.search.forecast import Forecast
from autotune.search.proposer import Proposer
from autotune.space.candidate import Candidate
from autotune.space.search_space import SearchSpace
from autotune.spec.expressions import Constraint, Objective

Method = Literal["guided", "tpe", "gp", "nsga2", "random", "qmc", "grid"]
"""Names of `search.sampler`."""
METHODS: tuple[Method, ...] = get_args(Method)


def make_proposer(
    name: Method,
    space: SearchSpace,
    facts: Mapping[str, Json],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    *,
    seed: int = 0,
    storage_path: Path | None = None,
    forecast: Callable[[], Forecast | None] | None = None,
    first: Sequence[Candidate] = (),
) -> Proposer:
    """The proposer called `name`. Raises InputError where its extra is not installed.

    `facts`: the names that conditions and rules may use besides knobs (`engine.kind` tells how
    flags bear on memory). `storage_path`: where the SQLite copy of the trials goes, None for none.
    `forecast`: for `guided` only; called before a proposal, gives the calibrated model once there
    is one, else None. `first`: proposed before anything else, in this order, where allowed and new.
    """
    check_installed(name)
    # Optuna takes half a second to import: not before it is needed
    if name == "guided":
        from autotune.search.guided import GuidedProposer

        return GuidedProposer(
            space, facts, objectives, constraints,
            seed=seed, storage_path=storage_path, forecast=forecast, first=first,
        )  # fmt: skip
    from autotune.search.optuna_proposer import OptunaProposer

    return OptunaProposer(
        space, facts, objectives, constraints,
        seed=seed, sampler=name, storage_path=storage_path, first=first,
    )  # fmt: skip


def check_installed(name: Method) -> None:
    """Raise InputError where what a method needs is not installed."""
    if name == "gp" and find_spec("torch") is None:
        raise InputError(
            message="the sampler `gp` needs PyTorch, which is not installed",
            so="nothing was started",
            hint="`pip install 'autotune[gp]'` (a CPU build of torch will do), "
            "or another `search: sampler:`",
        )
