"""Where and on what the engine runs, and what runs today: the fixed half of every launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.canonical import Json, canonical_json
from autotune.engines.catalog import is_known_flag
from autotune.engines.engine import Engine, LaunchTarget, ParsedCommand
from autotune.engines.facts import engine_facts
from autotune.engines.launch_params import merged_params
from autotune.engines.plan import Mount
from autotune.engines.redaction import is_secret_name
from autotune.errors import InputError, Place, Problem
from autotune.space.candidate import MODEL, Candidate
from autotune.space.search_space import SearchSpace
from autotune.spec.model import EngineSpec, FromEnv, StudySpec
from autotune.spec.nearest import offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What runs today, split into what the study varies and what it keeps.

    A setting of today's launch that is no knob of the space stays as it is in every trial.
    """

    candidate: Candidate
    target: LaunchTarget
    notes: tuple[str, ...] = ()


def launch_target(spec: StudySpec, space: SearchSpace) -> LaunchTarget:
    """The target that a study file describes. Raises InputError for a malformed mount."""
    engine = spec.engine
    env, secrets = _environment(engine)
    return LaunchTarget(
        model=spec.model,
        launcher=engine.launcher,
        args=dict(engine.args),
        command=_runnable_anywhere(engine.command),
        env=env,
        secrets=secrets,
        image=engine.image,
        mounts=tuple(_mount(text) for text in engine.mounts),
        gpus=_gpus_of_one_launch(engine),
        shm_size=engine.shm_size,
        ipc_host=engine.ipc == "host",
        port=engine.port,
        url=engine.url,
        health=engine.health,
        model_name=engine.model_name,
        flag_style=engine.flag_style,
        negatable=engine.negatable,
        knob_env={knob.name: knob.env for knob in space.knobs if knob.env},
        knob_flags={knob.name: knob.flag for knob in space.knobs if knob.flag},
    )


def all_settings(candidate: Candidate, engine: str, target: LaunchTarget) -> dict[str, Json]:
    """Everything that a launch sets: flags under their own names, fixed ones included, and the
    environment as `env NAME`.
    """
    params, env = merged_params(engine_facts(engine), candidate, target)
    chosen = {MODEL: candidate.params[MODEL]} if MODEL in candidate.params else {}
    return {**params, **chosen, **{f"env {name}": value for name, value in env.items()}}


def with_program(spec: StudySpec, engine: Engine, target: LaunchTarget) -> LaunchTarget:
    """The target with the program or image of a pasted baseline command. Raises InputError."""
    if not isinstance(spec.baseline, str):
        return target
    return _from_command(spec.baseline, spec, engine, target)[1]


def baseline_of(
    spec: StudySpec,
    space: SearchSpace,
    engine: Engine,
    target: LaunchTarget,
    facts: Mapping[str, Json],
    *,
    locate: Callable[[str], Place | None],
) -> Baseline:
    """Read the baseline: knobs, a pasted launch command, or the path of a script that holds one.

    Raises InputError with every problem of it.
    """
    notes: list[str] = []
    if isinstance(spec.baseline, str):
        params, target = _from_command(spec.baseline, spec, engine, target)
        text = ", ".join(f"{name} {value}" for name, value in sorted(params.items()))
        notes.append(f"the baseline command sets: {text or 'nothing, all engine defaults'}")
    else:
        params = dict(spec.baseline)
    problems = space.check_params(params, locate=locate)
    problems += [
        _unknown(name, space, locate(name))
        for name in params
        if space.knob(name) is None and not is_known_flag(engine.kind, name)
    ]
    if problems:
        raise InputError(
            message=f"{len(problems)} problem{'s' * (len(problems) > 1)} in the baseline",
            problems=problems,
            so="nothing was started",
        )
    # A knob that may not vary here (its `when` does not hold) still keeps the value it runs with.
    own = {knob.name for knob in space.active(params, {**facts, **target.args})}
    kept = {name: value for name, value in params.items() if name not in own}
    if kept:
        target = replace(target, args={**target.args, **kept})
        notes.append("kept in every trial, as they do not vary here: " + ", ".join(sorted(kept)))
    varied = {name: value for name, value in params.items() if name in own}
    try:
        candidate = space.complete(varied, {**facts, **target.args})
    except ValueError as error:
        raise InputError(message=f"baseline: {error}", so="nothing was started") from error
    return Baseline(candidate=candidate, target=target, notes=tuple(notes))


