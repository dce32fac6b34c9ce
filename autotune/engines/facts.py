"""Facts about engines, read from `facts/*.yaml`: loaded when first asked for, then kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

Kind = Literal["switch", "bare", "int", "size", "float", "str", "json", "ints", "strs"]
"""`switch`: `--x` and its negative; `bare`: `--x` only; `size`: a whole number or text such as 8k;
`ints`/`strs`: several words after one flag; `json`: one word of JSON."""


def written_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version as written, trailing zeros too: "v0.26.0rc1+cpu" -> (0, 26, 0)."""
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in numbers[1].split(".")) if numbers else ()


def applies(version: str | None, since: str | None = None, until: str | None = None) -> bool:
    """Whether a fact that holds from `since` to `until` (both included, as far as they are written:
    until 0.17 includes 0.17.3) holds for `version`. An unknown version is given the benefit.
    """
    key = written_numbers(version) if version else ()
    if not key:
        return True
    if since is not None and key < written_numbers(since):
        return False
    last = written_numbers(until) if until is not None else None
    return last is None or key[: len(last)] <= last


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One command-line flag: its name without dashes, its kind, and the versions that have it."""

    name: str
    kind: Kind
    since: str | None = None
    until: str | None = None

    @property
    def negative(self) -> str | None:
        """The word that switches it off; None where there is none."""
        return f"--no-{self.name}" if self.kind == "switch" else None

    @property
    def several(self) -> bool:
        """Whether it takes several words."""
        return self.kind in ("ints", "strs")

    def applies(self, version: str | None) -> bool:
        """Whether `version` has this flag, as far as is known."""
        return applies(version, self.since, self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A flag that is gone: last version that had it ("0": none ever had), first one known to lack
    it, and what to use now.
    """

    name: str
    until: str
    gone_since: str
    instead: str

    def gone(self, version: str | None) -> bool:
        """Whether `version` is known to lack it; an unknown version only if no version had it."""
        if self.until == "0":
            return True
        return version is not None and written_numbers(version) >= written_numbers(self.gone_since)


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
    secrets: Mapping[str, str]
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


def _flags(data: Mapping[str, Any]) -> dict[str, Flag]:
    since = {name: version for version, names in data.get("since", {}).items() for name in names}
    removed = data.get("removed", {})
    return {
        name: Flag(
            name=name,
            kind=kind,
            since=since.get(name),
            until=removed[name]["until"] if name in removed else None,
        )
        for kind, names in data.get("flags", {}).items()
        for name in names
    }


def _removed(name: str, entry: Mapping[str, str]) -> Removed:
    *head, last = written_numbers(entry["until"])
    following = ".".join(str(part) for part in (*head, last + 1))
    return Removed(
        name=name,
        until=entry["until"],
        gone_since=entry.get("from", following),
        instead=entry["instead"],
    )


def _exposed(entry: str | Sequence[Mapping[str, str]]) -> tuple[Exposed, ...]:
    if isinstance(entry, str):
        return (Exposed(name=entry),)
    return tuple(Exposed(**one) for one in entry)


@cache
def engine_facts(engine: str) -> EngineFacts:
    """The facts of `vllm`, `sglang` or `generic`; the simulated engine speaks vLLM's language."""
    name = "vllm" if engine == "simulated" else engine
    data = _read(f"{name}.yaml")
    return EngineFacts(
        engine=name,
        command=tuple(data.get("command", ())),
        model_flag_words=tuple(data.get("model_flag_words", ())),
        images=tuple(data.get("images", ())),
        flags=_flags(data),
        aliases=data.get("aliases", {}),
        opposites=data.get("opposites", {}),
        removed={key: _removed(key, entry) for key, entry in data.get("removed", {}).items()},
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
