"""GPU memory: what was estimated before each launch beside what the engine's log said; refusals."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.report import reading
from autotune.report.numbers import count
from autotune.report.view import StudyView, TrialView
from autotune.report.words import setting
from autotune.study.refusals import read_refused


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One launch: pairs of (estimate, log) as text, `not known` where one is missing."""

    trial: int
    changed: str
    weights: tuple[str, str]
    cache: tuple[str, str]
    tokens: tuple[str, str]
    graphs: str


def memory_rows(view: StudyView) -> list[MemoryRow]:
    """Launches of baseline and search whose memory was estimated or told, one per candidate."""
    return [_row(t) for t in view.searched if t.record.memory]


def _row(trial: TrialView) -> MemoryRow:
    guess = reading.numbers(trial.record.memory.get("estimate"))
    told = reading.numbers(trial.record.memory.get("log"))

    def gib(name: str) -> tuple[str, str]:
        return _gib(guess.get(name)), _gib(told.get(name))

    tokens = tuple(
        count(s["kv_tokens"]) if "kv_tokens" in s else "not known" for s in (guess, told)
    )
    return MemoryRow(
        trial=trial.number,
        changed=", ".join(f"{n} {setting(new)}" for n, (_, new) in trial.changed.items())
        or "as today",
        weights=gib("weights_gib"),
        cache=gib("kv_gib"),
        tokens=(tokens[0], tokens[1]),
        graphs=_gib(told.get("graphs_gib")),
    )


def refused_rows(view: StudyView) -> list[tuple[str, str]]:
    """(settings, why) of candidates that were refused without a launch."""
    return [
        (
            ", ".join(f"{name} {setting(value)}" for name, value in line["params"].items()),
            str(line.get("message") or line["reason"]),
        )
        for line in read_refused(view.directory)
    ]


def _gib(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2f} GiB"
