"""What stood in the way when nothing meets the limits: the nearest trials and the hardest limit."""

from __future__ import annotations

from autotune.report.numbers import percent
from autotune.report.view import StudyView
from autotune.report.words import plural
from autotune.study.ranking import nearest_to_limits


def miss_sentences(view: StudyView) -> list[str]:
    """The nearest trials with their worst violations, and the limit that stops most."""
    near = nearest_to_limits([trial.record for trial in view.trials])
    if not near:
        return ["No trial could be measured against the limits."]
    sentences = []
    for index, record in enumerate(near[:3]):
        text, by = max(record.constraints.items(), key=lambda item: item[1])
        name = f"#{record.number}" + (" (today's)" if record.role == "baseline" else "")
        lead = f"Nearest: {name}" if index == 0 else f"Then {name}"
        sentences.append(f"{lead} misses {text} by {percent(by)}.")
    stops = {
        text: sum(record.constraints.get(text, 0.0) > 0 for record in near)
        for text in view.constraints
    }
    hardest = max(stops, key=lambda text: stops[text], default=None)
    if hardest is not None and len(near) > 1:
        alone = sum(
            all(by <= 0 for text, by in record.constraints.items() if text != hardest)
            for record in near
        )
        sentences.append(
            f"{hardest} stops most: without it {plural(alone, 'candidate')} would pass."
        )
    return sentences
