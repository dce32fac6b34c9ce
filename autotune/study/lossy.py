"""Knobs that can change answers: they vary only where something guards the answers."""

from __future__ import annotations

from dataclasses import replace

from autotune.engines.facts import engine_facts
from autotune.errors import InputError
from autotune.space.search_space import SearchSpace
from autotune.spec.model import QualitySpec, StudySpec
from autotune.spec.units import format_duration
from autotune.study.task_score import require_harness

_OTHERS = (
    "`quality: {check: agreement}` compares greedy answers alone, "
    "`quality: {check: none}` lets them vary unchecked"
)


def guarded(
    spec: StudySpec, space: SearchSpace, version: str | None
) -> tuple[StudySpec, SearchSpace, tuple[str, ...]]:
    """The study with its check of answers filled in, its space, and what to say about both.

    A space with lossy knobs is checked by likelihood unless the study says otherwise. Where this
    engine gives no likelihoods and the study says nothing, those knobs do not vary. Raises
    InputError for a check that cannot be made.
    """
    lossy = lossy_knobs(space)
    if not lossy:
        return spec, space, ()
    names = ", ".join(lossy)
    scored = engine_facts(spec.engine.kind).asks_likelihood(version) is not None
    if spec.quality is None:
        if not scored:
            kept = tuple(knob for knob in space.knobs if not knob.lossy)
            note = (
                f"not varied, because they can change answers and {spec.engine.kind} gives no "
                f"log-probabilities of a prompt to check them by: {names}; {_OTHERS}"
            )
            return spec, replace(space, knobs=kept), (note,)
        spec = spec.model_copy(update={"quality": QualitySpec()})
    assert spec.quality is not None
    if spec.quality.check == "likelihood" and not scored:
        raise InputError(
            message=f"the check `likelihood` cannot be made with {spec.engine.kind}"
            f"{f' {version}' if version else ''}: it gives no log-probabilities of a prompt",
            seen=f"lossy knobs of the space: {names}",
            so="nothing was started",
            hint=f"{_OTHERS}; without `quality` they are left as they are",
        )
    if spec.quality.check == "lm-eval":
        require_harness()
    return spec, space, ()


def lossy_knobs(space: SearchSpace) -> list[str]:
    """Names of the knobs that can change answers."""
    names = (space.parameter(knob.name) for knob in space.knobs if knob.lossy)
    return list(dict.fromkeys(names))


def check_words(spec: StudySpec, space: SearchSpace) -> str | None:
    """What guards the answers, in words for a plan; None where no knob can change them."""
    lossy = lossy_knobs(space)
    if not lossy:
        return None
    quality = spec.quality or QualitySpec(check="none")
    names = ", ".join(lossy)
    if quality.check == "none":
        return f"{UNCHECKED}: {names} can change answers, and nothing compares them"
    limit = f"{100 * quality.limit:g} %"
    about = {
        "likelihood": f"perplexity may rise by {limit} at most",
        "agreement": f"greedy answers may part after {100 * (1 - quality.limit):g} % or later",
        "lm-eval": f"{quality.task} may fall by {limit} at most",
    }[quality.check]
    seconds = format_duration(quality.seconds)
    differ = "differs" if len(lossy) == 1 else "differ"
    return f"{about}, against the baseline, where {names} {differ} (up to {seconds} a launch)"


UNCHECKED = "NOT CHECKED"
"""How a plan begins to speak of answers that nothing guards."""
