"""What an engine's flags mean to the simulator: limits of its scheduler, and traits.

The mapping is data (`understood.yaml`); SGLang's and vLLM's names lead to the same limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from autotune.canonical import Json, canonical_json
from autotune.simulator.calibration import DECODE, PREFILL, Trait
from autotune.simulator.load import AMPLE, Limits

_FILE = Path(__file__).with_name("understood.yaml")
GENERAL = "vllm"
"""Whose names are tried for an engine that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A candidate as the simulator sees it: limits, and what differs otherwise from today."""

    limits: Limits
    traits: tuple[Trait, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What flags leave open. `gpu_gib`: memory of a GPU, 0 without any. `budget`, `seqs`: what the
    engine uses unless told otherwise, where that is known better than by memory.
    """

    gpu_gib: float = 0.0
    budget: int | None = None
    seqs: int | None = None
    model_len: int | None = None


@dataclass(slots=True, kw_only=True)
class Understanding:
    """Reads the settings of one engine kind. `baseline`: today's, which traits refer to."""

    engine: str
    baseline: Mapping[str, Json]
    machine: Machine = field(default_factory=Machine)

    def understands(self, flag: str) -> bool:
        """Whether the whole effect of a flag follows from the model. Of traits a guess does."""
        return flag in _plain(_facts(self.engine))

    def view(self, settings: Mapping[str, Json], kv_tokens: int | None = None) -> View:
        """How the simulator sees all settings of a launch, flag name -> value. `kv_tokens`: what
        its KV cache holds, None where nobody knows.
        """
        return View(limits=self.limits(settings, kv_tokens), traits=tuple(self._traits(settings)))

    def limits(self, settings: Mapping[str, Json], kv_tokens: int | None = None) -> Limits:
        """The limits that a launch would have; what is not set follows the engine's defaults."""
        facts = _facts(self.engine)
        found = {name: _read(entry, settings) for name, entry in facts["limits"].items()}
        chunked = bool(found.get("chunked", True))
        length = _number(settings.get(facts["model_len"])) or self.machine.model_len
        default_budget, default_seqs = self._defaults(facts)
        budget = _number(found.get("budget"))
        if budget is None:
            budget = default_budget if chunked else max(default_budget, length or AMPLE)
        seqs = _number(found.get("seqs"))
        if seqs is None:
            seqs = min(default_seqs, budget)
        return Limits(
            budget=max(1, budget),
            seqs=max(1, seqs),
            chunked=chunked,
            threshold=_number(found.get("threshold")) or 0,
            prefix_caching=bool(found.get("prefix_caching", True)),
            lookahead=bool(found.get("lookahead", True)),
            mixed=bool(found.get("mixed", True)),
            kv_tokens=kv_tokens or AMPLE,
            block_size=_number(found.get("block_size")) or 16,
        )

    def _defaults(self, facts: Mapping[str, Any]) -> tuple[int, int]:
        usual = next(d for d in facts["defaults"] if self.machine.gpu_gib >= d["least_gpu_gib"])
        return self.machine.budget or usual["budget"], self.machine.seqs or usual["seqs"]

    def _traits(self, settings: Mapping[str, Json]) -> list[Trait]:
        facts = _facts(self.engine)
        traits = []
        for flag in sorted({*settings, *self.baseline} - _plain(facts)):
            before, now = self.baseline.get(flag), settings.get(flag)
            if canonical_json(before) == canonical_json(now):
                continue
            entry = facts["traits"].get(flag, {})
            known, touches = entry.get("values", {}), entry.get("touches")
            usual = {"doubt": facts["unknown_doubt"]}
            was, will = _known(known, before) or {}, _known(known, now) or usual
            names = (was.keys() | will.keys()) - {"doubt"}
            traits.append(
                Trait(
                    name=f"{flag} {now if isinstance(now, str) else canonical_json(now)}",
                    doubt=max(float(will["doubt"]), float(was.get("doubt", 0.0)), 0.01),
                    expected={name: will.get(name, 1.0) / was.get(name, 1.0) for name in names},
                    touches=tuple(touches or (*PREFILL, *DECODE)),
                )
            )
        return traits


def _plain(facts: Mapping[str, Any]) -> frozenset[str]:
    """Flags that are limits and nothing else, or neutral."""
    limited = {entry["flag"] for entry in facts["limits"].values()} - facts["traits"].keys()
    return frozenset(limited | set(facts["neutral"]))


def _read(entry: Mapping[str, Any], settings: Mapping[str, Json]) -> Json:
    """A limit's value; None where the engine chooses it."""
    value = settings.get(entry["flag"])
    if value is None:
        return entry.get("default")
    if "unlimited" in entry and value == entry["unlimited"]:
        return None if "default" not in entry else not entry["default"]
    if entry.get("inverted"):
        return not value
    return value if "unlimited" not in entry or "default" not in entry else entry["default"]


def _known(known: Mapping[Json, Any], value: Json) -> Mapping[str, Any] | None:
    """What is known of a value; a flag that is left out changes nothing where any is known."""
    if value is None:
        return {"doubt": 0.0} if known else None
    return None if isinstance(value, list | dict) else known.get(value)


def _number(value: Json) -> int | None:
    """A whole number, also written as text or with an engine's suffix (8k); None for others."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return int(value)
    text = str(value).strip()
    factor = {"k": 10**3, "m": 10**6, "K": 2**10, "M": 2**20}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    return int(digits) * factor if digits.isdigit() else None


@cache
def _facts(engine: str) -> Mapping[str, Any]:
    import yaml

    engines = yaml.safe_load(_FILE.read_text(encoding="utf-8"))["engines"]
    found: Mapping[str, Any] = engines.get(engine, engines[GENERAL])
    return found
