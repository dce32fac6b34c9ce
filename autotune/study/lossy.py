"""Knobs that can change answers: they vary only where the user has said what guards the answers."""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import InputError
from autotune.space.search_space import SearchSpace
from autotune.spec.model import StudySpec


def guarded(spec: StudySpec, space: SearchSpace) -> tuple[SearchSpace, tuple[str, ...]]:
    """The space without the lossy knobs that nothing guards, and what to say about it.

    Raises InputError for a check that this version cannot make.
    """
    lossy = [knob.name for knob in space.knobs if knob.lossy]
    if not lossy:
        return space, ()
    if spec.quality is None:
        kept = tuple(knob for knob in space.knobs if not knob.lossy)
        note = (
            f"not varied, because they can change answers: {', '.join(lossy)}; "
            "`quality: {check: none}` lets them vary unchecked"
        )
        return replace(space, knobs=kept), (note,)
    if spec.quality.check != "none":
        raise InputError(
            message=f"the quality check `{spec.quality.check}` is not available in this version",
            seen=f"lossy knobs of the space: {', '.join(lossy)}",
            so="nothing was started",
            hint="leave `quality` out to keep them as they are, or write "
            "`quality: {check: none}` to let them vary unchecked (the report says so)",
        )
    return space, ()
