"""Facts about engines, read from `facts/*.yaml`: loaded when first asked for, then kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, cast

from autotune.canonical import Json
from autotune.engines.known_flags import Flag, Removed, known_flags
from autotune.engines.versions import applies

SPEAKS = {"simulated": "vllm", "simulated-sglang": "sglang"}
"""A simulated engine -> the engine whose flags and metrics it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """Two names of one flag: versions have either. `inverted`: on in one is off in the other."""

    old: str
    new: str
    inverted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A cache folder of the engine inside a container. `host`: a folder of the user's home that is
    preferred when it exists; else the named `volume` (may hold `{version}`).
    """

    name: str
    target: str
    volume: str
    host: str | None = None
    hub_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOrder:
    """How flags bear on GPU memory, other flags being equal. `share`: what the engine may take;
    `need`: what has to fit in it, or beside it; `neutral`: neither. Any other flag may do either.
    """

    share: tuple[str, ...] = ()
    need: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A start-up stage and the log lines that show it (regular expressions)."""

    stage: str
    match: tuple[re.Pattern[str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A metric as the engine exposes it to Prometheus, and the versions that call it so."""

    name: str
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Likelihood:
    """How a server is asked for the log-probabilities of a given text: `body` is posted to `route`
    with the text under the key `text`; `read` names the form of the answer (`study/asking.py`).
    """

    route: str
    text: str
    read: str
    body: Mapping[str, Any]
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Everything known about one kind of engine."""

    engine: str
    command: tuple[str, ...]
    model_flag_words: tuple[str, ...]
    images: tuple[str, ...]
    flags: Mapping[str, Flag]
    aliases: Mapping[str, str]
    opposites: Mapping[str, str]
    removed: Mapping[str, Removed]
    managed: Mapping[str, str]
    secrets: Mapping[str, str | None]
    """Flag -> the variable that the server reads instead; None: it reads none."""
    metrics: Mapping[str, tuple[Exposed, ...]]
    routes: Mapping[str, str]
    caches: tuple[Cache, ...]
    shm: Mapping[str, Any]
    stages: tuple[Stage, ...]
    renamed: tuple[Renamed, ...] = ()
    help: tuple[tuple[str, ...], ...] = ()
    """Words that make the program print its flags, in the order to try."""
    help_proof: tuple[str, ...] = ()
    """Flags without which such a print is not the whole list."""
    compile_key: Mapping[str, str] = field(default_factory=dict)
    """Flag -> first version in which a new value of it is compiled anew."""
    memory_log: Mapping[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)
    """What a start-up log says of memory: name of a number -> the lines that hold it."""
    memory_order: MemoryOrder = MemoryOrder()
    likelihood: tuple[Likelihood, ...] = ()
    model_flag: str = "--model"
    takes_model_word: bool = True
    """Whether the program takes the model as a word, unless one of `model_flag_words` is in it."""
    packages: tuple[str, ...] = ()
    """Names of its Python distributions, whose metadata tells the version."""
    programs: tuple[tuple[str, ...], ...] = ()
    """Further ways to write the program."""
    always: Mapping[str, Json] = field(default_factory=dict)
    """Flags of every launch, unless the study sets them otherwise."""
    off_by_absence: bool = False
    """Whether a switch without a negative form is switched off by leaving it out."""
    kills_itself: bool = False
    """Whether signal 9 is how this engine ends after a failure of its own."""
    environment: tuple[str, ...] = ()
    """Variables that shape a launch: names, or beginnings of names that end in `_`."""

    def shapes_launch(self, variable: str) -> bool:
        """Whether a variable of the environment bears on what this engine does."""
        return any(
            variable.startswith(name) if name.endswith("_") else variable == name
            for name in self.environment
        )

    def asks_likelihood(self, version: str | None) -> Likelihood | None:
        """How this version is asked for the likelihood of a text; None: it cannot be."""
        known = (one for one in self.likelihood if applies(version, one.since, one.until))
        return next(known, None)

    def compile_flags(self, version: str | None) -> tuple[str, ...]:
        """Flags whose new values make a start a cold one in this version."""
        return tuple(name for name, since in self.compile_key.items() if applies(version, since))

    def metric_names(self, version: str | None) -> dict[str, str]:
        """Our name -> the engine's; the newest one where the version is not known."""
        return {
            key: one.name
            for key, entries in self.metrics.items()
            for one in entries
            if applies(version, one.since, one.until)
        }

    def stage_rank(self, stage: str | None) -> int:
        """The place of a stage in the start-up order; -1 for none."""
        names = [entry.stage for entry in self.stages]
        return names.index(stage) if stage in names else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One cause of failure and how a log shows it; the fields are explained in failures.yaml."""

    reason: str
    fault: str
    phase: str
    match: tuple[re.Pattern[str], ...]
    message: tuple[str, ...]
    remedy: str | None = None
    direction: str | None = None
    engines: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    also: tuple[re.Pattern[str], ...] = ()
    stages: tuple[str, ...] = ()
    cleared_by: str | None = None
    any_level: bool = False
    weak: bool = False
    extract: tuple[re.Pattern[str], ...] = ()
    blames: tuple[str, ...] = ()
    blames_larger: bool = False

    def applies(self, engine: str, version: str | None) -> bool:
        """Whether it is looked for in the logs of this engine and version."""
        named = not self.engines or engine in self.engines
        return named and applies(version, self.since, self.until)


def _read(name: str) -> dict[str, Any]:
    import yaml

    text = (files("autotune.engines") / "facts" / name).read_text(encoding="utf-8")
    # Our own file: the fast loader will do where it was built.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return cast("dict[str, Any]", yaml.load(text, Loader=loader))  # noqa: S506


def _patterns(texts: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for text in texts)


def _opposites(flags: Mapping[str, Flag]) -> dict[str, str]:
    """`enable-x` for `x` where the engine only has `disable-x`."""
    pairs = ((f"enable-{name.removeprefix('disable-')}", name) for name in flags)
    return {
        on: off
        for on, off in pairs
        if off.startswith("disable-") and on not in flags and flags[off].kind in ("switch", "bare")
    }


def _exposed(entry: str | Sequence[Mapping[str, str]]) -> tuple[Exposed, ...]:
    if isinstance(entry, str):
        return (Exposed(name=entry),)
    return tuple(Exposed(**one) for one in entry)


@cache
def engine_facts(engine: str) -> EngineFacts:
    """The facts of `vllm`, `sglang` or `generic`; a simulated engine's are those of the engine
    whose language it speaks.
    """
    name = SPEAKS.get(engine, engine)
    data = _read(f"{name}.yaml")
    known = known_flags(name, data)
    return EngineFacts(
        engine=name,
        command=tuple(data.get("command", ())),
        model_flag_words=tuple(data.get("model_flag_words", ())),
        images=tuple(data.get("images", ())),
        flags=known.flags,
        aliases=known.aliases,
        opposites={**_opposites(known.flags), **data.get("opposites", {})},
        removed=known.removed,
        managed=data.get("managed", {}),
        secrets=data.get("secrets", {}),
        metrics={key: _exposed(entry) for key, entry in data.get("metrics", {}).items()},
        routes=data.get("routes", {}),
        caches=tuple(Cache(**entry) for entry in data.get("caches", ())),
        shm=data.get("shm", {}),
        renamed=tuple(Renamed(**entry) for entry in data.get("renamed", ())),
        help=tuple(tuple(words) for words in data.get("help", {}).get("ask", ())),
        help_proof=tuple(data.get("help", {}).get("proof", ())),
        compile_key=data.get("compile_key", {}),
        memory_order=MemoryOrder(
            **{key: tuple(names) for key, names in data.get("memory_order", {}).items()}
        ),
        model_flag=data.get("model_flag", "--model"),
        takes_model_word=data.get("takes_model_word", True),
        packages=tuple(data.get("packages", ())),
        programs=tuple(tuple(words) for words in data.get("programs", ())),
        always=data.get("always", {}),
        off_by_absence=data.get("off_by_absence", False),
        kills_itself=data.get("kills_itself", False),
        likelihood=tuple(Likelihood(**entry) for entry in data.get("likelihood", ())),
        # The simulated engine reads none of them
        environment=() if engine in SPEAKS else tuple(data.get("environment", ())),
        memory_log={k: _patterns(texts) for k, texts in data.get("memory_log", {}).items()},
        stages=tuple(
            Stage(stage=entry["stage"], match=_patterns(entry["match"]))
            for entry in data.get("stages", ())
        ),
    )


@cache
def signatures() -> tuple[Signature, ...]:
    """All failure signatures, in the order in which they are tried."""
    found = []
    for entry in _read("failures.yaml")["failures"]:
        values = dict(entry)
        message = values.pop("message")
        for key in ("match", "also"):
            values[key] = _patterns(values.get(key, ()))
        values["extract"] = _patterns(tuple(values.get("extract", {}).values()))
        for key in ("stages", "engines", "blames"):
            values[key] = tuple(values.get(key, ()))
        values["message"] = (message,) if isinstance(message, str) else tuple(message)
        found.append(Signature(**values))
    return tuple(found)
