"""The tables of what a study's numbers belong to: its traffic and its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.canonical import Json
from autotune.report import reading
from autotune.report.first_screen import hardware, model_name
from autotune.report.numbers import count, duration, share
from autotune.report.view import StudyView
from autotune.report.words import setting


def workload_rows(view: StudyView) -> list[tuple[str, str]]:
    """The traffic in words; facts that the study does not know are left out."""
    facts = view.workload
    numbers = reading.numbers(facts)
    rows = [("file", str(facts["path"]).rsplit("/", 1)[-1])] if facts.get("path") else []
    rows += [(key, str(facts[key])) for key in ("format", "digest") if facts.get(key)]
    words: dict[str, tuple[str, Callable[[float], str]]] = {
        "requests": ("requests", count),
        "duration_s": ("recording", duration),
        "window_s": ("replayed window", duration),
        "rate_mean": ("mean rate", _rate),
        "rate_peak_1s": ("peak rate in 1 s", _rate),
        "prefix_reuse": ("prompt tokens seen before", share),
        "sessions": ("sessions", count),
    }
    window = facts.get("window_s")
    if isinstance(window, list) and len(window) == 2:
        start, end = (reading.numbers({"at": edge}).get("at") for edge in window)
        if start is not None and end is not None:
            numbers["window_s"] = end - start
    rows += [(label, form(numbers[key])) for key, (label, form) in words.items() if key in numbers]
    for key, label in (("input_tokens", "prompt tokens"), ("output_tokens", "output tokens")):
        stats = reading.numbers(facts.get(key))
        if stats:
            rows.append((label, ", ".join(f"{k} {count(v)}" for k, v in stats.items())))
    skipped = reading.numbers(facts.get("skipped_by_reason"))
    if skipped:
        rows.append(("left out", ", ".join(f"{count(v)} {k}" for k, v in skipped.items())))
    if "held_out" in facts:
        rows.append(("confirmed on", "a window the search never saw" if facts["held_out"] is True
                     else "the same traffic as the search"))  # fmt: skip
    return rows + [("note", note) for note in reading.texts(facts.get("notes"))]


def _rate(value: float) -> str:
    return f"{value:.3g} requests/s"


def environment_rows(view: StudyView) -> list[tuple[str, str]]:
    """What the study ran on, as far as the fingerprint knows."""
    fingerprint = view.fingerprint
    machine = reading.mapping(fingerprint.get("machine"))
    rows: list[tuple[str, Json]] = [
        ("model", model_name(view)),
        ("engine", _all_of(view, "kind")),
        ("engine version", _all_of(view, "version")),
        ("launcher", _all_of(view, "launcher")),
        ("image", _all_of(view, "image")),
        ("image digest", _all_of(view, "image_digest")),
        ("hardware", hardware(view)),
        ("driver", machine.get("driver")),
        ("CPU cores", machine.get("cpu_count")),
        ("system", machine.get("os")),
        ("autotune", fingerprint.get("tool")),
        ("started", fingerprint.get("started_at")),
        ("search", _pairs_text(view.search)),
        ("budget", _budget_text(view.budget)),
    ]
    return [(name, _text(value)) for name, value in rows if value not in (None, "", {}, [])]


def _all_of(view: StudyView, key: str) -> str:
    """What the engines of a study have under a key; what they share is told once."""
    values = [str(engine[key]) for engine in view.engines if engine.get(key)]
    return " and ".join(dict.fromkeys(values))


def _text(value: Json) -> str:
    if isinstance(value, Mapping):
        return _pairs_text(value)
    return str(value)


def _pairs_text(value: Mapping[str, Json]) -> str:
    return ", ".join(f"{key} {setting(item)}" for key, item in value.items() if item is not None)


def _budget_text(budget: Mapping[str, Json]) -> str:
    numbers = reading.numbers(budget)
    parts = []
    if "time" in numbers:
        parts.append(duration(numbers["time"]))
    if "trials" in numbers:
        parts.append(f"{count(numbers['trials'])} trials")
    return ", ".join(parts)
