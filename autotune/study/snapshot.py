"""A study as files: all that `resume`, `report` and `script` need, written once at the start; only
its limits may change later (`extending`).

`study.yaml` is the resolved study for people, `study.json` the same for programs, the workload lies
beside them as replayed. Resuming reads nothing else, so a study survives changes of its sources.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from autotune import __version__
from autotune.canonical import Json
from autotune.clock import Clock, StopSignal
from autotune.engines.catalog import engine_for
from autotune.engines.engine import LaunchTarget
from autotune.engines.plan import Mount
from autotune.errors import InputError
from autotune.launch.gpus import among, list_gpus
from autotune.launch.images import registry_digest
from autotune.space.candidate import Candidate
from autotune.space.knob import Knob
from autotune.space.search_space import First, SearchSpace
from autotune.space.space_file import read_space
from autotune.spec.model import StudySpec
from autotune.study.across import across_engines
from autotune.study.directory import StudyDirectory, read_json, write_json, write_text
from autotune.study.gpu_slots import gpu_slots
from autotune.study.prepare import PreparedStudy, Traffic, assemble
from autotune.study.sides_json import merged_specs
from autotune.study.target import Baseline
from autotune.workload.reader import read_trace
from autotune.workload.trace import Request, Trace
from autotune.workload.windows import Selection
from autotune.workload.writer import digest, write_trace

SEARCH, HELD_OUT = "workload.jsonl.zst", "held-out.jsonl.zst"
PRIMING, HELD_OUT_PRIMING = "priming.jsonl.zst", "held-out-priming.jsonl.zst"
STUDY_FILE = "study.yaml"
SCHEMA = 1


def write_snapshot(study: PreparedStudy, directory: StudyDirectory, *, started_at: str) -> None:
    """Write everything that is fixed for a study. The presence of `study.json` makes it one, so
    that file comes last.
    """
    folder = directory.path
    directory.trials.mkdir(parents=True, exist_ok=True)
    selection = study.traffic.selection
    write_trace(folder / SEARCH, selection.search)
    if selection.held_out is not None:
        write_trace(folder / HELD_OUT, selection.held_out)
    for name, primers in (
        (PRIMING, selection.priming),
        (HELD_OUT_PRIMING, selection.held_out_priming),
    ):
        if primers:
            write_trace(folder / name, replace(selection.search, requests=tuple(primers)))
    spec = study_json(study)
    header = f"# {study.spec.name} as resolved on {started_at} by autotune {__version__}\n"
    write_text(folder / STUDY_FILE, study_yaml(header, spec))
    write_json(folder / "fingerprint.json", fingerprint(study, started_at))
    write_json(
        folder / "study.json",
        {
            "schema": SCHEMA,
            "study_id": study.study_id,
            **{key: value for key, value in spec.items() if key != "space"},
            "baseline": dict(study.baseline.params),
            "space": space_summary(study.space),
            **({"sides": [_side_json(side) for side in study.sides]} if study.sides else {}),
            **_side_json(study),
            "spec": spec,
            "traffic": {
                "path": study.traffic.path,
                "description": dict(study.traffic.description),
                "notes": list(study.traffic.all_notes),
            },
        },
    )


def study_yaml(header: str, spec: Mapping[str, Json]) -> str:
    """The text of `study.yaml`: a comment, and the study as it reads back."""
    return header + yaml.safe_dump(dict(spec), sort_keys=False, allow_unicode=True, width=100)


def read_snapshot(directory: StudyDirectory, *, clock: Clock, stop: StopSignal) -> PreparedStudy:
    """The study that a directory holds, ready to go on. Raises InputError for a broken one."""
    path = directory.path / "study.json"
    data = read_json(path)
    try:
        return _assembled(data, directory, clock=clock, stop=stop)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            message=f"{path} is not the file of a study that this version can read",
            seen=f"{type(error).__name__}: {error}".splitlines()[0],
            hint=f"autotune {__version__} reads schema {SCHEMA}",
        ) from error


def _side_json(study: PreparedStudy) -> dict[str, Json]:
    """What is fixed for one engine."""
    own = {} if study.sides else {"spec": study_json(study)}
    return {
        **own,
        "target": target_json(study.target),
        "facts": dict(study.facts),
        "engine_version": study.engine_version,
    }


def _assembled(
    data: Mapping[str, Json], directory: StudyDirectory, *, clock: Clock, stop: StopSignal
) -> PreparedStudy:
    traffic = Traffic(
        selection=_selection(directory.path),
        description=data["traffic"]["description"],
        path=data["traffic"]["path"],
        source_notes=(),
    )
    shared = {"study_id": data["study_id"]}
    sides = [{**shared, **side} for side in data["sides"]] if "sides" in data else [data]
    return across_engines([_side(one, traffic, directory, clock, stop) for one in sides])


def _side(
    data: Mapping[str, Json],
    traffic: Traffic,
    directory: StudyDirectory,
    clock: Clock,
    stop: StopSignal,
) -> PreparedStudy:
    spec = StudySpec.model_validate(data["spec"])
    reading = read_space(data["spec"]["space"])
    if reading.space is None or reading.problems:
        raise InputError(
            message=f"the space in {directory.path}/study.json cannot be read",
            problems=reading.problems,
        )
    target = target_from(data["target"])
    return assemble(
        study_id=data["study_id"],
        spec=spec,
        space=reading.space,
        engine=engine_for(spec.engine.kind, data["engine_version"]),
        version=data["engine_version"],
        baseline=Baseline(candidate=Candidate(data["spec"]["baseline"]), target=target),
        facts=data["facts"],
        traffic=traffic,
        slots=gpu_slots(spec, [str(gpu.index) for gpu in list_gpus()]),
        clock=clock,
        stop=stop,
    )


def _selection(folder: Path) -> Selection:
    def trace(name: str) -> Trace | None:
        if not (folder / name).exists():
            return None
        return read_trace(folder / name, strict=True, keep_text=True)

    def requests(name: str) -> tuple[Request, ...]:
        found = trace(name)
        return () if found is None else found.requests

    return Selection(
        search=read_trace(folder / SEARCH, strict=True, keep_text=True),
        held_out=trace(HELD_OUT),
        over_limit=(),
        priming=requests(PRIMING),
        held_out_priming=requests(HELD_OUT_PRIMING),
        notes=(),
    )


def study_json(study: PreparedStudy) -> dict[str, Json]:
    """`spec_json` of a study; of several engines all of it that differs by kind."""
    if not study.sides:
        return spec_json(study.spec, study.space, study.baseline)
    return merged_specs([study_json(side) for side in study.sides])


def spec_json(spec: StudySpec, space: SearchSpace, baseline: Candidate) -> dict[str, Json]:
    """The study as a mapping that reads back as a study file: objectives and limits as text, the
    space inline, the baseline as knobs.
    """
    data = spec.model_dump(mode="json", exclude={"objective", "constraints", "space", "baseline"})
    data["engine"] = {k: v for k, v in data["engine"].items() if v is not None}
    if spec.quality is None:
        data.pop("quality")
    return {
        **data,
        "baseline": dict(baseline.params),
        "space": space_json(space),
        "objective": [objective.text for objective in spec.objective],
        "constraints": [constraint.text for constraint in spec.constraints],
    }


def space_json(space: SearchSpace) -> dict[str, Json]:
    """A space as it could stand in a file, its ranges written out as values."""
    data: dict[str, Json] = {"knobs": {knob.name: _knob_json(knob) for knob in space.knobs}}
    if space.rules:
        data["rules"] = [rule.text for rule in space.rules]
    if space.first:
        data["first"] = [_first_json(entry) for entry in space.first]
    return data if space.engine is None else {"engine": space.engine, **data}


def _first_json(entry: First) -> dict[str, Json]:
    optional = {
        "why": entry.why or None,
        "when": entry.when.text if entry.when else None,
        "source": entry.source,
    }
    told = {key: value for key, value in optional.items() if value is not None}
    return {"params": dict(entry.params), **told}


def _knob_json(knob: Knob) -> dict[str, Json]:
    entry: dict[str, Json] = {"type": knob.kind}
    if knob.kind != "switch":
        entry["values"] = list(knob.grid())
    optional = {
        "when": knob.when.text if knob.when else None,
        "lossy": knob.lossy or None,
        "versions": knob.versions,
        "why": knob.why or None,
        "env": knob.env,
        "flag": knob.flag,
    }
    return entry | {key: value for key, value in optional.items() if value is not None}


def space_summary(space: SearchSpace) -> dict[str, Json]:
    """The space as the report shows it."""
    return {
        "name": space.name,
        "knobs": _knob_summaries(space),
        "rules": [rule.text for rule in space.rules],
        "first": [_first_json(entry) for entry in space.first],
    }


def _knob_summaries(space: SearchSpace) -> list[dict[str, Json]]:
    """Each knob under its name in trials; what several engines call alike is one."""
    found: dict[str, dict[str, Json]] = {}
    for knob in space.knobs:
        entry: dict[str, Json] = {
            "name": space.parameter(knob.name),
            "kind": knob.kind,
            "values": list(knob.grid()),
            "lossy": knob.lossy,
            "why": knob.why,
            "when": knob.when.text if knob.when else None,
        }
        known = found.setdefault(entry["name"], entry)
        if known is not entry:
            known["values"] += [value for value in entry["values"] if value not in known["values"]]
            known["lossy"] = known["lossy"] or entry["lossy"]
            whens = [text for text in (known["when"], entry["when"]) if text]
            known["when"] = " or ".join(f"({text})" for text in whens) or None
    return list(found.values())


def target_json(target: LaunchTarget) -> dict[str, Json]:
    """A launch target as JSON; secrets by name only."""
    return {
        "model": target.model,
        "launcher": target.launcher,
        "args": dict(target.args),
        "command": None if target.command is None else list(target.command),
        "env": dict(target.env),
        "secrets": dict(target.secrets),
        "image": target.image,
        "mounts": [
            {"source": m.source, "target": m.target, "read_only": m.read_only}
            for m in target.mounts
        ],
        "gpus": None if target.gpus is None else list(target.gpus),
        "shm_size": target.shm_size,
        "ipc_host": target.ipc_host,
        "port": target.port,
        "url": target.url,
        "health": target.health,
        "model_name": target.model_name,
        "flag_style": target.flag_style,
        "negatable": list(target.negatable),
        "knob_env": dict(target.knob_env),
        "knob_flags": dict(target.knob_flags),
    }


def target_from(data: Mapping[str, Json]) -> LaunchTarget:
    """The inverse of `target_json`."""
    values = dict(data)
    values["mounts"] = tuple(Mount(**mount) for mount in values["mounts"])
    for name in ("command", "gpus"):
        values[name] = None if values[name] is None else tuple(values[name])
    values["negatable"] = tuple(values.get("negatable", ()))
    return LaunchTarget(**values)


def _engine_print(study: PreparedStudy) -> dict[str, Json]:
    image, launcher = study.target.image, study.target.launcher
    return {
        "kind": study.engine.kind,
        "version": study.engine_version,
        "launcher": launcher,
        "image": image,
        "image_digest": registry_digest(image) if launcher == "docker" and image else None,
    }


def fingerprint(study: PreparedStudy, started_at: str) -> dict[str, Json]:
    """What the numbers of this study belong to: tool, engine, model, machine (with the GPUs that
    the study may use), workload.
    """
    gpus = among(list_gpus(), study.target.gpus)
    selection = study.traffic.selection
    return {
        "tool": __version__,
        "started_at": started_at,
        "simulated": study.engine.simulated,
        "engine": _engine_print(study),
        **({"engines": [_engine_print(side) for side in study.sides]} if study.sides else {}),
        "model": study.spec.model,
        "machine": {
            "gpus": [
                {"name": gpu.name, "memory_bytes": gpu.memory_total, "uuid": gpu.uuid}
                for gpu in gpus
            ],
            "driver": gpus[0].driver if gpus else None,
            "cpu_count": os.cpu_count(),
            "os": platform.platform(terse=True),
        },
        "workload": {
            **study.traffic.description,
            "path": study.traffic.path,
            "digest": digest(selection.search),
            "window_s": None if selection.window_s is None else list(selection.window_s),
            "held_out": selection.held_out is not None,
            "held_out_digest": None if selection.held_out is None else digest(selection.held_out),
            "notes": list(study.traffic.all_notes),
        },
    }