def with_shell(baseline: Baseline, engine: str, environ: Mapping[str, str]) -> Baseline:
    """The baseline with the variables of this shell that shape a launch, as far as the study does
    not set them itself: values in the plan, secrets by name. A container inherits none.

    Without this a launch would differ from its script wherever that is run from another shell.
    """
    target = baseline.target
    if target.launcher != "process":
        return baseline
    facts = engine_facts(engine)
    own = {*target.env, *target.secrets}
    if target.gpus is not None:
        own.add("CUDA_VISIBLE_DEVICES")
    found = sorted(name for name in environ if facts.shapes_launch(name) and name not in own)
    if not found:
        return baseline
    env = {name: environ[name] for name in found if not is_secret_name(name)}
    secrets = {name: name for name in found if is_secret_name(name) and environ[name]}
    told = [f"{name}={value}" for name, value in env.items()]
    told += [f"{name} (its value is kept out of every file)" for name in secrets]
    return replace(
        baseline,
        target=replace(target, env={**env, **target.env}, secrets={**secrets, **target.secrets}),
        notes=(*baseline.notes, f"set in this shell, so part of every launch: {', '.join(told)}"),
    )


def _unknown(name: str, space: SearchSpace, place: Place | None) -> Problem:
    label = f"unknown knob{offer(name, (knob.name for knob in space.knobs))}"
    return Problem(
        message=f"baseline: `{name}`: {label}",
        place=None if place is None else replace(place, label=label),
    )


def _from_command(
    text: str, spec: StudySpec, engine: Engine, target: LaunchTarget
) -> tuple[dict[str, Json], LaunchTarget]:
    script = Path(text)
    source = text
    if "\n" not in text and len(text) < 4096 and script.is_file():
        source = script.read_text(encoding="utf-8", errors="replace")
    command = engine.parse_command(source)
    if command.model is not None and command.model != spec.model:
        raise InputError(
            message=f"the baseline command serves {command.model}, the study {spec.model}",
            so="nothing was started",
            hint="name the same model in both",
        )
    params = dict(command.params)
    clashes = [
        name
        for name, value in params.items()
        if name in target.args and canonical_json(value) != canonical_json(target.args[name])
    ]
    if clashes:
        name = clashes[0]
        raise InputError(
            message=f"`{name}` is {params[name]} in the baseline command and "
            f"{target.args[name]} in engine.args",
            so="nothing was started",
            hint="engine.args holds what every trial has; leave it out of one of the two",
        )
    return params, replace(
        target,
        env={**command.env, **target.env},
        command=target.command or _program(command, engine),
        image=target.image or command.image,
    )


def _program(command: ParsedCommand, engine: Engine) -> tuple[str, ...] | None:
    """How today's command starts the engine; None for the engine's own default."""
    if command.image is not None or engine.simulated:
        return None
    return command.command or None


def _gpus_of_one_launch(engine: EngineSpec) -> tuple[str, ...] | None:
    """The first launch's GPUs; those of others that run beside it: `gpu_slots`."""
    if engine.gpus is None:
        return None
    return tuple(str(gpu) for gpu in engine.gpus)[: engine.gpus_per_trial]


def _environment(engine: EngineSpec) -> tuple[dict[str, str], dict[str, str]]:
    env = {k: str(v) for k, v in engine.env.items() if not isinstance(v, FromEnv)}
    secrets = {k: v.from_env for k, v in engine.env.items() if isinstance(v, FromEnv)}
    return env, secrets


def _runnable_anywhere(command: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """A program given by a relative path made absolute, so that the emitted script starts it from
    any folder. Names that are looked up in PATH stay as they are.
    """
    if not command or "/" not in command[0]:
        return command
    program = Path(command[0]).expanduser()
    return (str(program.absolute()), *command[1:]) if program.exists() else command


def _mount(text: str) -> Mount:
    source, target, *mode = text.split(":")
    return Mount(source=source, target=target, read_only=mode != ["rw"])
