"""How the GPUs of a study are dealt out to launches that run at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.engines.catalog import is_simulated
from autotune.errors import InputError
from autotune.spec.model import StudySpec

GpuSet = tuple[str, ...] | None
"""GPUs of one launch, as in `LaunchPlan.gpus`."""


def resolved(spec: StudySpec, found: Sequence[str]) -> StudySpec:
    """The study with its GPUs by name where they are dealt out. `found`: those of this machine."""
    engine = spec.engine
    if engine.gpus_per_trial is None or engine.gpus is not None:
        return spec
    return spec.model_copy(update={"engine": engine.model_copy(update={"gpus": tuple(found)})})


def gpu_slots(spec: StudySpec, found: Sequence[str]) -> tuple[GpuSet, ...]:
    """The GPUs of each slot, in order; one slot where launches are made one after another.

    `found`: indices of this machine's GPUs. Raises InputError where the study asks for more
    launches at a time than its GPUs, or its one port, allow.
    """
    engine, parallel = spec.engine, spec.search.parallel
    named = None if engine.gpus is None else tuple(str(gpu) for gpu in engine.gpus)
    if engine.gpus_per_trial is None:
        slots: tuple[GpuSet, ...] = (named,) * (parallel or 1)
        own = named is None and found and not is_simulated(engine.kind)
        if len(slots) > 1 and (named or own):
            raise _refused(
                f"`search.parallel` is {parallel}, but each launch gets all "
                f"{len(named or found)} GPUs",
                "say how many one launch gets: `engine: gpus_per_trial: 1`",
            )
    else:
        slots = _dealt(named if named is not None else tuple(found), engine.gpus_per_trial)
        if parallel is not None and parallel > len(slots):
            count = len(named if named is not None else found)
            raise _refused(
                f"`search.parallel` is {parallel}, but {count} GPUs hold {len(slots)} "
                f"launch{'es' * (len(slots) > 1)} of {engine.gpus_per_trial}",
                "a smaller `search.parallel`, or leave it out: all GPUs are used then",
            )
        slots = slots[: parallel or len(slots)]
    if len(slots) > 1 and engine.port is not None:
        raise _refused(
            f"{len(slots)} launches at the same time cannot share port {engine.port}",
            "leave `engine.port` out, so that each takes a free one",
        )
    return slots


def _dealt(pool: tuple[str, ...], each: int) -> tuple[GpuSet, ...]:
    if len(pool) < each:
        have = f"the study has {len(pool)}" if pool else "no GPU was found"
        raise _refused(
            f"`engine.gpus_per_trial` is {each}, but {have}",
            "name them: `engine: gpus: [0, 1]`; `nvidia-smi` lists them",
        )
    return tuple(pool[at : at + each] for at in range(0, len(pool) - each + 1, each))


def _refused(message: str, hint: str) -> InputError:
    return InputError(message=message, so="nothing was started", hint=hint)
