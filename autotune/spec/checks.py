"""Checks of a study's raw data that need more than its schema: files, names, contradictions."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.canonical import Json, canonical_json
from autotune.errors import Problem
from autotune.spec.expressions import parse_constraint, parse_objective
from autotune.spec.masking import SECRET_KEY
from autotune.spec.model import StudySpec
from autotune.spec.nearest import offer
from autotune.spec.origins import Locator
from autotune.spec.resources import find_shipped, shipped_names
from autotune.spec.yaml_source import named

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def flag_name(text: str) -> str:
    """A flag's one spelling: no dashes in front, dashes for underscores up to the first dot.

    vLLM and SGLang take both spellings; what follows a dot is a key of a JSON value.
    """
    head, dot, tail = text.lstrip("-").partition(".")
    return head.replace("_", "-") + dot + tail


class StudyChecks:
    """One look at a study's data (as merged from file and flags)."""

    def __init__(self, *, data: Mapping[str, Json], folder: Path, locate: Locator) -> None:
        self._data = data
        self._folder = folder
        self._locate = locate
        self._resolved = copy.deepcopy(dict(data))

    def problems(self) -> list[Problem]:
        """All problems found; also resolves the paths (see `resolved`)."""
        return [
            *self._workload(),
            *self._task(),
            *self._space(),
            *self._baseline(),
            *self._model(),
            *self._engine(),
            *self._mounts(),
            *self._environment(),
            *self._fixed_flags(),
            *self._repeats(),
            *self._capacity(),
        ]

    def resolved(self) -> dict[str, Json]:
        """The data with paths that exist made absolute; call after `problems`."""
        return self._resolved

    def normalised(self, spec: StudySpec) -> StudySpec:
        """The spec with one spelling for each fixed flag and baseline knob."""
        if spec.engine.kind == "generic":
            return spec
        args = {flag_name(name): value for name, value in spec.engine.args.items()}
        update: dict[str, object] = {"engine": spec.engine.model_copy(update={"args": args})}
        if isinstance(spec.baseline, dict):
            update["baseline"] = {flag_name(k): value for k, value in spec.baseline.items()}
        return spec.model_copy(update=update)

    def normal_names(self, data: Mapping[str, Json]) -> dict[str, Json]:
        """`data` with the same spellings, for telling origins."""
        result = copy.deepcopy(dict(data))
        engine = result.get("engine")
        if isinstance(engine, dict) and isinstance(engine.get("args"), dict):
            engine["args"] = {**engine["args"], **{flag_name(k): 0 for k in engine["args"]}}
        if isinstance(result.get("baseline"), dict):
            result["baseline"] = {flag_name(k): 0 for k in result["baseline"]} | result["baseline"]
        return result

    def _problem(self, path: tuple[str | int, ...], label: str, *, key: bool = False) -> Problem:
        return Problem(
            message=f"{named(path)}{label}", place=self._locate(path, key=key, label=label)
        )

    def _part(self, name: str) -> Mapping[str, Json]:
        part = self._data.get(name)
        return part if isinstance(part, dict) else {}

    def _find(self, text: str, path: tuple[str | int, ...]) -> Path | None:
        """The file or folder meant: beside the study file first, then from the current folder."""
        bases = [Path()] if self._locate.flagged(path) else [self._folder, Path()]
        try:
            wanted = Path(text).expanduser()
            places = [wanted] if wanted.is_absolute() else [base / wanted for base in bases]
            return next((place.resolve() for place in places if place.exists()), None)
        except (OSError, RuntimeError, ValueError):
            # No name of a file: an unknown home, a null character, too long.
            return None

    def _workload(self) -> Iterator[Problem]:
        text = self._part("workload").get("path")
        path = ("workload", "path")
        if not isinstance(text, str):
            return
        found = self._find(text, path) or find_shipped("workloads", text)
        if found is None:
            close = offer(text, shipped_names("workloads"))
            yield self._problem(path, f"no such file, here or among the shipped workloads{close}")
        elif found.is_dir():
            yield self._problem(path, "a folder, not a workload file")
        else:
            self._resolved["workload"]["path"] = str(found)
        yield from self._tokenizer()

    def _tokenizer(self) -> Iterator[Problem]:
        text, path = self._part("workload").get("tokenizer"), ("workload", "tokenizer")
        if not isinstance(text, str):
            return
        found = self._find(text, path)
        if found is None:
            yield self._problem(path, "no such file or folder")
        else:
            self._resolved["workload"]["tokenizer"] = str(found)

    def _task(self) -> Iterator[Problem]:
        """A task file of the check `lm-eval`; anything else is the name of a task."""
        text, path = self._part("quality").get("task"), ("quality", "task")
        if not isinstance(text, str) or not text.endswith((".yaml", ".yml")):
            return
        found = self._find(text, path)
        if found is None:
            yield self._problem(path, "no such file")
        else:
            self._resolved["quality"]["task"] = str(found)

    def _space(self) -> Iterator[Problem]:
        text = self._data.get("space")
        if not isinstance(text, str):
            return
        found = self._find(text, ("space",)) if is_space_path(text) else None
        if found is not None and found.is_file():
            self._resolved["space"] = str(found)
        elif find_shipped("search_spaces", text) is None:
            names = shipped_names("search_spaces")
            label = (
                "no such file"
                if is_space_path(text)
                else f"no such space{offer(text, names) or '; shipped: ' + ', '.join(names)}"
            )
            yield self._problem(("space",), label)

    def _baseline(self) -> Iterator[Problem]:
        value = self._data.get("baseline")
        if isinstance(value, str):
            one_line = len(value.strip().splitlines()) == 1 and len(value) < 4096
            found = self._find(value.strip(), ("baseline",)) if one_line else None
            if found is not None and found.is_file():
                self._resolved["baseline"] = str(found)
            elif not value.strip():
                yield self._problem(("baseline",), "empty; {} means the engine's defaults")
            elif len(value.split()) == 1:
                yield self._problem(("baseline",), "no such file, and not a launch command")
        if isinstance(value, dict):
            yield from self._spellings(("baseline",), value)
            fixed = {flag_name(k): v for k, v in self._args().items()}
            for name, setting in value.items():
                other = fixed.get(flag_name(name), setting)
                if canonical_json(other) != canonical_json(setting):
                    label = f"fixed for every trial as {other} in engine.args"
                    yield self._problem(("baseline", name), label, key=True)

    def _model(self) -> Iterator[Problem]:
        engine, text = self._part("engine"), self._data.get("model")
        if not isinstance(text, str) or engine.get("launcher") == "attach":
            return
        if not text.strip():
            yield self._problem(("model",), "empty; expected a model name or folder")
        if not text.startswith((".", "/", "~")) or self._is_mounted(text):
            return
        found = self._find(text, ("model",))
        if found is None:
            yield self._problem(("model",), "no such folder")
        else:
            self._resolved["model"] = str(found)

    def _mounts(self) -> Iterator[Problem]:
        """Folders that start with a dot are meant from the study file, as everywhere in it."""
        mounts = self._part("engine").get("mounts")
        for index, text in enumerate(mounts if isinstance(mounts, list) else ()):
            source, colon, target = text.partition(":") if isinstance(text, str) else ("", "", "")
            if not source.startswith((".", "~")):
                continue
            path = ("engine", "mounts", index)
            found = self._find(source, path)
            if found is None:
                yield self._problem(path, f"no such folder: {source}")
            else:
                self._resolved["engine"]["mounts"][index] = f"{found}{colon}{target}"

    def _is_mounted(self, model: str) -> bool:
        """Whether a container sees the model's folder through a mount of the study."""
        mounts = self._part("engine").get("mounts")
        texts = [m for m in mounts if isinstance(m, str)] if isinstance(mounts, list) else []
        targets = [parts[1] for parts in (text.split(":") for text in texts) if len(parts) > 1]
        return any(Path(model).is_relative_to(target) for target in targets)

    def _engine(self) -> Iterator[Problem]:
        engine = self._part("engine")
        needed = {"docker": "image", "attach": "url"}
        launcher = engine.get("launcher")
        key = needed.get(launcher) if isinstance(launcher, str) else None
        if key is not None and not engine.get(key):
            yield self._problem(("engine", "launcher"), f"{launcher} needs `{key}` beside it")

    def _environment(self) -> Iterator[Problem]:
        env = self._part("engine").get("env")
        for name, value in env.items() if isinstance(env, dict) else ():
            path = ("engine", "env", name)
            if not _VARIABLE.fullmatch(name):
                yield self._problem(path, "not a name of an environment variable", key=True)
            elif isinstance(value, str) and SECRET_KEY.search(name):
                label = f"a secret is given by name only: {name}: {{from_env: {name}}}"
                yield self._problem(path, label, key=True)

    def _args(self) -> Mapping[str, Json]:
        args = self._part("engine").get("args")
        return args if isinstance(args, dict) else {}

    def _fixed_flags(self) -> Iterator[Problem]:
        yield from self._spellings(("engine", "args"), self._args())
        for name, value in self._args().items():
            if isinstance(value, str) and SECRET_KEY.search(name):
                label = "a secret on the command line; pass it by name under engine.env"
                yield self._problem(("engine", "args", name), label, key=True)

    def _spellings(
        self, path: tuple[str | int, ...], values: Mapping[str, Json]
    ) -> Iterator[Problem]:
        seen: dict[str, str] = {}
        for name in values:
            first = seen.setdefault(flag_name(name), name)
            if first != name:
                label = f"the same flag as `{first}`"
                yield self._problem((*path, name), label, key=True)

    def _repeats(self) -> Iterator[Problem]:
        for name, parse in (("objective", parse_objective), ("constraints", parse_constraint)):
            items = self._data.get(name)
            seen: set[str] = set()
            for index, item in enumerate(items if isinstance(items, list) else ()):
                try:
                    text = parse(item).text
                except ValueError:
                    continue
                if text in seen:
                    yield self._problem((name, index), f"the same as an earlier one: {text}")
                seen.add(text)

    def _capacity(self) -> Iterator[Problem]:
        """Capacity is what the limits allow, found by its own replays: with limits, alone."""
        stated = self._data.get("objective")
        items = stated if isinstance(stated, list) else [stated]
        for index, item in enumerate(items):
            try:
                objective = parse_objective(item)
            except ValueError:
                continue
            if not objective.metric.searched:
                continue
            path = ("objective", index) if isinstance(stated, list) else ("objective",)
            if not self._data.get("constraints"):
                label = "needs a limit to hold, such as `constraints: ttft_p95 <= 500ms`"
                yield self._problem(path, label)
            if len(items) > 1:
                yield self._problem(path, "is found at a rate of its own: no objective beside it")


def is_space_path(text: str) -> bool:
    """Whether `space:` names a file rather than a shipped space."""
    return "/" in text or text.endswith((".yaml", ".yml"))
