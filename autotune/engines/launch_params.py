"""What every launch is made of, whatever the engine: settings, environment, a server that runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from autotune.canonical import Json, canonical_json
from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import EngineFacts
from autotune.engines.flags import canonical_params
from autotune.engines.plan import LaunchPlan
from autotune.errors import InputError
from autotune.space.candidate import ENGINE, MODEL, Candidate

_TAG = re.compile(r":v?(\d+\.\d+(?:\.\d+)?[\w.]*)(?:-[\w.-]+)?$")


def image_version(image: str | None) -> str | None:
    """The engine version that an image's tag names: "vllm/vllm-openai:v0.26.0" -> "0.26.0",
    "lmsysorg/sglang:v0.5.19-cu129" -> "0.5.19".
    """
    tag = _TAG.search(image) if image else None
    return tag[1] if tag else None


def merged_params(
    facts: EngineFacts, candidate: Candidate, target: LaunchTarget
) -> tuple[dict[str, Json], dict[str, str]]:
    """The engine's own and the fixed flags in their order, then the knobs in sorted order, under
    canonical names; and the environment with the knobs that are set there. A knob overrides a fixed
    flag of its name; the choice of the engine and of the checkpoint is no flag.
    """
    env = dict(target.env)
    knobs: dict[str, Json] = {}
    for name, value in candidate.params.items():
        if name in (ENGINE, MODEL):
            continue
        variable = target.knob_env.get(name)
        if variable is None:
            knobs[target.knob_flags.get(name, name)] = value
        elif value is not None:
            env[variable] = env_text(value)
    given = canonical_params(facts, knobs)
    fixed = canonical_params(facts, target.args)
    fixed = {**{k: v for k, v in facts.always.items() if k not in fixed}, **fixed}
    params = {name: value for name, value in fixed.items() if name not in given}
    params |= dict(sorted(given.items()))
    return {name: value for name, value in params.items() if value is not None}, env


def with_checkpoint(candidate: Candidate, target: LaunchTarget) -> LaunchTarget:
    """The target that serves the checkpoint which the candidate chooses. Requests go on calling it
    by the name of the study's model.
    """
    chosen = candidate.params.get(MODEL)
    if chosen is None or chosen == target.model:
        return target
    folder = local_folder(target.model)
    name = target.model if folder is None else str(folder)
    args = {"served-model-name": name, **target.args}
    return replace(target, model=str(chosen), model_name=target.model_name or name, args=args)


def env_text(value: Json) -> str:
    """A knob's value as text of an environment variable; switches become 1 and 0."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str) else canonical_json(value)


def attached_plan(kind: str, candidate: Candidate, target: LaunchTarget) -> LaunchPlan:
    """The plan of a server that runs already. Raises InputError if it is to be changed."""
    if candidate.params:
        raise InputError(
            message="a running server cannot be given other settings",
            seen=f"knobs {', '.join(candidate.params)} with launcher attach",
            hint="use launcher process or docker, or measure it with `autotune replay`",
        )
    if target.url is None:
        raise InputError(message="launcher attach needs a url", hint="set `engine.url`")
    return LaunchPlan(
        engine=kind,
        launcher="attach",
        argv=(),
        model=target.model,
        url=target.url,
        secrets=target.secrets,
    )


def local_folder(model: str) -> Path | None:
    """The model as an absolute folder, if it is one; else it is a hub name."""
    folder = Path(model).expanduser() if model.startswith("~/") else Path(model)
    return folder.absolute() if folder.is_dir() else None
